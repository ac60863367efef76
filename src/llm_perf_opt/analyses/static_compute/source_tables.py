"""Sources side by side: what each says of a stage, how far apart they are, and the causes of every difference."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analyses.reconcile import Difference
from llm_perf_opt.analyses.static_compute.figures import StageFigures, StaticCompute
from llm_perf_opt.document import BarChart, Cell, Column, Kind, Series, Table
from llm_perf_opt.units import format_flops


def source_table(static: StaticCompute) -> Table:
    """FLOPs per stage and source; `?` where a source gave none."""
    sources = _source_names(static)
    return Table(
        title="FLOPs by source",
        columns=(Column("stage"), Column("taken from"), *(Column(name, Kind.FLOPS) for name in sources)),
        rows=tuple(
            (stage.name, "" if stage.preferred is None else stage.preferred.source, *_figures(stage, sources))
            for stage in static.stages
        ),
    )


def agreement_chart(static: StaticCompute) -> Iterator[BarChart]:
    """Every source as a part of the preferred figure; only where there are two sources to compare."""
    sources = _source_names(static)
    stages = [stage for stage in static.stages if stage.flops]
    if len(sources) < 2 or not stages:
        return
    yield BarChart(
        title="Source agreement",
        categories=tuple(stage.name for stage in stages),
        series=tuple(Series(source, tuple(_share(stage, source) for stage in stages)) for source in sources),
        kind=Kind.RATIO,
        caption="Each source's FLOPs over the preferred figure of the stage; the ledger names the cause of every gap.",
    )


def ledger_table(static: StaticCompute) -> tuple[Table, ...]:
    """The pairs that differ; none when all agree."""
    differences = static.ledger.differences
    if not differences:
        return ()
    columns = (
        Column("stage"),
        Column("operators"),
        Column("sources"),
        Column("difference", Kind.FLOPS),
        Column("unexplained", Kind.FLOPS),
        Column("cause"),
    )
    return (Table(title="Ledger of differences", columns=columns, rows=tuple(map(_ledger_row, differences))),)


def _ledger_row(entry: Difference) -> tuple[Cell, ...]:
    causes = "; ".join(f"{part.cause} {format_flops(part.flops)} ({part.detail})" for part in entry.explanations)
    return (
        entry.stage,
        operators_of(entry),
        f"{entry.left} - {entry.right}",
        entry.flops,
        entry.unexplained_flops,
        causes or "unknown",
    )


def operators_of(entry: Difference) -> str:
    """The family in words."""
    return "all operators" if entry.family is None else entry.family.value


def _source_names(static: StaticCompute) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source.source for stage in static.stages for source in stage.sources))


def _figures(stage: StageFigures, sources: tuple[str, ...]) -> tuple[int | None, ...]:
    said = {source.source: source.flops for source in stage.sources}
    return tuple(said.get(name) for name in sources)


def _share(stage: StageFigures, source: str) -> float | None:
    said = {testimony.source: testimony.flops for testimony in stage.sources}.get(source)
    return None if said is None or not stage.flops else said / stage.flops
