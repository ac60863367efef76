"""Sources side by side: what each says of a stage, how far apart they are, and the causes of every difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.reconcile import Difference, FigureDifference
from llm_perf_opt.analyses.static_compute.figures import StageFigures, StaticCompute
from llm_perf_opt.document import BarChart, Cell, Column, Kind, Series, Table
from llm_perf_opt.units import format_count, format_flops


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


def ledger_tables(static: StaticCompute) -> Iterator[Table]:
    """The pairs that differ, in FLOPs and in other figures; none when all agree."""
    if static.ledger.differences:
        yield _ledger_of_flops(static.ledger.differences)
    figures = tuple(figure for figure in static.ledger.figures if figure.difference)
    if figures:
        yield _ledger_of_figures(figures)


def _ledger_of_flops(differences: Sequence[Difference]) -> Table:
    columns = (
        Column("stage"),
        Column("operators"),
        Column("sources"),
        Column("difference", Kind.FLOPS),
        Column("unexplained", Kind.FLOPS),
        Column("cause"),
    )
    return Table(title="Ledger of differences", columns=columns, rows=tuple(map(_ledger_row, differences)))


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


def _ledger_of_figures(figures: Sequence[FigureDifference]) -> Table:
    columns = (
        Column("stage"),
        Column("figure"),
        Column("sources"),
        Column("left", Kind.COUNT),
        Column("right", Kind.COUNT),
        Column("cause"),
    )
    return Table(title="Other figures that differ", columns=columns, rows=tuple(map(_figure_row, figures)))


def _figure_row(entry: FigureDifference) -> tuple[Cell, ...]:
    return (
        entry.stage,
        _words(entry.figure),
        f"{entry.left} - {entry.right}",
        entry.left_value,
        entry.right_value,
        "unknown" if entry.cause is None else f"{entry.cause} ({entry.detail})",
    )


def figure_sentence(entry: FigureDifference) -> str:
    """Who says what of one figure, without the end of the sentence."""
    said = f"{entry.left} has {format_count(entry.left_value)}, {entry.right} {format_count(entry.right_value)}"
    return f"{entry.stage} ({entry.phase}), {_words(entry.figure)}: {said}"


def _words(figure: str) -> str:
    return figure.replace("_", " ")


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
