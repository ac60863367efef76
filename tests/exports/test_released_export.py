"""The matrix on the released DeepSeek-OCR code: the same parts export, at the same cost, and the same ones do not."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from llm_perf_opt.api.export import ExportAnswer, export_parts
from llm_perf_opt.core.export_outcome import Check, Verdict
from llm_perf_opt.core.plugins import FOLDERS
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.tracing.origin import Origin
from tests.exports.tiny_lab import STATIC

FOLDER = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")
pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="LLM_PERF_OPT_DSOCR_DIR names no folder with the released code"),
    pytest.mark.skipif(
        FOLDER is not None and not version("transformers").startswith(("4.46.", "4.47.")),
        reason="the released code needs transformers 4.46 or 4.47",
    ),
]


@cache
def run(code: str) -> ExportAnswer:
    adapter = DeepSeekOcrAdapter() if code == "ours" else FOLDERS.get("huggingface")(Path(str(FOLDER)), True)
    workload = DeepSeekOcrWorkload(crops=(2, 3), prompt_tokens=9, dtype="float32")
    return export_parts(Origin(name=code, source=adapter, workload=workload), checks=("export",))


def test_the_same_parts_export() -> None:
    verdicts = {part.name: part.outcome(Check.EXPORT).verdict for part in run("released").parts}
    assert [name for name, verdict in verdicts.items() if verdict is Verdict.OK] == list(STATIC)


def test_the_graphs_cost_the_same() -> None:
    released, ours = ({figure.name: figure.exported for figure in run(code).flops} for code in ("released", "ours"))
    assert released == ours
