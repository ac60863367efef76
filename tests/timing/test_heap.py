from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.timing.calibrated_rates import Heap, fresh_bytes_by_op
from tests.costs.made_kinds import kind, tensor

MIB = 2**20
X = tensor(1)
MAKE = kind("aten.zeros.default", {}, X, output_aliases=(-1,))


def run_of(*steps: tuple[int, int]) -> CallGraph:
    """Each step is one op that makes a block of this many bytes, which lives for this many ops."""
    run = CallGraphBuilder()
    ends: dict[int, list[int]] = {}
    for op, (size, life) in enumerate(steps):
        for token in ends.get(op, ()):
            run.free(token)
        run.allocate(op + 1, size)
        run.op(MAKE, (), (op + 1,))
        ends.setdefault(op + life, []).append(op + 1)
    for op in sorted(ends):
        if op >= len(steps):
            for token in ends[op]:
                run.free(token)
    return run.finish(model="m", phase="p", tracer="made", workload={}, stages=(), runtime={}, library_versions={})


def fresh_mib(*steps: tuple[int, int]) -> list[int]:
    return [round(size / MIB) for size in fresh_bytes_by_op(run_of(*steps))]


def test_a_small_block_is_handed_out_again() -> None:
    assert fresh_mib((20 * MIB, 1), (20 * MIB, 1), (20 * MIB, 1)) == [0, 0, 0]


def test_a_large_block_is_taken_from_the_system_each_time() -> None:
    assert fresh_mib((100 * MIB, 1), (100 * MIB, 1)) == [100, 100]


def test_a_large_block_that_fits_into_free_memory_is_not_taken_from_the_system() -> None:
    """Two blocks of 20 MiB leave 40 MiB free at the end of the heap, which hold one of 36 MiB."""
    assert fresh_mib((20 * MIB, 2), (20 * MIB, 1), (36 * MIB, 1)) == [0, 0, 0]


def test_more_than_64_mib_free_at_the_end_go_back_to_the_system() -> None:
    """Three blocks of 30 MiB die together: all of it is given back, and taken again in the next run."""
    assert fresh_mib((30 * MIB, 3), (30 * MIB, 2), (30 * MIB, 1)) == [30, 30, 30]


def test_two_blocks_of_30_mib_stay() -> None:
    assert fresh_mib((30 * MIB, 2), (30 * MIB, 1)) == [0, 0]


def test_a_run_without_lifetimes_has_no_fresh_memory() -> None:
    run = CallGraphBuilder()
    run.timed_op(kind("aten.relu.default", {}), duration_ns=5)
    graph = run.finish(model="m", phase="p", tracer="made", workload={}, stages=(), runtime={}, library_versions={})
    assert list(fresh_bytes_by_op(graph)) == [0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40 * MIB)), max_size=60))
def test_blocks_in_use_never_overlap(steps: list[tuple[int, int]]) -> None:
    heap = Heap()
    for key, size in steps:
        heap.free(key)
        taken = heap.allocate(key, size)
        assert 0 <= taken <= size + 128
        places = sorted((address, length) for address, length in heap._blocks.values() if address >= 0)
        for (address, length), (following, _) in pairwise(places):
            assert address + length <= following
        assert all(address + length <= heap._top <= heap._end for address, length in places)
    heap.free_all()
    assert heap._free_by_size == []
    assert heap._top == 0
