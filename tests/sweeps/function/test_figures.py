"""All figures and times of a function against fresh traces, and against what a hand count says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.trace_function import TraceFunction
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.parameters import count_distinct_parameters
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function import phase_function
from llm_perf_opt.sweeps.function.figures.times import TimeColumns
from llm_perf_opt.sweeps.function.form import AnsweredBy, Form, Step, StepKind
from llm_perf_opt.sweeps.function.phase_function import ALL_FIGURES, FunctionCell, PhaseFunction
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.timing.stage_work import stage_works
from tests.models.huggingface.folders import LLAMA, MIXTRAL, TEXT, write_folder
from tests.timing.made_calibrations import calibration, table

HEADS, KV_HEADS, WIDTH, INNER, LAYERS, WORDS = 4, 2, 64, 96, 2, 200
DENSE = {**LLAMA, "num_key_value_heads": KV_HEADS, "torch_dtype": "bfloat16"}
WINDOW = {"model_type": "mistral", **TEXT, "sliding_window": 60, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {"dense": DENSE, "experts": MIXTRAL, "window": WINDOW}
BATCHES, CONTEXTS = (2, 5), (8, 150)
POINTS = [(2, 8), (3, 41), (5, 150), (2, 97), (4, 60)]  # a table of 200 words is read in part, and as a whole
RATES = [DataSheetRates(find_device(name), execution) for name in ("h100-sxm", "l4") for execution in Execution]


@pytest.fixture(
    scope="module", params=["dense", *(pytest.param(name, marks=pytest.mark.slow) for name in ("experts", "window"))]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp(request.param), MODELS[request.param])


@pytest.fixture(scope="module")
def function(model: Path) -> TraceFunction:
    return lpo.trace(model, prompt_tokens=20).over(batch=BATCHES, context=CONTEXTS)


@pytest.fixture(scope="module")
def fresh(model: Path) -> dict[tuple[int, int], tuple[CallGraph, ...]]:
    return {(batch, context): lpo.trace(model, batch=batch, prompt_tokens=context).graphs for batch, context in POINTS}


def phases(
    function: TraceFunction, fresh: dict[tuple[int, int], tuple[CallGraph, ...]]
) -> Iterator[tuple[PhaseFunction, dict[str, np.ndarray[Any, Any]], list[CallGraph]]]:
    """Each phase with the points that its cells hold, and their fresh traces."""
    for place, phase in enumerate(function.phases):
        held = [(b, c) for b, c in POINTS if phase.cell_at({"batch": b, "context": c}) is not None]
        assert len(held) >= 3
        points = {"batch": np.array([b for b, _ in held]), "context": np.array([c for _, c in held])}
        yield phase, points, [fresh[point][place] for point in held]


def by_analyses(graph: CallGraph) -> dict[str, int | None]:
    """Every figure by the analyses that reports use."""
    costs = [(price(kind), len(kernels_of(kind)), count) for kind, count in count_kinds(graph).items()]
    memory, cache, works = run_memory([graph]).phases[0], kv_cache([graph]), stage_works(graph)
    assert memory.peak is not None
    return {
        "flops": sum(cost.flops * count for cost, _, count in costs if cost),
        "vector_flops": sum(cost.vector_flops * count for cost, _, count in costs if cost),
        "bytes_moved": sum(cost.bytes_moved * count for cost, _, count in costs if cost),
        "launches": sum(launches * count for _, launches, count in costs),
        "peak_bytes": memory.peak.bytes,
        "weight_bytes": memory.weight_bytes,
        "parameters": count_distinct_parameters([graph]),
        "cache_bytes": None if cache is None else cache.bytes,
        "needed_bytes": memory.total_bytes,
        "necessary_flops": sum(work.necessary.flops for work in works if work.necessary),
        "necessary_bytes": sum(work.must_read_bytes or 0 for work in works),
    }


def test_every_figure_is_that_of_a_fresh_trace(
    function: TraceFunction, fresh: dict[tuple[int, int], tuple[CallGraph, ...]]
) -> None:
    for phase, points, graphs in phases(function, fresh):
        columns = phase.figures(points, ALL_FIGURES)
        for row, graph in enumerate(graphs):
            assert {name: columns[name][row] for name in ALL_FIGURES} == by_analyses(graph)


def test_times_are_those_of_a_prediction(
    function: TraceFunction, fresh: dict[tuple[int, int], tuple[CallGraph, ...]]
) -> None:
    has_experts = any(work.necessary and work.necessary.distinct_experts for work in stage_works(fresh[POINTS[0]][0]))
    for phase, points, graphs in phases(function, fresh):
        for rates in RATES:
            times = phase.times(points, rates)
            # An engine reads the experts that the last position is expected to touch: no polynomial.
            is_by_point = has_experts and phase.phase == "prefill" and rates.execution is Execution.FUSED
            assert times.origin is (AnsweredBy.POINT if is_by_point else AnsweredBy.FORM)
            assert_same(times, graphs, rates)


def assert_same(times: TimeColumns, graphs: list[CallGraph], rates: RateSource) -> None:
    assert times.lower_bound_s is not None
    for row, graph in enumerate(graphs):
        stages = predict(graph, rates)
        assert times.lower_bound_s[row] == pytest.approx(sum(stage.lower_bound_s or 0 for stage in stages), rel=1e-9)
        assert times.low_s[row] == pytest.approx(sum(stage.wall.low for stage in stages), rel=1e-9)
        assert times.high_s[row] == pytest.approx(sum(stage.wall.high for stage in stages), rel=1e-9)
        assert times.device_high_s[row] == pytest.approx(sum(one.device_time.high for one in stages), rel=1e-9)
        assert times.host_low_s[row] == pytest.approx(sum(one.host_time.low for one in stages), rel=1e-9)
        assert times.bound_by[row] is max(stages, key=_wall).bound_by


def _wall(stage: StageTime) -> float:
    return stage.wall.high


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_a_decode_step_needs_what_a_hand_count_says(function: TraceFunction) -> None:
    decode = function.phase("decode")
    points = {"batch": np.array([2, 5]), "context": np.array([10, 123])}
    found = decode.figures(points, ("parameters", "weight_bytes", "cache_bytes", "necessary_flops"))
    kv = WIDTH * KV_HEADS // HEADS
    matrices = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * kv + 3 * WIDTH * INNER) + WIDTH * WORDS
    parameters = matrices + WORDS * WIDTH + (2 * LAYERS + 1) * WIDTH
    for row, (batch, context) in enumerate(((2, 10), (5, 123))):
        assert found["parameters"][row] == parameters
        assert found["weight_bytes"][row] == 2 * parameters
        assert found["cache_bytes"][row] == 2 * LAYERS * kv * 2 * batch * context
        pairs = LAYERS * 2 * 2 * WIDTH * (context + 1)
        assert found["necessary_flops"][row] == batch * (2 * matrices + pairs)


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_a_lookup_reads_no_more_than_its_table(function: TraceFunction) -> None:
    """From 200 rows on, as many as there are words, the necessary bytes grow by the indices alone."""
    (cell,) = (cell for cell in function.phase("prefill").cells if cell.region["context"][1] == CONTEXTS[1])
    assert cell.needs.necessary is not None
    form = cell.needs.necessary["prefill"].bytes
    assert form is not None
    step = Step(StepKind.MAX, Form.atom("batch") * Form.atom("context"), (WORDS,))
    assert form.terms[step,] == -2 * WIDTH


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_a_figure_without_a_form_is_answered_point_by_point(
    function: TraceFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = next(cell for cell in function.phase("decode").cells)
    alone = FunctionCell(cell=cell.cell, figures=None)
    low, high = cell.region["context"]
    points = {"batch": np.full(4, cell.region["batch"][0]), "context": np.array([low, high, low, low + 1])}
    assert alone.origin_of("flops") is alone.origin_of("needed_bytes") is AnsweredBy.POINT
    names = ("flops", "peak_bytes", "needed_bytes", "cache_bytes")
    by_point, by_form = alone.figures_at(points, names), cell.figures_at(points, names)
    assert all((by_point[name] == by_form[name]).all() for name in names)
    monkeypatch.setattr(phase_function, "MOST_POINTS", 2)
    with pytest.raises(PerfOptError, match="3 points would each be analysed"):
        alone.figures_at(points, ("flops",))


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_the_cache_of_a_prefill_alone_is_unknown(function: TraceFunction) -> None:
    points = {"batch": np.array([2, 3]), "context": np.array([10, 123])}
    assert function.phase("prefill").figures(points, ("cache_bytes",))["cache_bytes"].tolist() == [None, None]


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_times_are_asked_with_a_device(function: TraceFunction) -> None:
    points = {"batch": 3, "context": [10, 123]}
    times = function.times("decode", points, "h100-sxm", execution="fused")
    answers = [function.at(batch=3, context=context).predict("h100-sxm", execution="fused") for context in (10, 123)]
    alone = [sum(stage.high_s for stage in answer.stages if stage.phase == "decode") for answer in answers]
    assert times.high_s.tolist() == pytest.approx(alone)
    with pytest.raises(UsageError, match="no decode at"):
        function.times("decode", {"batch": 3, "context": [10, 100_000]}, "h100-sxm")


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_a_calibration_is_asked_point_by_point(
    function: TraceFunction, fresh: dict[tuple[int, int], tuple[CallGraph, ...]]
) -> None:
    timed = table("arithmetic", "bfloat16", {"elements": (16, 2**20)}, lambda count: count * 1e-9, spread=0.1)
    rates = CalibratedRates(calibration(timed))
    for phase, points, graphs in phases(function, fresh):
        times = phase.times(points, rates)
        assert times.origin is AnsweredBy.POINT
        assert times.lower_bound_s is None and times.expected_s is not None
        walls = [[stage.wall for stage in predict(graph, rates)] for graph in graphs]
        assert times.expected_s.tolist() == pytest.approx([sum(one.expected or 0 for one in wall) for wall in walls])
        assert times.high_s.tolist() == pytest.approx([sum(one.high for one in wall) for wall in walls])
        assert (times.expected_s > 0).all()
        missing = [sum(sum(stage.untimed.values()) for stage in predict(graph, rates)) for graph in graphs]
        assert times.untimed_ops.tolist() == missing and min(missing) > 0
