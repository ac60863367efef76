"""The static compute report for people: totals, the five-column stage table, sources side by side, operators."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analyses.cost.source_tables import (
    agreement_chart,
    figure_sentence,
    ledger_tables,
    operators_of,
    source_tables,
    spoken_names,
)
from llm_perf_opt.analyses.cost.static_figures import StageFigures, StaticCompute
from llm_perf_opt.analyses.run_description import setting_texts
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Level, Note, Report, Series, Table
from llm_perf_opt.core.source_figures import left_out
from llm_perf_opt.core.units import format_count, format_flops

TOP_OPERATORS = 8
_AT_LEAST = Column("FLOPs, at least", Kind.FLOPS)


def static_report(static: StaticCompute) -> Report:
    """Everything but memory, which is a chapter of its own; each stage is a chapter too."""
    return Report(
        title=f"{static.model}: static compute",
        tables=(
            _totals(static),
            *source_tables(static),
            _stages(static),
            *ledger_tables(static),
            _configuration(static),
        ),
        charts=tuple(_charts(static)),
        notes=tuple(_notes(static)),
        chapters=tuple(_stage_chapter(stage) for stage in static.stages),
    )


def _configuration(static: StaticCompute) -> Table:
    rows = (("model", static.model), *setting_texts(static.workload).items())
    return Table(title="Configuration", columns=(Column("setting"), Column("value")), rows=rows)


def _totals(static: StaticCompute) -> Table:
    """Active parameters are those of a decode step, and left out where nothing is decoded.

    Where every source left something out of a stage the FLOPs are unknown, and a column says what they are at least.
    """
    flops = static.flops
    cells: dict[Column, Cell] = {
        Column("parameters", Kind.COUNT): static.parameters,
        Column("active parameters", Kind.COUNT): static.active_parameters,
        Column("FLOPs", Kind.FLOPS): flops,
        **({_AT_LEAST: static.flops_at_least} if flops is None else {}),
        Column("MACs", Kind.MACS): None if flops is None else flops // 2,
        Column("KV cache", Kind.BYTES): static.last("kv_cache_bytes"),
        Column("KV per token", Kind.BYTES): static.last("kv_bytes_per_token"),
    }
    if all(stage.phase != "decode" for stage in static.stages):
        del cells[Column("active parameters", Kind.COUNT)]
    return Table(title="Totals", columns=tuple(cells), rows=(tuple(cells.values()),))


def _stages(static: StaticCompute) -> Table:
    columns = (
        Column("stage"),
        Column("parameters", Kind.COUNT),
        Column("FLOPs", Kind.FLOPS),
        Column("activations", Kind.COUNT),
        Column("bytes moved", Kind.BYTES),
    )
    rows = tuple(_stage_row(stage) for stage in static.stages)
    total: tuple[Cell, ...] = ("total", static.parameters, static.flops, _sum(rows, 3), _sum(rows, 4))
    return Table(title="Stages", columns=columns, rows=rows, footer=total)


def _stage_row(stage: StageFigures) -> tuple[Cell, ...]:
    return stage.name, stage.first("parameters"), stage.flops, stage.first("activations"), stage.first("bytes_moved")


def _sum(rows: tuple[tuple[Cell, ...], ...], column: int) -> Cell:
    cells = [row[column] for row in rows]
    numbers = [cell for cell in cells if isinstance(cell, int)]
    return sum(numbers) if len(numbers) == len(cells) else None


def _charts(static: StaticCompute) -> Iterator[BarChart]:
    stages = [stage for stage in static.stages if stage.flops_at_least]
    if not stages:
        return
    names = dict.fromkeys(_short(operator.name) for stage in stages for operator in stage.operators if operator.flops)
    yield BarChart(
        title="FLOPs by stage and operator",
        categories=tuple(stage.name for stage in stages),
        series=tuple(Series(name, tuple(_flops_of(stage, name) for stage in stages)) for name in names),
        kind=Kind.FLOPS,
        is_stacked=True,
        caption="" if static.flops is not None else "A source left something out of a stage: bars are lower bounds.",
    )
    yield from agreement_chart(static)


def _short(operator: str) -> str:
    return operator.removeprefix("aten.").removesuffix(".default")


def _flops_of(stage: StageFigures, name: str) -> int:
    return sum(operator.flops or 0 for operator in stage.operators if _short(operator.name) == name)


def _stage_chapter(stage: StageFigures) -> Report:
    """The most expensive operators of one stage, by the source that its figure is taken from."""
    columns = (
        Column("operator"),
        Column("kind"),
        Column("calls", Kind.COUNT),
        Column("FLOPs", Kind.FLOPS),
        Column("share", Kind.RATIO),
    )
    rows = tuple(
        (
            _short(operator.name),
            operator.family.value,
            operator.calls,
            operator.flops,
            None if operator.flops is None or not stage.flops else operator.flops / stage.flops,
        )
        for operator in stage.operators[:TOP_OPERATORS]
    )
    source, partial = stage.preferred, stage.incomplete
    told = (
        Note(f"FLOPs are those of {source.source} ({source.method.value}).")
        if source
        else Note(f"The operators are those of {partial.source}, which left something out.", Level.WARNING)
        if partial
        else Note("No source has a figure.", Level.WARNING)
    )
    more = len(stage.operators) - TOP_OPERATORS
    cut = (Note(f"{more} more operators are in the JSON file."),) if more > 0 else ()
    said = (Note(f"{source.source}: {note}.") for source in stage.sources for note in source.notes)
    return Report(
        title=f"{stage.name} ({stage.phase})" if stage.name != stage.phase else stage.name,
        tables=(Table(title="Top operators", columns=columns, rows=rows),) if rows else (),
        notes=(told, *cut, *said),
    )


def _incomplete_note(stage: StageFigures) -> Iterator[Note]:
    """Why a stage has no figure although a source counted something in it."""
    source = stage.incomplete
    if source is None or source.at_least_flops is None:
        return
    yield Note(
        f"{stage.name} ({stage.phase}): FLOPs unknown, at least {format_flops(source.at_least_flops)} by "
        f"{source.source}, which {left_out(source)}.",
        Level.WARNING,
    )


def _notes(static: StaticCompute) -> Iterator[Note]:
    yield Note("A multiply-add counts as two FLOPs; causal attention is not halved; elementwise work is not included.")
    coverage = static.coverage
    if coverage is not None:
        yield Note(f"Coverage: {format_count(coverage.priced_ops)} of {format_count(coverage.ops)} ops have a price.")
        for op in coverage.unpriced:
            yield Note(op.sentence, Level.WARNING)
    for figures in static.stages:
        yield from _incomplete_note(figures)
    if len(told := spoken_names(static)) == 1:
        yield Note(f"One source only, {told[0]}: nothing was compared.")
    for source, phase, stage, reason in static.ledger.missing:
        yield Note(f"{source} says nothing of {stage} ({phase}): {reason}.", Level.WARNING)
    for entry in static.ledger.unexplained_flops:
        apart, unknown = format_flops(abs(entry.flops)), format_flops(abs(entry.unexplained_flops))
        text = (
            f"{entry.stage} ({entry.phase}), {operators_of(entry)}: {entry.left} and {entry.right} differ by {apart}, "
            f"of which {unknown} has no known cause."
        )
        yield Note(text, Level.WARNING)
    for figure in static.ledger.unexplained_figures:
        yield Note(f"{figure_sentence(figure)}, with no known cause.", Level.WARNING)
    yield from map(Note, static.notes)
