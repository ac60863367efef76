"""Tables of a prediction by measured kernels: the origin of the times, what an engine launches, and what it fuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Column, Kind, Table
from llm_perf_opt.timing.engine_kernels import RuleUse, fused_run
from llm_perf_opt.timing.predict import StageTime


def origin_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """The share of the expected kernel time by where it came from; nothing where a source keeps no origin."""
    origins: dict[str, float] = {}
    for stage in stages:
        for origin, share in stage.by_origin.items():
            origins[origin] = origins.get(origin, 0.0) + share
    names = sorted(origins, key=lambda origin: -origins[origin])
    if names:
        yield Table(
            title="Where kernel times come from",
            columns=(Column("stage"), *(Column(name, Kind.RATIO) for name in names)),
            rows=tuple((stage.name, *(stage.by_origin.get(name, 0.0) for name in names)) for stage in stages),
        )


def step_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """The kernels of steps that an engine runs as a whole, by what they do."""
    rows = [
        (stage.name, rate, count, seconds)
        for stage in stages
        if stage.is_step
        for rate, (count, seconds) in _by_rate(stage).items()
    ]
    if rows:
        yield Table(
            title="What an engine launches in a step",
            columns=(
                Column("stage"),
                Column("kernel"),
                Column("launches", Kind.COUNT),
                Column("expected", Kind.SECONDS),
            ),
            rows=tuple(rows),
        )


def _by_rate(stage: StageTime) -> dict[str, tuple[int, float]]:
    """What a kernel is timed as -> launches and seconds of one device, the longest first."""
    found: dict[str, tuple[int, float]] = {}
    for piece in stage.pieces:
        for time in piece.times:
            count, seconds = found.get(time.rate, (0, 0.0))
            found[time.rate] = (count + piece.count, seconds + piece.count * (time.band.expected or 0.0))
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def fusion_tables(graphs: Sequence[CallGraph], stages: Sequence[StageTime]) -> Iterator[Table]:
    """Which rules applied in the other stages, how often, and the launches before and after."""
    steps = {stage.name for stage in stages if stage.is_step}
    uses: list[RuleUse] = [use for graph in graphs for use in fused_run(graph).rules if use.stage not in steps]
    if uses:
        yield _fusion_table(uses)


def _fusion_table(uses: Sequence[RuleUse]) -> Table:
    return Table(
        title="What an engine fuses",
        columns=(
            Column("stage"),
            Column("rule"),
            Column("times", Kind.COUNT),
            Column("launches before", Kind.COUNT),
            Column("launches after", Kind.COUNT),
        ),
        rows=tuple((use.stage, str(use.rule), use.times, use.before, use.after) for use in uses),
    )
