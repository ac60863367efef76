"""The search for cells, on phases made by hand: where it cuts, what it asks, and what it leaves open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.function.search.cells import CellSearch, OpenRegion
from llm_perf_opt.sweeps.function.search.sampling import NoTracesLeft, Stride, Traces, corners, holds
from tests.sweeps.function.made_phases import BATCH, CONTEXT, Point, Variant, graph_of

DOMAIN = {BATCH: (1, 16), CONTEXT: (1, 8192)}


def search(
    variant: Callable[[Point], Variant], *, budget: int = 40, hints: tuple[int, ...] = (), chunks: tuple[int, ...] = ()
) -> CellSearch:
    traces = Traces(trace=lambda point: graph_of(point, variant(point)), budget=budget)
    return CellSearch(traces=traces, domain=DOMAIN, length=CONTEXT, hints=hints, chunks=chunks)


def lengths_of(found: CellSearch, batch: int) -> list[tuple[int, int]]:
    return [one.region[CONTEXT] for one in found.run() if one.region[BATCH][0] <= batch <= one.region[BATCH][1]]


def test_one_program_is_one_cell_beside_a_batch_of_one() -> None:
    plain = search(lambda point: Variant())
    found = list(plain.run())
    assert [one.region for one in found] == [
        {BATCH: (1, 1), CONTEXT: (1, 8192)},
        {BATCH: (2, 16), CONTEXT: (1, 8192)},
    ]
    assert plain.traces.count <= 20


@pytest.mark.parametrize("hints", [(), (4096,)])
def test_a_window_is_found_to_the_last_token(hints: tuple[int, ...]) -> None:
    windowed = search(lambda point: Variant(further_ops=point[CONTEXT] >= 4095), hints=hints)
    assert lengths_of(windowed, 1) == [(1, 4094), (4095, 8192)]
    assert lengths_of(windowed, 16) == [(1, 4094), (4095, 8192)]


def test_what_a_configuration_names_saves_a_bisection() -> None:
    def windowed(point: Point) -> Variant:
        return Variant(further_ops=point[CONTEXT] >= 4096)

    blind, named = search(windowed, budget=100), search(windowed, budget=100, hints=(4096,))
    assert lengths_of(blind, 2) == lengths_of(named, 2)
    assert named.traces.count + 6 < blind.traces.count


def test_one_length_that_differs_alone_is_found_where_a_configuration_names_it() -> None:
    alone = search(lambda point: Variant(further_ops=point[CONTEXT] == 1023), hints=(1024,), budget=80)
    assert lengths_of(alone, 2) == [(1, 1022), (1023, 1023), (1024, 8192)]


def test_a_boundary_that_only_large_batches_have_cuts_the_batch() -> None:
    found = list(search(lambda point: Variant(further_ops=point[BATCH] > 11)).run())
    assert {one.region[BATCH] for one in found} == {(1, 1), (2, 11), (12, 16)}
    assert not any(isinstance(one, OpenRegion) for one in found)


@pytest.mark.parametrize("chunk", [64, 256])
def test_lengths_without_a_remainder_are_a_cell_of_their_own(chunk: int) -> None:
    """As a scan in chunks that pads the last one: where there is nothing to pad it runs other ops."""
    chunked = search(lambda point: Variant(further_ops=point[CONTEXT] % chunk == 0), chunks=(64, 128, 256), budget=80)
    found = list(chunked.run())
    for length in (chunk - 1, chunk, 3 * chunk, 3 * chunk + 1, 8192):
        point = {BATCH: 5, CONTEXT: length}
        held = [one for one in found if holds(one.region, one.stride, point)]
        assert len(held) == 1
        assert not isinstance(held[0], OpenRegion)
        fresh = graph_of(point, Variant(further_ops=length % chunk == 0))
        assert same_run(held[0].program.graph_at(point), fresh) is None


def test_a_window_that_begins_at_a_multiple_of_a_chunk_is_no_chunk() -> None:
    windowed = search(lambda point: Variant(further_ops=point[CONTEXT] >= 4096), hints=(4096,), chunks=(64, 128, 4096))
    found = list(windowed.run())
    assert {one.region[CONTEXT] for one in found} == {(1, 4095), (4096, 8192)}
    assert all(one.stride is None and not isinstance(one, OpenRegion) for one in found)


def test_a_cell_keeps_its_random_points_when_it_is_cut() -> None:
    """Two in each cell with more than one batch, whatever was asked before; one with a batch of one."""
    plain = search(lambda point: Variant(further_ops=point[CONTEXT] >= 300))
    for cell in plain.run():
        assert not isinstance(cell, OpenRegion)
        inside = [one for one in plain._drawn if holds(cell.region, cell.stride, one)]
        assert len(inside) >= (1 if cell.region[BATCH] == (1, 1) else 2)
        assert all(one in cell.checked and one not in cell.program.samples for one in inside)


def test_a_program_that_changes_with_every_length_is_left_open_after_a_few_traces() -> None:
    looped = search(lambda point: Variant(further_ops=pow(point[CONTEXT], 3, 13)), budget=100)
    found = list(looped.run())
    open_ones = [one for one in found if isinstance(one, OpenRegion)]
    assert max(one.region[CONTEXT][1] for one in open_ones) == 8192
    assert "aten.relu.default" in str(open_ones[-1].why) or "ops" in str(open_ones[-1].why)
    assert looped.traces.count < 80


def test_a_small_budget_proves_the_largest_regions_first() -> None:
    found = list(search(lambda point: Variant(further_ops=point[CONTEXT] == 1), budget=22).run())
    proven = [one.region for one in found if not isinstance(one, OpenRegion)]
    assert {BATCH: (2, 16), CONTEXT: (2, 8192)} in proven
    assert all("no more allowed" in str(one.why) for one in found if isinstance(one, OpenRegion))


def test_a_point_that_another_phase_traced_costs_nothing() -> None:
    traces = Traces(trace=lambda point: graph_of(point, Variant()), budget=1, is_traced=lambda p: p[CONTEXT] == 7)
    for context in (7, 8, 8):
        traces.at({BATCH: 1, CONTEXT: context})
    assert traces.count == 1
    with pytest.raises(NoTracesLeft):
        traces.at({BATCH: 1, CONTEXT: 9})


@pytest.mark.parametrize(
    ("is_multiple", "expected"), [(True, [256, 1024]), (False, [201, 1100])], ids=["multiples", "all others"]
)
def test_corners_respect_a_stride(is_multiple: bool, expected: list[int]) -> None:
    stride = Stride(variable=CONTEXT, chunk=256, is_multiple=is_multiple)
    region = {BATCH: (2, 2), CONTEXT: (201, 1100)}
    assert [point[CONTEXT] for point in corners(region, stride)] == expected
    edges = {BATCH: (2, 2), CONTEXT: (256, 512)}
    assert [p[CONTEXT] for p in corners(edges, stride)] == ([256, 512] if is_multiple else [257, 511])
