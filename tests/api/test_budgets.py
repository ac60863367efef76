"""Budgets on memory, cache, bound and time, against figures worked out by hand or asked for by another way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.comparison import ComparisonAnswer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from tests.api.tiny_folders import BF16, HIDDEN, LAYERS, llama_folder

SHORT, LONG = 16, 24
CACHE_OF_A_TOKEN = 2 * LAYERS * HIDDEN // 2 * BF16  # keys and values; half as many key heads as heads


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[lpo.Trace, lpo.Trace]:
    folder = llama_folder(tmp_path_factory.mktemp("models") / "llama")
    return lpo.trace(folder, prompt_tokens=SHORT), lpo.trace(folder, prompt_tokens=LONG)


def checked(runs: tuple[lpo.Trace, lpo.Trace], *budgets: str, **options: object) -> ComparisonAnswer:
    return runs[0].compare(runs[1], budgets=budgets, **options)  # type: ignore[arg-type]


def test_the_cache_is_keys_and_values_of_every_layer_and_token(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    found = checked(runs, f"cache=={LONG * CACHE_OF_A_TOKEN}B", f"cache<=+{8 * CACHE_OF_A_TOKEN}", "cache<=+49%")
    assert [one.holds for one in found.budgets] == [True, True, False]
    assert found.budgets[0].left == SHORT * CACHE_OF_A_TOKEN


def test_peak_memory_is_what_the_memory_question_says(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    prefill, decode = runs[1].memory().phases
    for text, expected in (
        ("prefill.peak_memory<=20GiB", prefill.total_bytes),
        ("decode.total.peak_memory<=20GiB", decode.total_bytes),
        ("peak_memory<=20GiB", runs[1].memory().total_bytes),
    ):
        [one] = checked(runs, text).budgets
        assert (one.right, one.holds, one.limit) == (expected, True, 20 * 2**30)
    assert not checked(runs, f"peak_memory<{runs[1].memory().total_bytes}").budgets[0].holds


def test_bound_and_times_are_those_of_a_prediction(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    predicted = runs[1].predict("h100-sxm", rates="data-sheet", execution="fused")
    budgets = ("bound<=1s", "high<=1s", "low<=1s")
    found = checked(runs, *budgets, device="h100-sxm", rates="data-sheet")
    expected = [predicted.lower_bound_s, predicted.high_s, predicted.low_s]
    assert [one.right for one in found.budgets] == pytest.approx(expected)
    assert found.budgets_broken == ()
    tight = f"decode.bound<={predicted.stages[1].lower_bound_s * 0.99 * 1e9}ns"  # type: ignore[operator]
    assert checked(runs, tight, device="h100-sxm").budgets_broken == (tight,)


def test_an_expected_time_that_a_data_sheet_has_not_is_no_zero(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    found = checked(runs, "decode.time<=1s", device="h100-sxm", rates="data-sheet")
    assert found.budgets_broken == ("decode.time<=1s",)
    assert "gives low and high estimates, but no expected time" in found.budgets[0].why
    assert "Budget not checked: decode.time<=1s: B is not known" in str(found.report().notes)


def test_measured_kernels_have_an_expected_time(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    pytest.importorskip("aiconfigurator_core", reason="the tables of measured kernels are not installed")
    [one] = checked(runs, "decode.time<=+3%", device="h100-sxm").budgets
    assert one.right == pytest.approx(runs[1].predict("h100-sxm", execution="fused").stages[1].expected_s)


def test_a_device_shows_the_times_of_both(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    report = runs[0].compare(runs[1], device="h100-sxm", rates="data-sheet").report()
    table = next(table for table in report.tables if table.title.startswith("Times on"))
    assert table.footer is not None
    assert table.footer[:2] == ("all", "total")
    assert table.footer[3] == pytest.approx(runs[1].predict("h100-sxm", rates="data-sheet").lower_bound_s)


def test_a_time_needs_a_device(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    with pytest.raises(UsageError, match="needs a device"):
        checked(runs, "decode.time<=+3%")


def test_the_device_that_both_were_made_for_is_the_default(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "llama")
    one = lpo.trace(folder, prompt_tokens=SHORT, device="l4")
    [found] = one.compare(one, budgets=["decode.bound<=+0"]).budgets
    assert found.holds
    assert found.right == pytest.approx(one.predict("l4").stages[1].lower_bound_s)
    assert find_device("l4").bandwidth_bytes_per_s < find_device("h100-sxm").bandwidth_bytes_per_s


def test_without_a_decode_step_the_cache_is_not_known(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    prefill = replace(runs[0], graphs=runs[0].graphs[:1])
    [found] = prefill.compare(prefill, budgets=["cache<=+0"]).budgets
    assert not found.holds
    assert "there is no decode step to read the cache from" in found.why


def test_what_a_stopped_run_left_out_is_not_known(runs: tuple[lpo.Trace, lpo.Trace]) -> None:
    stopped = replace(runs[1], graphs=(replace(runs[1].graphs[0], stopped_in="lm_head"), runs[1].graphs[1]))
    found = runs[0].compare(stopped, budgets=["flops<=1e30", "prefill.peak_memory<=1TiB", "decode.flops<=1e30"])
    assert [one.holds for one in found.budgets] == [False, False, True]
    assert "stopped in lm_head" in found.budgets[0].why
