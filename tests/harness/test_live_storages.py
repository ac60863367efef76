"""The tracker of a real run, held to numbers worked out by hand: births, deaths, views, and what does not count."""

from __future__ import annotations

import gc

import torch
import torch.nn.functional as F

from llm_perf_opt.harness.op_watch import LiveStorages

ROW = 4 * 1000  # bytes of 1000 floats


def test_a_tensor_counts_until_its_last_reference_is_gone() -> None:
    with LiveStorages() as live:
        x = torch.zeros(1000)
        y = x + 1
        del x
        y = y + 1
        del y
        torch.ones(1)
    assert list(live.live_bytes) == [ROW, 2 * ROW, 2 * ROW, 4]
    assert (live.peak_bytes, live.peak_op) == (2 * ROW, "aten.add.Tensor")


def test_a_view_holds_the_memory_it_looks_at() -> None:
    with LiveStorages() as live:
        x = torch.zeros(1000)
        first = x[:1]
        del x
        torch.ones(1)
    assert first.shape == (1,)
    assert live.live_bytes[-1] == ROW + 4


def test_weights_inputs_and_what_is_written_in_place_do_not_count() -> None:
    weight, given = torch.zeros(10, 1000), torch.zeros(1, 1000)
    with LiveStorages() as live, torch.no_grad():
        given.add_(1)
        F.linear(given, weight)
    assert live.peak_bytes == 4 * 10


def test_a_given_tensor_stays_foreign_when_a_view_of_it_comes_first() -> None:
    given = torch.zeros(1000)
    with LiveStorages() as live:
        given.view(10, 100).view(1000).mul_(2)
    assert live.peak_bytes == 0


def test_what_a_phase_was_given_counts_until_it_is_gone() -> None:
    given = {"cache": [torch.zeros(1000)], "ids": torch.zeros(500)}
    with LiveStorages(given) as live:
        longer = torch.cat([given["cache"].pop(), torch.zeros(1)])  # type: ignore[attr-defined]
        longer.add_(1)
    assert list(live.live_bytes) == [ROW + 4 + ROW // 2, 2 * ROW + 8 + ROW // 2, ROW + 4 + ROW // 2]


def test_temporaries_inside_a_composite_op_are_seen() -> None:
    """The matmul of a stack of matrices with a transposed one copies the transposed one first."""
    left, right = torch.zeros(2, 3, 10, 10), torch.zeros(10, 3, 2, 10).permute(2, 1, 0, 3)
    with LiveStorages() as live:
        left @ right
    assert live.peak_bytes == 2 * left.numel() * 4


def test_several_outputs_count_once_each_and_nested_results_too() -> None:
    with LiveStorages() as live:
        values, indices = torch.zeros(1000).sort()
    assert live.peak_bytes == 3 * ROW + ROW  # the input made here, the values, and indices of 8 bytes
    assert values.shape == indices.shape


def test_memory_that_was_freed_can_be_used_again_without_being_taken_for_the_old() -> None:
    gc.collect()
    gc.freeze()  # each collection below looks at what the loop made, not at all that other tests left
    with LiveStorages() as live:
        for _ in range(50):
            torch.zeros(1000)
            gc.collect()
    assert set(live.live_bytes) == {ROW}


def test_before_any_op_there_is_no_peak() -> None:
    live = LiveStorages()
    assert (live.peak_bytes, live.peak_op) == (0, None)
