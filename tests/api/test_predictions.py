"""One run on several devices: each row is the prediction of that device alone, and what is shared is found once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.necessary import anatomy
from tests.api.tiny_folders import BF16, HIDDEN, LAYERS, llama_folder

LLAMA_1B = Path(__file__).parent.parent / "facts/deployment/configs/llama32-1b"
# 128,256 x 2,048 tied embedding; 16 layers of (2,048 x (2,048 + 512 + 512) + 2,048^2 + 3 x 2,048 x 8,192 + 2 norms)
LLAMA_1B_PARAMETERS = 128_256 * 2048 + 16 * (2048 * 3072 + 2048**2 + 3 * 2048 * 8192 + 2 * 2048) + 2048


@pytest.fixture(scope="module")
def tiny() -> lpo.Trace:
    return lpo.trace("deepseek-ocr-tiny")


@pytest.fixture(scope="module")
def llama() -> lpo.Trace:
    return lpo.trace(LLAMA_1B, prompt_tokens=16)


def test_every_row_is_the_prediction_of_that_device_alone(tiny: lpo.Trace) -> None:
    found = tiny.predict_each(["l4", "h100-sxm", "l4"])
    assert sorted(one.device for one in found.devices) == ["h100-sxm", "l4"]
    for row in found.devices:
        alone = tiny.predict(row.device)
        stages = [stage for stage in alone.stages if stage.phase != "decode"]
        assert row.speed.prefill is not None
        assert row.speed.prefill.high == pytest.approx(sum(stage.high_s for stage in stages), rel=1e-12)
        assert (row.fits, row.needed_bytes, row.rates) == (alone.fits, alone.needed_bytes, alone.rates)


def test_the_anatomy_of_a_trace_is_found_once_for_all_devices(tiny: lpo.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`needed_positions` runs once in each anatomy: twice for the two phases, however many devices."""
    asked: list[str] = []
    known: Callable[[CallGraph], object] = anatomy.needed_positions

    def counting(graph: CallGraph) -> object:
        asked.append(graph.phase)
        return known(graph)

    monkeypatch.setattr(anatomy, "needed_positions", counting)
    tiny.predict_each("l4,l40s,h100-sxm,a100-sxm-80g")
    assert sorted(asked) == ["decode", "prefill"]


def test_nothing_is_kept_outside_of_a_scope() -> None:
    calls: list[object] = []

    @found_once
    def of(graph: object, much: int = 1) -> int:
        calls.append(graph)
        return len(calls) + much

    one = object()
    assert of(one) != of(one)
    with shared_work():
        kept = of(one)
        with shared_work():
            assert of(one) == kept
        assert of(one, 2) != kept
        assert of(object()) != kept
    assert of(one) != kept


def test_a_price_gives_the_cost_of_a_million_tokens(tiny: lpo.Trace) -> None:
    found = tiny.predict_each("l4", prices={"l4": 0.72})
    (row,) = found.devices
    assert row.speed.step is not None
    per_token_s = row.speed.step.expected
    assert per_token_s is not None
    assert row.cost_per_million_tokens == pytest.approx(0.72 / 3600 * per_token_s * 1e6)
    assert row.cost_per_million_pages is None  # nobody said how many tokens a page has
    with pytest.raises(UsageError, match="none of the devices"):
        tiny.predict_each("l4", prices={"h100-sxm": 2.0})


def test_whole_pages_count_prefill_and_all_steps(tiny: lpo.Trace) -> None:
    (row,) = tiny.predict_each("l4", decode_steps=32).devices
    run = tiny.predict("l4", decode_steps=32).run
    assert run is not None
    assert run.low_s is not None
    assert row.speed.pages_per_s is not None
    assert row.speed.pages_per_s.high == pytest.approx(1 / run.low_s)
    assert row.speed.pages_per_day_and_device is not None
    assert row.speed.pages_per_day_and_device.high == pytest.approx(86_400 / run.low_s)


def test_a_page_costs_what_its_tokens_cost(tiny: lpo.Trace) -> None:
    """32 tokens a page, prefill included: a million pages cost 32 times a million tokens."""
    (row,) = tiny.predict_each("l4", decode_steps=32, prices={"l4": 0.72}).devices
    (alone,) = tiny.predict_each("l4", prices={"l4": 0.72}).devices
    assert row.cost_per_million_tokens is not None
    assert row.cost_per_million_pages == pytest.approx(32 * row.cost_per_million_tokens)
    assert alone.cost_per_million_tokens is not None
    assert alone.cost_per_million_tokens < row.cost_per_million_tokens, "decode alone"


