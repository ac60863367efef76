"""The time of a phase at many points from its kernels, by a source that times kernels of any shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork
from llm_perf_opt.sweeps.function.columns import Evaluation
from llm_perf_opt.sweeps.function.figures.kernel_forms import ExchangeCounts, KernelCounts
from llm_perf_opt.sweeps.function.figures.needs import NecessaryForms, must_read_bytes
from llm_perf_opt.sweeps.function.figures.times import AnsweredBy, TimeColumns, times_by_point
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.predict import StageTime, stage_time
from llm_perf_opt.timing.rates import Piece, Pieces
from llm_perf_opt.timing.stage_work import work_of
from llm_perf_opt.timing.step.step_rates import EngineStep


def times_by_tables(
    kernels: KernelCounts,
    needs: Mapping[str, NecessaryForms],
    policy: str,
    points: Sequence[Point],
    at: Evaluation,
    rates: KernelTableRates,
    exchanges: ExchangeCounts | None = None,
    steps: Mapping[str, Sequence[EngineStep]] | None = None,
) -> TimeColumns:
    """The times of all points from forms, as a prediction of each point gives them; `at` evaluates the same points.

    `steps` has the stages that an engine's rates know as a whole, at every point.
    """
    steps = steps or {}
    forms = {name: counts for name, counts in kernels.items() if name not in steps}
    found = [
        {name: [(kernel.at(point), count) for kernel, count in counts.items()] for name, counts in forms.items()}
        for point in points
    ]
    rates.learn(kernel for stages in found for pieces in stages.values() for kernel, _ in pieces)
    necessary = {name: _necessary(needs.get(name), policy, at) for name in kernels}

    def stage(name: str, place: int) -> StageTime:
        step = steps[name][place] if name in steps else None
        pieces = found[place][name] if step is None else step.pieces
        exchanged = _exchanges(exchanges, name, points[place])
        return _stage(name, necessary[name][place], pieces, rates, exchanged, None if step is None else step.seconds)

    predictions = [[stage(name, place) for name in kernels] for place in range(len(points))]
    return replace(times_by_point(predictions), origin=AnsweredBy.FORM)


def _stage(
    name: str,
    necessary: NecessaryWork | None,
    pieces: Pieces,
    rates: KernelTableRates,
    exchanges: Mapping[Collective, int],
    expected_s: float | None,
) -> StageTime:
    counts: dict[Piece, int] = {}
    for kernel, count in pieces:  # two forms may give one kernel at a point
        counts[kernel] = counts.get(kernel, 0) + count
    return stage_time(work_of(name, {}, necessary), tuple(counts.items()), rates, exchanges, expected_s)


def _exchanges(exchanges: ExchangeCounts | None, name: str, point: Point) -> dict[Collective, int]:
    found: dict[Collective, int] = {}
    for forms, count in ({} if exchanges is None else exchanges.get(name, {})).items():
        collective = forms.of(forms.payload.at(point))
        found[collective] = found.get(collective, 0) + count
    return found


def _necessary(needs: NecessaryForms | None, policy: str, at: Evaluation) -> list[NecessaryWork | None]:
    """The necessary work of a stage at every point; its bytes are not told apart, since a bound needs their sum."""
    if needs is None:
        return [None] * at.size
    flops = {dtype: at.of(form).tolist() for dtype, form in needs.flops_by_dtype.items()}
    forwards = at.of(needs.forwards).tolist()
    read = [None] * at.size if needs.bytes is None else must_read_bytes(needs, policy, at).tolist()
    return [
        NecessaryWork(
            flops_by_dtype={dtype: column[place] for dtype, column in flops.items()},
            weight_bytes=read[place],
            expert_bytes=None,
            fewest_expert_bytes=None,
            cache_bytes=0,
            other_bytes=0,
            forwards=forwards[place],
        )
        for place in range(at.size)
    ]
