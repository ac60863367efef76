"""The ladder: its rungs add up, its ends are what `trace --device` prints, and no state rises above the one before."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.advice.ladder import ENGINE, EXPERTS, HOST, SCORES, UNEXPLAINED, Rung, StageLadder
from llm_perf_opt.api.advise import AdviceAnswer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.stage_work import stage_works
from tests.models.huggingface.folders import LLAVA, MIXTRAL, write_folder

pytest.importorskip("transformers", reason="the traced models are built by transformers, an optional extra")

DEVICES = ("rtx-5090", "h100-sxm", "mi300x", "tpu-v5e")  # scaled tables, tables of its own, recordings, a data sheet
MODELS: dict[str, Callable[[Path], lpo.Trace]] = {
    "ocr": lambda _: lpo.trace("deepseek-ocr-tiny"),
    "experts": lambda folder: lpo.trace(write_folder(folder, MIXTRAL), prompt_tokens=40, attention="eager"),
    "pictures": lambda folder: lpo.trace(write_folder(folder, LLAVA), image="32x32", prompt_tokens=8),
    "no prompt alone": lambda folder: lpo.trace(write_folder(folder, MIXTRAL), prompt_tokens=9, decode_steps=3),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lpo.Trace]:
    return {name: make(tmp_path_factory.mktemp("model")) for name, make in MODELS.items()}


def ns(low: float, high: float, expected: float | None) -> int:
    return round(1e9 * (math.sqrt(low * high) if expected is None else expected))


def tops(prediction: lpo.PredictionAnswer) -> dict[tuple[str, str], int]:
    return {(one.phase, one.name): ns(one.low_s, one.high_s, one.expected_s) for one in prediction.stages}


@pytest.fixture(scope="module", params=[(model, device) for model in MODELS for device in DEVICES], ids=" on ".join)
def asked(request: pytest.FixtureRequest, traces: dict[str, lpo.Trace]) -> tuple[lpo.Trace, str, AdviceAnswer]:
    model, device = request.param
    return traces[model], device, traces[model].advise(device, output=20)


def test_rungs_and_bound_add_up_to_the_nanosecond(asked: tuple[lpo.Trace, str, AdviceAnswer]) -> None:
    ladder = asked[2].ladder
    for stage in ladder.stages:
        assert stage.top_ns == stage.bottom_ns + sum(rung.time_ns for rung in stage.rungs)
        assert stage.top_bytes is not None and stage.bottom_bytes is not None
        assert stage.top_bytes == stage.bottom_bytes + sum(rung.bytes_moved or 0 for rung in stage.rungs)
    assert ladder.top_ns == ladder.bottom_ns + sum(rung.time_ns for rung in ladder.rungs)


def test_both_ends_and_the_engine_are_what_trace_prints(asked: tuple[lpo.Trace, str, AdviceAnswer]) -> None:
    trace, device, answer = asked
    eager, fused = (trace.predict(device, execution=how) for how in ("eager", "fused"))
    found = {(one.phase, one.stage): one for one in answer.ladder.stages}
    assert {key: one.top_ns for key, one in found.items()} == tops(eager)
    assert {key: one.engine_ns for key, one in found.items()} == tops(fused)
    for stage in eager.stages:
        assert stage.lower_bound_s is not None
        assert found[stage.phase, stage.name].bottom_ns == round(stage.lower_bound_s * 1e9)


def test_no_rung_is_below_zero(asked: tuple[lpo.Trace, str, AdviceAnswer]) -> None:
    assert [rung for stage in asked[2].ladder.stages for rung in stage.rungs if rung.time_ns < 0] == []


def test_bytes_at_the_top_are_those_of_the_kernels(traces: dict[str, lpo.Trace]) -> None:
    trace = traces["experts"]
    for stage in trace.advise("h100-sxm").ladder.stages:
        (work,) = (work for graph in trace.graphs for work in stage_works(graph) if graph.phase == stage.phase)
        assert stage.top_bytes == sum(
            (kernel.bytes_moved - kernel.avoidable_bytes) * count for kernel, count in work.kernels.items()
        )


def test_no_change_that_is_told_loses_time(asked: tuple[lpo.Trace, str, AdviceAnswer]) -> None:
    answer = asked[2]
    for changes in (answer.changes, answer.in_code):
        left = answer.written_s
        for change in changes:
            assert change.after_s > 0
            assert change.left_s == pytest.approx(left - change.after_s, rel=1e-9)
            assert change.low_s <= change.after_s <= change.high_s
            left = change.left_s


def test_without_rules_the_kernels_are_those_of_the_code(traces: dict[str, lpo.Trace]) -> None:
    for trace in traces.values():
        for graph in trace.graphs:
            kernels = fused_kernels(graph, rules=frozenset())
            assert all(kernels[work.name] == work.kernels for work in stage_works(graph))


def test_each_cause_has_its_rung_where_the_code_has_it(traces: dict[str, lpo.Trace]) -> None:
    eager = {rung.name: rung for rung in traces["ocr"].advise("h100-sxm").ladder.rungs}
    assert {HOST, EXPERTS, SCORES} <= eager.keys(), "a loop over experts, and scores that are written"
    assert "layers" in eager[EXPERTS].families
    plain = {rung.name for rung in traces["no prompt alone"].advise("h100-sxm").ladder.rungs}
    assert not {EXPERTS, SCORES} & plain, "one grouped matmul, and attention in one kernel"


def test_with_an_engine_the_ladder_begins_at_its_time(traces: dict[str, lpo.Trace]) -> None:
    answer = traces["experts"].advise("h100-sxm", execution="fused")
    assert all(stage.top_ns == stage.engine_ns for stage in answer.ladder.stages)
    assert not {HOST, ENGINE, EXPERTS} & {rung.name for rung in answer.ladder.rungs}
    assert answer.in_code == ()
    assert "engine" not in {change.name for change in answer.changes}


def test_a_measured_step_begins_the_ladder_and_the_rest_is_a_rung(traces: dict[str, lpo.Trace]) -> None:
    trace = traces["experts"]
    plain = trace.advise("h100-sxm").ladder
    measured = trace.advise("h100-sxm", measured="tpot=12ms").ladder
    predicted = sum(stage.top_ns for stage in plain.stages if stage.phase == "decode")
    assert sum(stage.top_ns for stage in measured.stages if stage.phase == "decode") == 12_000_000
    (rest,) = (rung for stage in measured.stages for rung in stage.rungs if rung.name == UNEXPLAINED)
    assert rest.time_ns == 12_000_000 - predicted
    assert measured.top_ns == measured.bottom_ns + sum(rung.time_ns for rung in measured.rungs)


def test_a_measurement_tells_what_a_launch_costs_where_the_host_is_the_bottleneck(traces: dict[str, lpo.Trace]) -> None:
    trace = traces["experts"]
    (plain,) = (stage for stage in trace.advise("h100-sxm").ladder.stages if stage.phase == "decode")
    answer = trace.advise("h100-sxm", output=20, measured=f"tpot={plain.top_ns * 0.9e-6}ms")
    measured = answer.ladder
    assert answer.changes[0].name == "engine"
    assert answer.changes[0].after_s < measured.top_ns * 1e-9, "no change saves more than was measured"
    (decode,) = (stage for stage in measured.stages if stage.phase == "decode")
    assert decode.top_ns == round(0.9 * plain.top_ns)
    assert [rung.name for rung in measured.rungs if rung.name == UNEXPLAINED] == []
    waited = {stage: next(rung.time_ns for rung in stage.rungs if rung.name == HOST) for stage in (plain, decode)}
    assert waited[plain] - waited[decode] == plain.top_ns - decode.top_ns


def test_a_measurement_of_another_batch_is_refused(traces: dict[str, lpo.Trace]) -> None:
    with pytest.raises(UsageError, match="16 sequences were measured, and 1 are traced"):
        traces["experts"].advise("h100-sxm", measured="tpot=12ms batch=16")


def test_the_prompt_gives_the_first_token(traces: dict[str, lpo.Trace]) -> None:
    one, two = (traces["experts"].advise("h100-sxm", output=tokens).ladder for tokens in (1, 2))
    assert one.top_ns == sum(stage.top_ns for stage in one.stages if stage.phase != "decode")
    assert two.top_ns == sum(stage.top_ns for stage in two.stages)


def test_a_request_counts_each_step_once(traces: dict[str, lpo.Trace]) -> None:
    one, many = (traces["no prompt alone"].advise("h100-sxm", output=tokens) for tokens in (3, 6))
    steps = sum(stage.top_ns for stage in one.ladder.stages if stage.phase == "decode")
    assert many.ladder.top_ns - one.ladder.top_ns == steps, "the phase holds three steps"


def test_a_picture_has_a_colour_for_the_rung_that_takes_most_of_a_box(traces: dict[str, lpo.Trace]) -> None:
    answer = traces["ocr"].advise("h100-sxm")
    prefill, _ = (chapter.graph for chapter in answer.report().chapters)
    assert prefill is not None
    colours = {box.path: box.stage for root in prefill.roots for box in root.walk()}
    (experts,) = (stage for path, stage in colours.items() if path.endswith("mlp.experts.[0-7]"))
    assert experts.startswith(EXPERTS)
    (told,) = (
        rung
        for stage in answer.ladder.stages
        for rung in stage.rungs
        if rung.name == EXPERTS and stage.phase == "prefill"
    )
    assert format_seconds(told.time_ns * 1e-9) in experts, "the legend says what the ladder says"
    assert answer.summary().chapters == ()
    assert traces["ocr"].advise("h100-sxm", execution="fused").report().chapters == (), "an engine has fused it all"


def test_rungs_that_do_not_add_up_are_refused() -> None:
    rung = Rung(name=HOST, time_ns=3)
    with pytest.raises(ValueError, match="1 ns short"):
        StageLadder(phase="decode", stage="decode", top_ns=10, rungs=(rung,), bottom_ns=6, engine_ns=8)


def test_two_replicas_answer_at_the_price_of_one(tmp_path: Path) -> None:
    """Twice the devices generate twice the tokens; a plan that shares one batch pays for all of its ranks."""
    folder = write_folder(tmp_path, MIXTRAL)
    alone, replicas = (lpo.trace(folder, prompt_tokens=9, dp=dp).advise("h100-sxm", output=20) for dp in (1, 2))
    assert replicas.price_per_million is not None
    assert replicas.price_per_million == alone.price_per_million
