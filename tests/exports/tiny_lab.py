"""The tiny twin of DeepSeek-OCR in the lab; each part is examined once per test process."""

from __future__ import annotations

from functools import cache

from llm_perf_opt.core.export_outcome import Check, ExportOptions, PartOutcome
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.exports.part_under_test import PartUnderTest, prepare
from llm_perf_opt.exports.torch_lab import TorchLab
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import Engine

ADAPTER = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())
WORKLOAD = DeepSeekOcrWorkload(image="70x100", crops=(2, 3), prompt_tokens=9, dtype="float32")
PARTS = {part.name: part for part in ADAPTER.parts()}
FAILING = ("moe-layer", "full-model", "full-model-decode")
STATIC = tuple(name for name in PARTS if name not in FAILING)


@cache
def targets() -> dict[str, Target]:
    return {target.phase: target for target in ADAPTER.targets(WORKLOAD)}


@cache
def _lab() -> TorchLab:
    return TorchLab()


@cache
def examined(name: str, *checks: Check) -> PartOutcome:
    part = PARTS[name]
    return _lab().examine(targets()[part.phase], part, ExportOptions(checks=frozenset({Check.EXPORT, *checks})))


def prepared(name: str) -> PartUnderTest:
    part: Part = PARTS[name]
    return prepare(targets()[part.phase], part, Engine(device="cpu"))
