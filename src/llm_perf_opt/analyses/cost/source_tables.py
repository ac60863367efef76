"""Sources side by side: the figures of each, how far apart they are, and the causes of every difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.cost.static_figures import StageCompute, StaticCompute
from llm_perf_opt.analyses.reconcile import FigureDifference, FlopsDifference, SingleSource
from llm_perf_opt.core.report import BarChart, Column, Kind, Series, Table, table_of
from llm_perf_opt.core.source_figures import SourceFigures, left_out
from llm_perf_opt.core.units import format_count, format_flops


def source_tables(static: StaticCompute) -> Iterator[Table]:
    """FLOPs and bytes per stage and source; `?` where a source that gives them elsewhere gave none.

    What a source counted that left something out is no figure of the stage: it stands in a table of its own.
    """
    sources = _names_with(static, "flops") or _names_with(static, "source")
    has_gaps = any(incomplete_sources(stage) for stage in static.stages)
    gap_column = (Column("incomplete"),) if has_gaps else ()
    yield Table(
        title="FLOPs by source",
        columns=(Column("stage"), Column("taken from"), *gap_column, *(Column(name, Kind.FLOPS) for name in sources)),
        rows=tuple(
            (
                stage.name,
                "" if stage.preferred is None else stage.preferred.source,
                *((", ".join(source.source for source in incomplete_sources(stage)),) if has_gaps else ()),
                *_complete_flops(stage, sources),
            )
            for stage in static.stages
        ),
    )
    if has_gaps:
        yield _incomplete_table(static)
    counters = _names_with(static, "bytes_moved")
    if len(counters) > 1:
        yield Table(
            title="Bytes moved by source",
            columns=(Column("stage"), *(Column(name, Kind.BYTES) for name in counters)),
            rows=tuple((stage.name, *_figures(stage, "bytes_moved", counters)) for stage in static.stages),
        )


def incomplete_sources(stage: StageCompute) -> tuple[SourceFigures, ...]:
    """Sources that counted something in the stage and left something out of it, or added something to it."""
    return tuple(source for source in stage.sources if source.flops is not None and not source.is_complete)


def _complete_flops(stage: StageCompute, sources: tuple[str, ...]) -> tuple[int | None, ...]:
    complete = {source.source: source.flops for source in stage.sources if source.is_complete}
    return tuple(complete.get(name) for name in sources)


def _incomplete_table(static: StaticCompute) -> Table:
    """Lower bounds, what they lack, and what they are once formulas of ours fill the gaps."""
    found = [(stage, source) for stage in static.stages for source in incomplete_sources(stage)]
    return table_of(
        "Sources that left something out",
        found,
        {
            Column("stage"): lambda pair: pair[0].name,
            Column("source"): lambda pair: pair[1].source,
            Column("FLOPs, at least", Kind.FLOPS): lambda pair: pair[1].at_least_flops,
            Column("MACs, at least", Kind.MACS): lambda pair: _halved(pair[1].at_least_flops),
            Column("ops left out", Kind.COUNT): lambda pair: pair[1].left_out_ops,
            Column("what"): lambda pair: left_out(pair[1]),
            Column("FLOPs, completed by us", Kind.FLOPS): lambda pair: pair[1].completed_flops,
        },
    )


def _halved(flops: int | None) -> int | None:
    return None if flops is None else flops // 2


def agreement_chart(static: StaticCompute) -> Iterator[BarChart]:
    """Every source as a part of the preferred figure; only where there are two sources to compare."""
    sources = _names_with(static, "flops")
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
    """The pairs that differ, in FLOPs and in other figures, and what one source alone gives; none when all agree."""
    if static.ledger.differences:
        yield _ledger_of_flops(static.ledger.differences)
    figures = tuple(figure for figure in static.ledger.figures if figure.difference)
    if figures:
        yield table_of(
            "Other figures that differ",
            figures,
            {
                Column("stage"): lambda entry: entry.stage,
                Column("figure"): lambda entry: _words(entry.figure),
                Column("sources"): lambda entry: f"{entry.left} - {entry.right}",
                Column("left", Kind.COUNT): lambda entry: entry.left_value,
                Column("right", Kind.COUNT): lambda entry: entry.right_value,
                Column("cause"): lambda entry: "unknown" if entry.cause is None else f"{entry.cause} ({entry.detail})",
            },
        )
    if static.ledger.single and len(sources_with_figures(static)) > 1:
        yield _one_source_table(static.ledger.single)


def _ledger_of_flops(differences: Sequence[FlopsDifference]) -> Table:
    return table_of(
        "Ledger of differences",
        differences,
        {
            Column("stage"): lambda entry: entry.stage,
            Column("operators"): operators_of,
            Column("sources"): lambda entry: f"{entry.left} - {entry.right}",
            Column("difference", Kind.FLOPS): lambda entry: entry.flops,
            Column("unexplained", Kind.FLOPS): lambda entry: entry.unexplained_flops if not entry.one_source else None,
            Column("cause"): _causes_text,
        },
    )


def _causes_text(entry: FlopsDifference) -> str:
    causes = "; ".join(f"{part.cause} {format_flops(part.flops)} ({part.detail})" for part in entry.explanations)
    if entry.one_source is not None:
        return f"one source only, {entry.one_source}: {causes}"
    return causes or "unknown"


def _one_source_table(single: Sequence[SingleSource]) -> Table:
    """One row per figure and source, with the stages that it holds for."""
    stages: dict[tuple[str, str], dict[str, None]] = {}
    for found in single:
        figure = _words(found.figure) if found.family is None else f"FLOPs, {found.family.value}"
        stages.setdefault((figure, found.source), {})[found.stage] = None
    return Table(
        title="One source only",
        columns=(Column("figure"), Column("source"), Column("stages")),
        rows=tuple((figure, source, ", ".join(names)) for (figure, source), names in stages.items()),
    )


def figure_sentence(entry: FigureDifference) -> str:
    """Both values of one figure, without the end of the sentence."""
    values = f"{entry.left} has {format_count(entry.left_value)}, {entry.right} {format_count(entry.right_value)}"
    return f"{entry.stage} ({entry.phase}), {_words(entry.figure)}: {values}"


def _words(figure: str) -> str:
    return figure.replace("_", " ")


def operators_of(entry: FlopsDifference) -> str:
    """The family in words."""
    return "all operators" if entry.family is None else entry.family.value


def sources_with_figures(static: StaticCompute) -> tuple[str, ...]:
    """Every source that has figures of a stage."""
    known = (source for stage in static.stages for source in stage.sources if source.failure is None)
    return tuple(dict.fromkeys(source.source for source in known))


def _names_with(static: StaticCompute, figure: str) -> tuple[str, ...]:
    """Every source that gives this figure for a stage."""
    found = (source for stage in static.stages for source in stage.sources if getattr(source, figure) is not None)
    return tuple(dict.fromkeys(source.source for source in found))


def _figures(stage: StageCompute, figure: str, sources: tuple[str, ...]) -> tuple[int | None, ...]:
    by_source = {source.source: getattr(source, figure) for source in stage.sources}
    return tuple(by_source.get(name) for name in sources)


def _share(stage: StageCompute, source: str) -> float | None:
    flops = {figures.source: figures.flops for figures in stage.sources}.get(source)
    return None if flops is None or not stage.flops else flops / stage.flops
