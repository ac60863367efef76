"""The released code under all four tracers: the same calls and edges, the same `for` and `parfor` in the picture."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import FOLDERS, TRACERS, make_workload
from llm_perf_opt.graphs.view import group
from tests.end_to_end.released_folders import needs_released_code, small_folder

pytestmark = needs_released_code
REAL = ("hooks", "profiler", "torchlens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("released") / "model", layers=3)


@cache
def traced(folder: Path, tracer: str, phase: str) -> CallGraph:
    adapter = FOLDERS.get("huggingface")(folder, True)
    workload = make_workload(adapter, image="620x877", mode="gundam", crops="1x2", dtype="float32")
    (target,) = [target for target in adapter.targets(workload) if target.phase == phase]
    return TRACERS.get(tracer)().trace(target)


def loops(graph: CallGraph) -> dict[str, str]:
    """Label -> loops, but for the parts by cost, which a trace without costs cannot have."""
    boxes = [box for root in group(graph).roots for box in root.walk()]
    parts = {part.id for box in boxes if box.is_split for part in box.children}
    return {box.label: " ".join(loop.text for loop in box.loops) for box in boxes if box.loops and box.id not in parts}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_three_real_tracers_see_the_same_calls(folder: Path, phase: str) -> None:
    hooks, *others = (traced(folder, tracer, phase) for tracer in REAL)
    assert hooks.problems() == []
    for other in others:
        assert other.problems() == []
        assert other.call_counts == hooks.call_counts
        assert other.edges == hooks.edges


@pytest.mark.parametrize("tracer", REAL)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_picture_has_the_loops_of_the_weightless_one(folder: Path, phase: str, tracer: str) -> None:
    expected, seen = loops(traced(folder, "weightless", phase)), loops(traced(folder, tracer, phase))
    assert {label: text.split()[0] for label, text in seen.items()} == {
        label: text.split()[0] for label, text in expected.items()
    }
    assert seen["DeepseekV2MLP @ model.layers.[1-2].mlp.experts.[0-7]"].startswith("parfor ")
    if phase == "prefill":
        assert seen["Block @ model.sam_model.blocks.[0-11]"] == "for 12"
        assert seen["NoTPTransformerBlock @ model.vision_model.transformer.layers.[0-23]"] == "for 24"
        assert seen["ImageEncoderViT @ model.sam_model"] == "parfor 2"  # the crops, then the global view
