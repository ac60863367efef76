"""Other requests: what a request waits for on a loaded server is what `serve` says, and each part is a rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.advice.ladder import Ladder
from llm_perf_opt.advice.pricing import OTHERS, PROMPTS, QUEUE
from llm_perf_opt.api.advise import AdviceAnswer
from llm_perf_opt.core.errors import UsageError
from tests.models.huggingface.folders import LLAMA, MIXTRAL, write_folder

pytest.importorskip("transformers", reason="the traced models are built by transformers, an optional extra")

PROMPT, OUTPUT = 120, 60
MODELS = {"dense": LLAMA, "experts": MIXTRAL}


@pytest.fixture(scope="module", params=MODELS)
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> lpo.Trace:
    return lpo.trace(write_folder(tmp_path_factory.mktemp("model"), MODELS[request.param]), prompt_tokens=PROMPT)


def advised(trace: lpo.Trace, **load: Any) -> AdviceAnswer:
    return trace.advise("h100-sxm", execution="fused", output=OUTPUT, **load)


def tpot_ns(ladder: Ladder) -> float:
    return sum(stage.top_ns / stage.runs for stage in ladder.stages if stage.phase == "decode")


def ttft_ns(ladder: Ladder) -> int:
    return sum(stage.top_ns for stage in ladder.stages if stage.phase != "decode")


def rung_ns(answer: AdviceAnswer, name: str) -> int:
    return sum(rung.time_ns for rung in answer.ladder.rungs if rung.name == name)


@pytest.mark.parametrize("load", [{"users": 16}, {"users": 1}, {"rate": "30/s"}], ids=str)
def test_the_times_under_a_load_are_those_of_serve(trace: lpo.Trace, load: dict[str, Any]) -> None:
    ladder = advised(trace, **load).ladder
    best = lpo.serve(trace, "1x h100-sxm", input=PROMPT, output=OUTPUT, **load).best
    assert best is not None
    assert tpot_ns(ladder) == pytest.approx(best.tpot.expected_s * 1e9, abs=len(ladder.stages))
    assert ttft_ns(ladder) == pytest.approx(best.ttft.expected_s * 1e9, abs=len(ladder.stages))


def test_rungs_of_a_load_add_up_to_the_nanosecond(trace: lpo.Trace) -> None:
    alone, loaded = advised(trace).ladder, advised(trace, users=16).ladder
    for stage in loaded.stages:
        assert stage.top_ns == stage.bottom_ns + sum(rung.time_ns for rung in stage.rungs)
    assert loaded.top_ns == loaded.bottom_ns + sum(rung.time_ns for rung in loaded.rungs)
    assert loaded.bottom_ns == alone.bottom_ns, "other requests do not change what one alone needs"
    added = sum(rung.time_ns for rung in loaded.rungs if rung.name in (QUEUE, PROMPTS, OTHERS))
    assert loaded.top_ns - alone.top_ns == added


def test_a_single_user_meets_no_other_prompt(trace: lpo.Trace) -> None:
    alone, crowd = advised(trace, users=1), advised(trace, users=32)
    assert rung_ns(alone, PROMPTS) == 0
    assert 0 < rung_ns(advised(trace, users=4), PROMPTS) < rung_ns(crowd, PROMPTS)
    assert rung_ns(alone, OTHERS) < 0.05 * rung_ns(crowd, OTHERS), "the longer context of a mean step alone"


def test_prefills_take_their_own_time_once_for_each_answer_that_ends(trace: lpo.Trace) -> None:
    """With few users a prompt adds about the time that it takes alone, `users / output` of them in a step."""
    few = advised(trace, users=2)
    prefill = sum(stage.top_ns for stage in few.ladder.stages if stage.phase == stage.stage == "prefill")
    assert rung_ns(few, PROMPTS) / (OUTPUT - 1) < 2 / OUTPUT * prefill, "a step that runs anyway has read the weights"


def test_a_second_replica_halves_the_load(trace: lpo.Trace) -> None:
    answer = advised(trace, users=32)
    (replica,) = (change for change in answer.changes if change.name == "second-replica")
    halved = advised(trace, users=16)
    if answer.changes[0].name == "second-replica":
        assert replica.left_s == pytest.approx(halved.written_s, rel=1e-9)
    assert "second-replica" not in {change.name for change in advised(trace).changes}
    assert "larger-batch" not in {change.name for change in answer.changes}, "the users are the batch"


def test_a_measurement_of_a_loaded_server_leaves_the_rest_unexplained(trace: lpo.Trace) -> None:
    plain = advised(trace, users=16).ladder
    measured = advised(trace, users=16, measured="tpot=12ms batch=16").ladder
    assert tpot_ns(measured) == pytest.approx(12e6)
    assert {rung.name for rung in plain.rungs} < {rung.name for rung in measured.rungs}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rate": "1000000/s"}, "more than"),
        ({"users": 10**6}, "more than"),
        ({"users": 2, "rate": "1/s"}, "exclude each other"),
        ({"rate": "fast"}, "not a rate"),
    ],
    ids=str,
)
def test_a_load_that_cannot_be_is_refused(trace: lpo.Trace, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        advised(trace, **asked)


def test_a_load_needs_an_engine_and_a_trace_of_one_request(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA)
    with pytest.raises(UsageError, match="one batch after the other"):
        lpo.trace(folder, prompt_tokens=9).advise("h100-sxm", users=4)
    with pytest.raises(UsageError, match="several sequences"):
        lpo.trace(folder, prompt_tokens=9, batch=2).advise("h100-sxm", execution="fused", users=4)
