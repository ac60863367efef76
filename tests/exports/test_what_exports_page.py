"""The page of the export matrix is made from the data file, and the data shows what the page claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "docs" / "data" / "export_matrix.json").read_text())


def rows(title: str) -> list[dict[str, Any]]:
    tables = DATA["reports"]["deepseek-ocr"]["tables"]
    return next(table["rows"] for table in tables if table["title"] == title)


def test_the_page_is_made_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "export_matrix", raising=False)
    import export_matrix

    assert export_matrix.section(DATA) in (ROOT / "docs" / "what-exports.md").read_text()


def test_recorded_flops_agree_or_have_a_cause() -> None:
    for row in rows("FLOPs from three sources"):
        figures = {row["exported_flops"], row["traced_flops"], row["eager_torch_s_counter_flops"]}
        assert row["agreement"] != "equal to the FLOP" or len(figures) == 1
        assert "no cause is known" not in row["agreement"]


def test_recorded_differences_to_onnxruntime_are_small() -> None:
    parity = {
        row["part"]: float(row["largest_difference"]) for row in rows("onnxruntime against eager, random weights")
    }
    wanted = {"sam-block-windowed", "sam-block-global", "clip-block", "projector", "decoder-layer-dense", "expert"}
    assert wanted <= set(parity)
    assert max(parity.values()) < 1e-3
