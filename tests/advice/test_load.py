"""Other requests: what a request waits for on a loaded server is what `serve` says, and each part is a rung."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.ladder import Ladder
from llm_perf_opt.advice.load import Load
from llm_perf_opt.advice.pricing import OTHERS, PROMPTS, QUEUE, Pricer, seconds_of
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.api.advise import AdviceAnswer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import find_hardware
from llm_perf_opt.timing.datasheet_rates import Execution
from tests.models.huggingface.folders import LLAMA, MIXTRAL, write_folder

pytest.importorskip("transformers", reason="the traced models are built by transformers, an optional extra")

PROMPT, OUTPUT = 800, 60
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
MODELS = {"dense": {**LLAMA, **SIZES}, "experts": {**MIXTRAL, **SIZES, "intermediate_size": 2816}}


class Server:
    """One model, asked once for each load."""

    def __init__(self, folder: Path) -> None:
        self.trace = lpo.trace(folder, prompt_tokens=PROMPT)
        self._asked: dict[str, AdviceAnswer] = {}

    def under(self, **load: Any) -> AdviceAnswer:
        if str(load) not in self._asked:
            self._asked[str(load)] = self.trace.advise("h100-sxm", execution="fused", output=OUTPUT, **load)
        return self._asked[str(load)]


@pytest.fixture(scope="module", params=MODELS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(write_folder(tmp_path_factory.mktemp("model"), MODELS[request.param]))


def tpot_ns(ladder: Ladder) -> float:
    return sum(stage.top_ns / stage.runs for stage in ladder.stages if stage.phase == "decode")


def ttft_ns(ladder: Ladder) -> int:
    return sum(stage.top_ns for stage in ladder.stages if stage.phase != "decode")


def rung_ns(answer: AdviceAnswer, name: str) -> int:
    return sum(rung.time_ns for rung in answer.ladder.rungs if rung.name == name)


@pytest.mark.parametrize("load", [{"users": 16}, {"users": 1}, {"rate": "30/s"}], ids=str)
def test_the_times_under_a_load_are_those_of_serve(server: Server, load: dict[str, Any]) -> None:
    ladder = server.under(**load).ladder
    best = lpo.serve(server.trace, "1x h100-sxm", input=PROMPT, output=OUTPUT, **load).best
    assert best is not None
    assert tpot_ns(ladder) == pytest.approx(best.tpot.expected_s * 1e9, abs=len(ladder.stages))
    assert ttft_ns(ladder) == pytest.approx(best.ttft.expected_s * 1e9, abs=len(ladder.stages))


def test_rungs_of_a_load_add_up_to_the_nanosecond(server: Server) -> None:
    alone, loaded = server.under().ladder, server.under(users=16).ladder
    for stage in loaded.stages:
        assert stage.top_ns == stage.bottom_ns + sum(rung.time_ns for rung in stage.rungs)
    assert loaded.top_ns == loaded.bottom_ns + sum(rung.time_ns for rung in loaded.rungs)
    assert loaded.bottom_ns == alone.bottom_ns, "other requests do not change what one alone needs"
    added = sum(rung.time_ns for rung in loaded.rungs if rung.name in (QUEUE, PROMPTS, OTHERS))
    assert loaded.top_ns - alone.top_ns == added


def test_a_single_user_meets_no_other_prompt(server: Server) -> None:
    alone, some, crowd = server.under(users=1), server.under(users=16), server.under(users=32)
    assert rung_ns(alone, PROMPTS) == 0
    assert 0 < rung_ns(some, PROMPTS) < rung_ns(crowd, PROMPTS)
    assert rung_ns(alone, OTHERS) < 0.1 * rung_ns(crowd, OTHERS), "the longer context of a mean step alone"


def test_a_prompt_adds_less_than_it_takes_alone_to_the_steps_of_others(server: Server) -> None:
    """In a step `users / output` prompts are read on average, next to work that has read the weights anyway."""
    some = server.under(users=16)
    prefill = sum(stage.top_ns for stage in some.ladder.stages if stage.stage == "prefill")
    assert 0.2 < rung_ns(some, PROMPTS) / (OUTPUT - 1) / (16 / OUTPUT * prefill) < 1


def test_a_second_replica_takes_half_of_the_load(server: Server) -> None:
    load = Load(output_tokens=OUTPUT, users=32)
    setup = Setup(graphs=server.trace.graphs, hardware=find_hardware("h100-sxm"), execution=Execution.FUSED, load=load)
    replicas = CHANGES.get("second-replica").apply(setup)
    assert replicas is not None and replicas.devices == 2 and CHANGES.get("second-replica").apply(replicas) is None
    seconds = sum(seconds_of(part.wall) for part in Pricer().parts(replicas) if part.phase == "decode")
    assert seconds * 1e9 == pytest.approx(tpot_ns(server.under(users=16).ladder), abs=9)
    assert CHANGES.get("second-replica").apply(replace(setup, load=None)) is None, "alone it waits for nobody"
    assert CHANGES.get("larger-batch").apply(setup) is None, "the users are the batch"


def test_a_measurement_of_a_loaded_server_leaves_the_rest_unexplained(server: Server) -> None:
    plain = server.under(users=16).ladder
    measured = server.under(users=16, measured="tpot=12ms batch=16").ladder
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
def test_a_load_that_cannot_be_is_refused(server: Server, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        server.under(**asked)


def test_a_load_needs_an_engine_and_a_trace_of_one_request(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA)
    with pytest.raises(UsageError, match="one batch after the other"):
        lpo.trace(folder, prompt_tokens=9).advise("h100-sxm", users=4)
    with pytest.raises(UsageError, match="several sequences"):
        lpo.trace(folder, prompt_tokens=9, batch=2).advise("h100-sxm", execution="fused", users=4)
