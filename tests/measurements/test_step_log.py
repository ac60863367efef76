"""vLLM's log of iterations: steps, runs, and the factors by which they correct a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.measurements.measurement import Quantity
from llm_perf_opt.measurements.read import read_measured
from llm_perf_opt.measurements.serving_results import read_steps
from llm_perf_opt.serving.capacity.measured_server import corrected, measured_table, step_factors
from llm_perf_opt.serving.capacity.outcome import outcome, slower
from llm_perf_opt.serving.capacity.replay_report import Banded
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface
from tests.serving.capacity.capacity_replay import REPLAYED


def _line(number: int, prompts: int, prompt_tokens: int, decoding: int, milliseconds: float) -> str:
    return (
        f"(APIServer pid=1) INFO 11-15 15:37:56 [loggers.py:199] Engine 000: Iteration({number}): {prompts} context "
        f"requests, {prompt_tokens} context tokens, {decoding} generation requests, {decoding} generation tokens, "
        f"iteration elapsed time: {milliseconds:.2f} ms, CPU KV cache usage: 0.1%"
    )


LOG = "\n".join(
    ["some other line", *(_line(at, 0, 0, 8, 20 + at) for at in range(5)), *(_line(9, 1, 600, 0, 90) for _ in range(3))]
)
TABLE = StepTable(
    tokens=Curve(at=(1.0, 512.0, 1024.0), seconds=(0.010, 0.010, 0.030)),
    head=Curve(at=(1.0, 512.0), seconds=(0.001, 0.001)),
    decoding=Surface(across=(1.0, 64.0), along=(1.0, 64.0), seconds=((0.0, 0.0), (0.0, 0.0))),
    prompts=Surface(across=(1.0, 1024.0), along=(1.0, 1024.0), seconds=((0.002, 0.002), (0.002, 0.002))),
    padded_to=(512,),
)


def test_a_run_is_the_median_of_steps_that_decode_together(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(LOG)
    (run,) = read_measured(file).runs
    time = run.time_of(Quantity.TPOT)
    assert time is not None
    assert run.batch == 8
    assert time.seconds == pytest.approx(0.022)
    assert len(read_steps(LOG.encode())) == 8


def test_a_log_without_steps_that_decode_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(_line(0, 1, 600, 0, 90))
    with pytest.raises(UsageError, match="no number of sequences"):
        read_measured(file)


def test_measured_steps_correct_each_stage_by_its_median() -> None:
    steps = read_steps(LOG.encode())
    factors = step_factors(steps, TABLE, context_tokens=10)
    assert factors.decode == pytest.approx(0.022 / 0.011)
    assert factors.prompts == pytest.approx(0.090 / TABLE.seconds(0, 0, [(600, 0)]))
    assert (factors.decode_steps, factors.prompt_steps) == (5, 3)
    better = corrected(TABLE, factors)
    assert better.seconds(8, 80) == pytest.approx(0.022)
    again = step_factors(steps, better, context_tokens=10)
    assert again.decode == pytest.approx(1.0)
    assert again.prompts == pytest.approx(1.0, rel=0.05)  # but for the head, which decodes too
    assert "decode x 2" in next(iter(factors.notes())).text


def test_batches_of_several_sizes_have_a_factor_each() -> None:
    eager = replace(TABLE, padded_to=())
    by_batch = {1: 2.0, 4: 1.5, 16: 1.0}
    lines = [_line(0, 0, 0, batch, 11 * factor) for batch, factor in by_batch.items() for _ in range(3)]
    steps = read_steps("\n".join(lines + [_line(1, 1, 600, 0, 90)] * 3).encode())
    factors = step_factors(steps, eager, context_tokens=10)
    assert dict(factors.by_batch) == pytest.approx(by_batch)
    assert factors.spread == pytest.approx(0.0)
    better = corrected(eager, factors)
    for batch, factor in by_batch.items():
        assert better.seconds(batch, 10 * batch) == pytest.approx(0.011 * factor)
    assert factors.of_decode(2) == pytest.approx((2.0 * 1.5) ** 0.5)
    assert factors.of_decode(64) == pytest.approx(1.0)
    assert factors.most_decoding == 16
    assert better.tokens(17) == pytest.approx(eager.tokens(17) * factors.of_prompts), "beyond are tokens of prompts"
    assert "from x 2 in batches of 1 to x 1 in batches of 16" in next(iter(factors.notes())).text


def test_steps_too_few_for_a_factor_have_no_part_in_the_spread() -> None:
    steps = read_steps(LOG.encode())
    decoding = [step for step in steps if step.only_decodes]
    prompts = [step for step in steps if step.prompts][:2]
    alone, beside = (step_factors(some, TABLE, context_tokens=10) for some in (decoding, decoding + prompts))
    assert beside.prompts is None
    assert beside.spread == alone.spread


def test_a_stage_that_was_not_measured_takes_the_factor_of_the_other() -> None:
    only = [step for step in read_steps(LOG.encode()) if step.only_decodes]
    factors = step_factors(only, TABLE, context_tokens=10)
    assert factors.prompts is None
    assert corrected(TABLE, factors).prompts.seconds[0][0] == pytest.approx(0.004)
    with pytest.raises(UsageError, match="correct nothing"):
        step_factors(only[:2], TABLE, context_tokens=10)


def test_a_measured_median_stands_beside_the_replayed_one(tmp_path: Path) -> None:
    one = replace(REPLAYED)
    banded = Banded(expected=outcome([one]), low=outcome([slower(one, 0.5)]), high=outcome([slower(one, 2.0)]))
    runs = read_measured("ttft=1.25s tpot=5s").runs
    first, token = measured_table(runs, banded).rows
    assert first[1:] == ("TTFT", 1.25, 1.0, 0.5, 2.0, 0.8, "yes")
    assert token[-1] == "no"


RUNS = Path(__file__).parents[1] / "facts" / "vllm_runs"


def test_the_log_of_a_real_server_gives_the_steps_of_its_requests() -> None:
    steps = read_steps((RUNS / "step_log.txt").read_bytes())
    prompts = [step for step in steps if step.prompts]
    assert {step.prompt_tokens for step in prompts} == {64}
    (run,) = read_measured(RUNS / "step_log.txt").runs
    time = run.time_of(Quantity.TPOT)
    assert time is not None
    assert run.batch == 1
    assert (len(steps), len(prompts)) == (38, 4)
    assert time.seconds == pytest.approx(0.016395)  # between the 17th and the 18th of 34 steps, 9.86 to 35.97 ms


def test_the_requests_of_a_real_run_can_be_replayed() -> None:
    traffic = as_traffic(RUNS / "bench_serve.json")
    assert len(traffic.requests) == 20
    assert {(one.prompt_tokens, one.output_tokens) for one in traffic.requests} == {(64, 12)}
    assert 19 / traffic.requests[-1].arrival_s == pytest.approx(2.0, rel=0.1)  # two a second
    assert traffic.concurrency is None
