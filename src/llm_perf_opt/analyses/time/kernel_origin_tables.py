"""Tables of a prediction by measured kernels: the origin of the times, and what an engine fuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.time.engine_kernels import RuleUse, fused_run
from llm_perf_opt.analyses.time.predict import StageTime
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Column, Kind, Table


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


def fusion_table(graphs: Sequence[CallGraph]) -> Table:
    """Which rules applied in which stage, how often, and the launches before and after."""
    uses: list[RuleUse] = [use for graph in graphs for use in fused_run(graph).rules]
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
