"""What is found out about a trace is kept by what the trace holds, and equal to what is found anew."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core import store
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.stored_findings import identify
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.memory.live_memory import Integers
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.serving.working_memory import forward_widths
from llm_perf_opt.timing.step.engine_blocks import engine_blocks
from llm_perf_opt.tracing.deployed_traces import redeployed
from tests.models.huggingface.folders import LLAMA, write_folder

FINDINGS: dict[str, Callable[[CallGraph], Any]] = {
    "necessary work": necessary_by_stage,
    "memory of a run": lambda graph: run_memory((graph,)),
    "blocks of a step": engine_blocks,
    "widths of a forward": lambda graph: forward_widths(graph, plan=ParallelPlan(tp=2)),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def decode(tmp_path: Path) -> CallGraph:
    return lpo.trace(write_folder(tmp_path, LLAMA)).graphs[-1]


def kept(kind: str) -> int:
    return sum(entry.kind == kind for entry in store.entries())


@pytest.mark.parametrize("kind", FINDINGS)
def test_the_second_process_reads_what_the_first_found(kind: str, decode: CallGraph) -> None:
    find = FINDINGS[kind]
    anew = find(replace(decode))
    assert kept(kind) == 0
    assert find(decode) == find(decode) == anew
    assert kept(kind) == 1


def test_a_trace_that_was_read_is_known_as_the_one_that_was_made(tmp_path: Path, decode: CallGraph) -> None:
    read = lpo.trace(write_folder(tmp_path, LLAMA)).graphs[-1]
    assert read is not decode
    assert read.content_digest == decode.content_digest is not None


def test_hardware_changes_nothing_and_formats_do(decode: CallGraph) -> None:
    def digest(**wanted: str) -> str | None:
        return redeployed([decode], Deployment.make(**wanted))[0].content_digest

    assert digest(device="h100-sxm") == digest(device="l4") is not None
    assert len({decode.content_digest, digest(weights="fp8"), digest(weights="int8")} - {None}) == 3
    assert digest(cache="fp8") is None


def test_whoever_changes_a_trace_gets_one_that_is_not_known(decode: CallGraph) -> None:
    assert replace(decode, phase="another").content_digest is None
    assert identify(replace(decode), None, "changed").content_digest is None
    assert identify(replace(decode), "a", "bc").content_digest != identify(replace(decode), "ab", "c").content_digest


@dataclass(frozen=True, kw_only=True)
class Counted:
    column: Integers
    count: int
    word: object = "any"


def test_columns_come_back_and_a_count_beyond_64_bits_is_made_each_time(folder: Path) -> None:
    small = Counted(column=array("q", [2**62, -1]), count=2**63)
    large = replace(small, count=2**70)

    def asked(wanted: Counted) -> Counted:
        return store.stored_record("counts", {"of": wanted.count}, "", Counted, lambda: wanted)

    assert [asked(wanted) for wanted in (small, small, large, large)] == [small, small, large, large]
    assert kept("counts") == 1
