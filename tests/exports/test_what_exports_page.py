"""The page of the export matrix is made from the data file, and the data shows what the page claims."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llm_perf_opt.core.export_outcome import Check

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "docs" / "data" / "export_matrix.json").read_text())


def rows(title: str) -> list[dict[str, Any]]:
    tables = DATA["reports"]["deepseek-ocr"]["tables"]
    return next(table["rows"] for table in tables if table["title"] == title)


@pytest.fixture
def benchmark() -> ModuleType:
    return importlib.import_module("benchmarks.export_matrix")


def test_the_page_is_made_from_the_data(benchmark: ModuleType) -> None:
    assert benchmark.section(DATA) in (ROOT / "docs" / "evidence" / "what-exports.md").read_text()


def test_a_report_is_named_after_its_model() -> None:
    assert [report["title"] for report in DATA["reports"].values()] == [
        f"{name}: what exports" for name in DATA["reports"]
    ]


def made_report(verdict: str, *tables: dict[str, Any]) -> dict[str, Any]:
    matrix = {"title": "What exports", "rows": [{"part": "clip", "onnx": "ok", "torch_compile": verdict}]}
    return {"title": "deepseek-ocr: what exports", "tables": [matrix, *tables]}


def test_one_check_taken_again_leaves_the_others_as_they_were(benchmark: ModuleType) -> None:
    compiled = "torch.compile against eager, medians of one process"
    breaks = {"title": "Where the compiled graph breaks", "rows": [{"part": "clip", "where": "clip.py:1"}]}
    others = [{"part": "sam", "check": "onnx"}, {"part": "clip", "check": "torch.compile"}]
    parity = {"title": "onnxruntime against eager, random weights", "rows": [{"part": "clip"}]}
    before = {"title": compiled, "rows": [{"part": "clip", "runs": 1}]}
    recorded = made_report("failed", {"title": "Why not", "rows": others}, before, parity, breaks)
    recorded["tables"][0]["rows"].append({"part": "sam", "onnx": "failed", "torch_compile": "not tried"})
    fresh = made_report("ok", {"title": compiled, "rows": [{"part": "clip", "runs": 9}]})
    fresh["tables"][0]["rows"][0]["onnx"] = "not tried"
    assert benchmark.with_check(recorded, fresh, Check.COMPILE)["tables"] == [
        {
            "title": "What exports",
            "rows": [
                {"part": "clip", "onnx": "ok", "torch_compile": "ok"},
                {"part": "sam", "onnx": "failed", "torch_compile": "not tried"},
            ],
        },
        {"title": "Why not", "rows": [{"part": "sam", "check": "onnx"}]},
        {"title": compiled, "rows": [{"part": "clip", "runs": 9}]},
        parity,
    ]


def test_compiling_again_asks_for_the_compiled_parts_and_nothing_else(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    fresh = made_report("ok")

    def answer(name: str, model: str, *parts: str, **options: Any) -> dict[str, Any]:
        asked.append((parts, options))
        return fresh

    monkeypatch.setattr(benchmark, "as_json", answer)
    monkeypatch.setattr(benchmark, "version", lambda package: DATA["versions"][package])
    data = benchmark.taken_again(DATA, Check.COMPILE)
    ((parts, options),) = asked
    compiled = ("sam-block-windowed", "sam-block-global", "clip-block")
    assert (parts, options) == (compiled, {"compile_parts": compiled, "checks": ("export",), **benchmark.WORKLOAD})
    assert {name: data["reports"][name] == report for name, report in DATA["reports"].items()} == {
        name: name != "deepseek-ocr" for name in DATA["reports"]
    }
    monkeypatch.setattr(benchmark, "version", lambda package: "2.12.0")
    with pytest.raises(SystemExit, match="take all of it again"):
        benchmark.taken_again(DATA, Check.COMPILE)


def test_every_dimension_of_every_exported_part_is_recorded() -> None:
    exported = {row["part"] for row in rows("What exports") if row["torch_export"] == "ok"}
    inputs = {row["part"]: row["inputs"].split("; ") for row in rows("What went in, and what was changed for it")}
    for part in exported:
        first = json.loads(inputs[part][0].partition("float32")[2])
        told = [row["size"] for row in rows("Which dimensions may vary") if row["part"] == part]
        assert told[: len(first)] == first, part


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
