"""The step as we list it against vLLM's own code: recorded traces of tiny models, and fresh ones where vLLM is."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import llm_perf_opt as lpo
from benchmarks.pages import DOCS, FACTS
from benchmarks.runner import load_records
from benchmarks.step_referee import FORWARDS as PAGE_FORWARDS
from benchmarks.step_referee import (
    UNEXPLAINED,
    Launch,
    Launches,
    blocks_of,
    differences,
    listed,
    ours,
    page,
    read,
    theirs,
)
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.timing.step.engine_blocks import engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward

TRACES = FACTS / "vllm_traces"
BATCH, PROMPT, TP = 2, 64, 2  # of the recorded traces
FORWARDS = {
    "prefill": Forward(sequences=BATCH, queries=PROMPT, keys=PROMPT),
    "decode": Forward(sequences=BATCH, queries=1, keys=PROMPT + 1),
}
DATA = DOCS / "data" / "step_referee.json"
SAMPLE = (
    "HuggingFaceTB/SmolLM3-3B",
    "google/gemma-2-9b",
    "CohereForAI/c4ai-command-r-v01",
    "allenai/OLMo-2-1124-13B",
    "Qwen/Qwen1.5-MoE-A2.7B",
    "deepseek-ai/DeepSeek-V2-Lite",
)
NAMED = {("deepseek-ai/DeepSeek-V2-Lite", "decode"): "latent vectors: two batched GEMMs in place of the expansion"}


def step(model: str, phase: str, tp: int = TP) -> Launches:
    graphs = lpo.trace(TRACES / model, dtype="bfloat16").graphs
    blocks = engine_blocks(next(graph for graph in graphs if graph.phase == "decode"))
    return ours(blocks, FORWARDS[phase], ParallelPlan(tp=tp))


def recorded(model: str, phase: str) -> CallGraph:
    return read_callgraph(TRACES / model / f"{phase}.callgraph.json")


@pytest.mark.parametrize("phase", FORWARDS)
def test_a_dense_model_launches_what_vllm_launches(phase: str) -> None:
    assert differences(step("llama", phase), theirs(recorded("llama", phase)), TP) == []


def test_a_prefill_on_latent_vectors_launches_what_vllm_launches() -> None:
    assert differences(step("deepseek", "prefill"), theirs(recorded("deepseek", "prefill")), TP) == []


def test_a_step_on_latent_vectors_has_the_work_of_vllms_batched_gemms() -> None:
    """Three layers: one GEMM that stands for taking queries to the latent space and results back, of equal FLOPs."""
    (found,) = differences(step("deepseek", "decode"), theirs(recorded("deepseek", "decode")), TP)
    assert found.cause.startswith("latent vectors")
    assert (sum(found.ours.values()), sum(found.vllm.values()), found.flops) == (3, 2 * 3, 0)


@pytest.mark.parametrize("model", SAMPLE)
def test_the_step_still_launches_what_is_recorded_of_vllm(model: str) -> None:
    """vLLM's lists are on the page; ours are made anew. Six kinds of layers, on 1, 2 and 8 ranks."""
    blocks, cases = blocks_of(model), load_records(DATA)[model]
    assert set(cases) == {"1", "2", "8"}
    for ranks, case in cases.items():
        for phase, forward in PAGE_FORWARDS.items():
            mine, vllm = ours(blocks, forward, ParallelPlan(tp=int(ranks))), read(case["vllm"][phase])
            found = {difference.cause for difference in differences(mine, vllm, int(ranks))}
            assert found == {cause for cause in [NAMED.get((model, phase))] if cause}, (ranks, phase)


def test_every_difference_on_the_page_has_a_cause() -> None:
    records = load_records(DATA)
    assert (DOCS / "evidence" / "step-referee.md").read_text("utf-8") == page(
        json.loads(DATA.read_text("utf-8")), records
    )
    causes = {
        difference.cause
        for cases in records.values()
        for ranks, case in cases.items()
        for phase, vllm in case.get("vllm", {}).items()
        for difference in differences(read(case["ours"][phase]), read(vllm), int(ranks))
    }
    assert UNEXPLAINED not in causes
    assert len(causes) < 8


GEMM = ("gemm", (4, 96, 64))


@pytest.mark.parametrize(
    ("vllm", "cause", "flops"),
    [
        ({("gemm", (4, 64, 64)): 5, ("gemm", (4, 32, 64)): 5}, "one input: joined here", 0),
        ({("gemm", (4, 192, 64)): 5}, "replicated in vLLM", -5 * 2 * 4 * 96 * 64),
        ({GEMM: 4}, "not explained", 2 * 4 * 96 * 64),
        ({GEMM: 5, ("all-reduce", (512, 2)): 1}, "not explained", 0),
    ],
)
def test_a_difference_has_its_cause_and_its_flops(vllm: dict[Launch, int], cause: str, flops: int) -> None:
    def launches(counts: dict[Launch, int]) -> Launches:
        return {
            (kind, sizes): (count, count * (2 * sizes[0] * sizes[1] * sizes[2] if kind == "gemm" else 0))
            for (kind, sizes), count in counts.items()
        }

    (found,) = differences(launches({GEMM: 5}), launches(vllm), TP)
    assert found.cause.startswith(cause)
    assert found.flops == flops
    left = Counter({GEMM: 5}) - Counter(vllm)
    assert found.ours == left


def test_lists_are_kept_as_they_were() -> None:
    found = theirs(recorded("deepseek", "prefill"))
    assert read(listed(found)) == found


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_a_fresh_trace_of_vllm_is_equal_too(tp: int) -> None:
    try:
        find()
    except PerfOptError as error:
        pytest.skip(f"{error.what} {error.fix}")
    fresh = lpo.trace(TRACES / "llama", code="vllm", tp=tp, batch=BATCH, prompt_tokens=PROMPT, dtype="bfloat16")
    for graph in fresh.graphs:
        assert differences(step("llama", graph.phase, tp), theirs(graph), tp) == []
