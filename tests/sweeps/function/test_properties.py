"""What holds for every function: of phases made at random, whose program changes where nobody would look."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph, to_json_dict
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.costs.memory.live_memory import LIVE_ORIGINS
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function.files.function_file import (
    Part,
    SavedFunction,
    common_points,
    parts_of,
    read_function,
    tiling_problem,
    write_function,
)
from llm_perf_opt.sweeps.function.form import Evaluation, Form, Step, StepKind, monomial
from llm_perf_opt.sweeps.function.phase_function import FIGURES
from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.function.search.sampling import Stride, corners, holds
from tests.examples import examples
from tests.sweeps.function.made_phases import BATCH, CONTEXT, MadePhase, Point, Variant

SEARCHES = settings(max_examples=examples(40), deadline=None)
DOMAINS = st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(1, 40), st.integers(0, 700))


def domain_of(drawn: tuple[int, int, int, int]) -> dict[str, tuple[int, int]]:
    batch, batches, context, contexts = drawn
    return {BATCH: (batch, batch + batches), CONTEXT: (context, context + contexts)}


@st.composite
def growing_phases(draw: st.DrawFn) -> MadePhase:
    """Further ops from some lengths on, each for batches from some size on: the larger a point, the more ops.

    In a box whose lowest and highest corner run the same ops, all points do. So its corners prove it.
    """
    domain = domain_of(draw(DOMAINS))
    starts = draw(st.lists(st.tuples(st.integers(1, 760), st.integers(1, 15)), max_size=3))
    near = draw(st.booleans())
    rules = [*starts, *((start + 1, batch) for start, batch in starts[:1] if near)]

    def variant(point: Point) -> Variant:
        return Variant(further_ops=sum(point[CONTEXT] >= start and point[BATCH] >= batch for start, batch in rules))

    return MadePhase(variants=variant, domain=domain, budget=draw(st.sampled_from([12, 60, 400])))


@st.composite
def scattered_phases(draw: st.DrawFn) -> MadePhase:
    """Other programs in random boxes, some of them one point large, a window that may bite, chunks without a rest."""
    domain = domain_of(draw(DOMAINS))
    corner = st.tuples(st.integers(1, 15), st.integers(1, 760), st.integers(0, 4), st.sampled_from([0, 0, 1, 30, 300]))
    boxes = draw(st.lists(st.tuples(corner, st.integers(1, 2)), max_size=4))
    window = draw(st.none() | st.integers(1, 500))
    chunk = draw(st.none() | st.sampled_from([16, 64, 100]))

    def variant(point: Point) -> Variant:
        held = (
            ops
            for (batch, context, more_batches, more_contexts), ops in boxes
            if batch <= point[BATCH] <= batch + more_batches and context <= point[CONTEXT] <= context + more_contexts
        )
        is_whole = chunk is not None and point[CONTEXT] % chunk == 0
        return Variant(further_ops=next(held, 0) + is_whole, window=window)

    hints = tuple(draw(st.lists(st.integers(1, 760), max_size=3)))
    return MadePhase(
        variants=variant,
        domain=domain,
        budget=draw(st.sampled_from([12, 60, 200])),
        hints=hints,
        chunks=() if chunk is None else (chunk,),
    )


PHASES = growing_phases() | scattered_phases()


def some_points(domain: Mapping[str, tuple[int, int]], count: int) -> list[dict[str, int]]:
    rng = random.Random(7)
    return [{name: rng.randint(*ends) for name, ends in domain.items()} for _ in range(count)]


@SEARCHES
@given(PHASES)
def test_cells_and_open_regions_tile_the_domain(phase: MadePhase) -> None:
    parts = parts_of(phase.function())
    assert tiling_problem(phase.domain, parts) is None
    for point in (*some_points(phase.domain, 40), *corners(phase.domain)):
        assert sum(holds(region, stride, point) for region, stride in parts) == 1


STRIDES = st.none() | st.builds(
    Stride, variable=st.sampled_from([BATCH, CONTEXT]), chunk=st.integers(1, 9), is_multiple=st.booleans()
)
REGIONS = st.builds(
    lambda batch, batches, context, contexts: {BATCH: (batch, batch + batches), CONTEXT: (context, context + contexts)},
    *(st.integers(1, 6), st.integers(0, 6), st.integers(1, 20), st.integers(0, 20)),
)


@given(st.lists(st.tuples(REGIONS, STRIDES), min_size=1, max_size=3))
def test_common_points_are_counted_as_one_by_one(parts: list[Part]) -> None:
    points = ({BATCH: batch, CONTEXT: context} for batch in range(13) for context in range(42))
    held = sum(all(holds(region, stride, point) for region, stride in parts) for point in points)
    assert common_points(*parts) == held


@SEARCHES
@given(PHASES)
def test_no_trace_that_was_made_contradicts_a_cell(phase: MadePhase) -> None:
    function = phase.function()
    assert function.traces == len(phase.traced) <= phase.budget
    for (batch, context), graph in phase.traced.items():
        found = function.graph_at({BATCH: batch, CONTEXT: context})
        if found is not None:
            assert same_run(found, graph) is None


@SEARCHES
@given(growing_phases())
def test_a_program_that_only_grows_is_found_exactly(phase: MadePhase) -> None:
    function = phase.function()
    for point in some_points(phase.domain, 25):
        found = function.graph_at(point)
        assert found is None or same_run(found, phase.graph(point)) is None


@SEARCHES
@given(growing_phases())
def test_a_large_budget_leaves_nothing_open_but_what_has_no_rule(phase: MadePhase) -> None:
    phase.budget = 2000
    assert [one for one in phase.function().open_regions if one.why.what == "budget"] == []


def counted(graph: CallGraph) -> dict[str, int]:
    """The figures of a traced graph, op by op and block by block."""
    kinds = [graph.op_kinds[row] for row in ops_of(graph).kind]
    prices = [cost for cost in map(price, kinds) if cost is not None]
    storages = graph.storages
    assert storages is not None and len(prices) == len(kinds)
    alive = [0] * len(kinds)
    for origin, born, freed, size in zip(
        storages.origin, storages.born_op, storages.freed_op, storages.bytes, strict=True
    ):
        if origin in LIVE_ORIGINS:
            for op in range(born, freed):
                alive[op] += size
    return {
        "flops": sum(cost.flops for cost in prices),
        "vector_flops": sum(cost.vector_flops for cost in prices),
        "bytes_moved": sum(cost.bytes_moved for cost in prices),
        "launches": sum(len(kernels_of(kind)) for kind in kinds),
        "peak_bytes": max(alive),
    }


@SEARCHES
@given(PHASES)
def test_at_a_sample_the_function_is_that_sample(phase: MadePhase) -> None:
    function = phase.function()
    for one in function.cells:
        for sample in (*one.cell.program.samples, *one.cell.checked):
            if not one.cell.holds(sample):
                continue
            traced = phase.graph(sample)
            assert same_run(one.cell.program.graph_at(sample), traced) is None
            assert to_json_dict(one.cell.program.graph_at(sample))["workload"] == to_json_dict(traced)["workload"]
            figures = function.figures({name: np.array([value]) for name, value in sample.items()})
            assert {name: int(figures[name][0]) for name in FIGURES} == counted(traced)


@SEARCHES
@given(growing_phases())
def test_more_work_is_never_less(phase: MadePhase) -> None:
    """A larger batch or a longer context costs as much or more, in a cell and across its boundary."""
    function = phase.function()
    for axis in (BATCH, CONTEXT):
        low, high = phase.domain[axis]
        for other in some_points(phase.domain, 3):
            values = np.unique(np.linspace(low, high, 40, dtype=np.int64))
            points = {**{name: np.full(len(values), value) for name, value in other.items()}, axis: values}
            inside = function.cell_of_points(points) >= 0
            if not inside.any():
                continue
            figures = function.figures({name: column[inside] for name, column in points.items()})
            assert all((np.diff(figures[name]) >= 0).all() for name in FIGURES)


@settings(max_examples=examples(40), deadline=None)
@given(PHASES)
def test_a_saved_function_reloads_to_the_same_values(phase: MadePhase) -> None:
    import tempfile

    function = phase.function()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "toy.function.json"
        saved = SavedFunction(
            name="toy", tool_version="1", workload={"batch": 1}, deployment={}, media_tokens=0, phases=(function,)
        )
        write_function(saved, file)
        (read,) = read_function(file).phases
        first = file.read_bytes()
        write_function(read_function(file), file)
        assert file.read_bytes() == first
    assert (read.phase, read.domain, read.traces) == (function.phase, function.domain, function.traces)
    assert [one.region for one in read.open_regions] == [one.region for one in function.open_regions]
    assert [str(one.why) for one in read.open_regions] == [str(one.why) for one in function.open_regions]
    assert [one.cell.checked for one in read.cells] == [one.cell.checked for one in function.cells]
    assert [one.figures for one in read.cells] == [one.figures for one in function.cells]
    for point in some_points(phase.domain, 5):
        mine, theirs = function.graph_at(point), read.graph_at(point)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert to_json_dict(mine) == to_json_dict(theirs)
            assert theirs.problems() == []


VARIABLES = st.sampled_from(["batch", "context", "new"])
POINTS = st.fixed_dictionaries({name: st.integers(1, 1 << 20) for name in ("batch", "context", "new")})


def plain_forms(largest: int) -> st.SearchStrategy[Form]:
    terms = st.tuples(st.lists(VARIABLES, max_size=3).map(lambda one: monomial(*one)), st.integers(-largest, largest))
    return st.lists(terms, max_size=4).map(Form.sum_of)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    inner = Form.sum_of([((draw(VARIABLES),), draw(st.integers(1, 9))), ((), draw(st.integers(0, 9)))])
    kind = draw(st.sampled_from(list(StepKind)))
    experts = draw(st.integers(2, 64))
    chosen = draw(st.integers(1, experts))
    constants = {
        StepKind.CEIL: (draw(st.integers(1, 300)),),
        StepKind.BITS: (),
        StepKind.MAX: (draw(st.integers(0, 1 << 22)),),
        StepKind.TOUCHED: (chosen, experts),
    }
    return Step(kind, inner, constants.get(kind, (chosen, experts, draw(st.integers(0, experts)))))


@given(plain_forms(50), plain_forms(50), plain_forms(50), POINTS)
def test_forms_add_and_multiply_as_integers_do(a: Form, b: Form, c: Form, point: Point) -> None:
    x, y, z = a.at(point), b.at(point), c.at(point)
    assert (a + b).at(point) == x + y
    assert (a * b - c).at(point) == x * y - z
    assert a * (b + c) == a * b + a * c
    assert ((a - a).constant, (a * 0).terms) == (0, {})


@settings(deadline=None)
@given(
    plain_forms(1 << 70),
    steps(),
    st.integers(-(1 << 62), 1 << 62),
    st.lists(POINTS, min_size=1, max_size=8),
)
def test_columns_are_exact_beyond_64_bits(form: Form, step: Step, factor: int, points: list[Point]) -> None:
    whole = form + Form.atom(step) * factor + Form.atom(step) * Form.atom("batch")
    columns = Evaluation({name: np.array([point[name] for point in points]) for name in ("batch", "context", "new")})
    assert columns.of(whole).tolist() == [whole.at(point) for point in points]
    assert columns.largest_of([whole, form]).tolist() == [max(whole.at(point), form.at(point)) for point in points]


@pytest.mark.parametrize("exponent", [52, 53, 61, 62, 63, 64, 100])
def test_columns_are_exact_around_the_limits_of_int64_and_float64(exponent: int) -> None:
    form = Form.sum_of([(("batch",), 2**exponent + 1), ((), -1)])
    values = [1, 2, 3, 2**10 + 1]
    assert Evaluation({"batch": np.array(values)}).of(form).tolist() == [(2**exponent + 1) * v - 1 for v in values]
