from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.training.rank_memory import rank_memory
from llm_perf_opt.training.search import (
    FixedChoices,
    changes,
    fastest,
    largest_micro_batch,
    largest_rank,
    largest_sequence,
    made_faster,
    measured,
    plans_of,
    repaired,
)
from llm_perf_opt.training.step_time import StepClock
from llm_perf_opt.training.training_run import TrainingMethod, TrainingPlan, TrainingRun
from tests.training.shapes import run, shape


def fits(asked: TrainingRun) -> bool:
    return rank_memory(shape(), asked).taken <= asked.cluster.device.memory_bytes


def clock() -> StepClock:
    return StepClock(source_of(parse_cluster("8x h100-sxm"), "eager"))


def test_the_largest_micro_batch_fits_and_the_next_does_not() -> None:
    asked = run(sequence=2**20)
    most = largest_micro_batch(shape(), asked)
    assert 0 < most < 4096
    assert [fits(replace(asked, micro_batch=size)) for size in (most, most + 1)] == [True, False]


def test_the_longest_sequence_fits_and_the_next_does_not() -> None:
    asked = run(micro_batch=512)
    most = largest_sequence(shape(), asked)
    assert [fits(replace(asked, sequence=size)) for size in (most, most + 128)] == [True, False]


def test_only_adapters_have_a_largest_rank() -> None:
    assert largest_rank(shape(), run()) is None
    assert (largest_rank(shape(), run(method=TrainingMethod(kind="lora", rank=4))) or 0) > 4


def test_every_plan_uses_all_gpus_and_pipelines_are_for_several_nodes() -> None:
    node = list(plans_of(shape(), run(cluster=parse_cluster("8x h100-sxm"))))
    nodes = list(plans_of(replace(shape(), layers=8), run(cluster=parse_cluster("16x h100-sxm"))))
    assert {plan.gpus for plan in node} == {8}
    assert {plan.pp for plan in node} == {1}
    assert {plan.pp for plan in nodes} == {1, 2, 4}
    assert {plan.tp for plan in node} == {1, 2}  # two heads


def test_the_answer_is_the_fastest_of_those_that_fit() -> None:
    found = fastest(shape(), run(sequences=64), FixedChoices(), clock())
    assert all(candidate.fits for candidate in found)
    rates = [candidate.tokens_per_s for candidate in found]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


def test_what_is_fixed_is_not_searched() -> None:
    fixed = FixedChoices(recompute="full", micro_batch=2)
    found = fastest(shape(), run(sequences=64), fixed, clock())
    assert {(candidate.run.recompute, candidate.run.micro_batch) for candidate in found} == {("full", 2)}


def test_a_run_that_does_not_fit_says_what_makes_it_fit() -> None:
    asked = run(sequence=2**22, micro_batch=64, sequences=64)
    assert not fits(asked)
    found = repaired(shape(), asked)
    assert found is not None
    assert fits(found[-1].run)
    assert all(change.options.startswith("--") for change in changes(asked))


def test_a_run_that_nothing_makes_fit_says_so() -> None:
    assert repaired(shape(), run(sequence=2**40)) is None


def test_changes_that_make_a_run_faster_follow_one_after_the_other() -> None:
    slow = run(sequences=64, recompute="full", plan=TrainingPlan(gpus=1))
    begin = measured(shape(), slow, clock())
    made = made_faster(shape(), begin, clock(), is_plan_free=False)
    assert "--recompute none" in {each.change.options for each in made}
    at = begin
    for each in made:
        assert at.time is not None and each.made.time is not None and each.made.fits
        assert each.after_s == at.time.seconds - each.made.time.seconds
        assert each.after_s >= 0.01 * at.time.seconds, "what saves less is not told"
        again = measured(shape(), each.change.run, clock())
        assert again.time is not None and again.time.seconds == each.made.time.seconds, "priced as any run"
        at = each.made
    assert made[0].alone_s == made[0].after_s


def test_a_change_that_does_not_fit_is_not_told() -> None:
    most = largest_micro_batch(shape(), run(sequence=2**20))
    full = run(sequence=2**20, micro_batch=most, sequences=8 * most)
    made = made_faster(shape(), measured(shape(), full, clock()), clock(), is_plan_free=False)
    assert not {f"--micro-batch {2 * most}", f"--micro-batch {4 * most}"} & {each.change.options for each in made[:1]}


def test_a_run_without_a_time_has_no_faster_one() -> None:
    begin = replace(measured(shape(), run(), clock()), time=None)
    assert made_faster(shape(), begin, clock(), is_plan_free=True) == []