def test_what_does_not_fit_says_so_first_with_how_many_and_in_which_format(llama: lpo.Trace) -> None:
    """Weights of 2.3 GiB on a device of 2 GiB: two of them, or fp8, which halves all but the embedding."""
    weights = 2 * LLAMA_1B_PARAMETERS
    assert 2 * 2**30 < weights < 4 * 2**30
    small = replace(find_device("l4"), id="l4-small", name="L4 of 2 GiB", memory_bytes=2 * 2**30)
    found = llama.predict(small)
    assert found.fits is False
    assert found.shortage is not None
    assert found.shortage.short_bytes == found.needed_bytes - small.memory_bytes  # type: ignore[operator]
    assert found.shortage.needed_bytes == pytest.approx(weights, rel=0.01)
    assert found.shortage.devices == 2
    name, needed = found.shortage.formats[0]
    halved = 16 * (2048 * 3072 + 2048**2 + 3 * 2048 * 8192)
    assert (name, needed) == ("fp8", pytest.approx(weights - halved, rel=0.01))
    first = found.report().answer[0]
    assert first.startswith("Does not fit on L4 of 2 GiB: 2.3")
    assert "2 x l4-small at least, or one with --weights fp8." in first
    rows = llama.predict_each([small, "l4"]).devices
    assert [(row.device, row.fits) for row in rows] == [("l4", True), ("l4-small", False)]


def test_names_of_devices(tiny: lpo.Trace) -> None:
    with pytest.raises(UsageError, match="No device is named"):
        tiny.predict_each(" , ")
    with pytest.raises(UsageError):
        tiny.predict_each("l4,no-such-device")
    assert len(tiny.predict_each("all", rates="data-sheet").devices) > 40


def test_devices_that_hold_a_split_model_are_counted_for_all_its_ranks(tmp_path: Path) -> None:
    """Each of two ranks has half of the weights. Devices with room for a quarter of them: four; a byte less: five."""
    split = lpo.trace(llama_folder(tmp_path / "llama"), prompt_tokens=16, tp=2)
    prefill = split.graphs[0]
    rank_weights = sum(prod(one.meta.shape) * BF16 for one in prefill.parameters if not one.is_buffer)
    replicated = (2 * LAYERS + 1) * HIDDEN * BF16  # norms
    needed = split.predict("h100-sxm").needed_bytes
    assert needed is not None
    room = (rank_weights - replicated) // 2  # for split weights: what one of four ranks would have
    small = replace(find_device("h100-sxm"), id="small", memory_bytes=needed - rank_weights + replicated + room)
    short = split.predict(small).shortage
    assert short is not None
    assert (short.ranks, short.devices) == (2, 4)
    first = split.predict(small).answer[0]
    assert first.startswith(f"Does not fit on 2 x {small.name}: a rank needs ")
    assert "; 4 x small at least" in first
    smaller = replace(small, memory_bytes=small.memory_bytes - 1)
    assert split.predict(smaller).shortage.devices == 5  # type: ignore[union-attr]
    one_less = replace(small, memory_bytes=needed - 1)
    assert split.predict(one_less).shortage.devices == 3  # type: ignore[union-attr]
    assert "or these 2 with --weights fp8." in split.predict(one_less).answer[0]


def test_a_pipeline_fits_where_its_largest_rank_does(tmp_path: Path) -> None:
    """The last of two stages has two of three layers and the head: the first one alone would fit."""
    staged = lpo.trace(llama_folder(tmp_path / "llama"), prompt_tokens=16, pp=2)
    first, last = (run_memory(kind.graphs).total_bytes for kind in staged.ranks)
    assert first is not None
    assert last is not None
    assert first != last
    between = replace(find_device("h100-sxm"), memory_bytes=(first + last) // 2)
    found = staged.predict(between)
    assert found.needed_bytes == max(first, last)
    assert found.fits is False


def test_a_device_that_does_not_hold_the_run_has_no_cost(llama: lpo.Trace) -> None:
    small = replace(find_device("l4"), id="l4-small", memory_bytes=2 * 2**30)
    found = llama.predict_each([small, "l4"], prices={"l4-small": 0.01, "l4": 0.72})
    assert [(row.device, row.cost_per_million_tokens is None) for row in found.devices] == [
        ("l4", False),
        ("l4-small", True),
    ]
    assert found.answer[2].startswith("Cheapest that fits: l4,")


@pytest.mark.parametrize(("weights", "is_proposed"), [(None, True), ("fp8", False)])
def test_narrower_weights_are_proposed_where_they_are_not_narrow_yet(weights: str | None, is_proposed: bool) -> None:
    answer = lpo.trace("Qwen/Qwen2.5-3B", prompt_tokens=16, weights=weights).predict("l4", execution="fused").answer
    assert "Next: a larger --batch" in answer[-1]
    assert ("--weights fp8" in answer[-1]) is is_proposed
