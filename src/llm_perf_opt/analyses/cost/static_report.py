"""The static compute report for people: totals, the five-column stage table, sources side by side, operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llm_perf_opt.analyses.cost.coverage import known_sum
from llm_perf_opt.analyses.cost.source_tables import (
    agreement_chart,
    figure_sentence,
    ledger_tables,
    operators_of,
    source_tables,
    sources_with_figures,
)
from llm_perf_opt.analyses.cost.static_figures import StageCompute, StaticCompute
from llm_perf_opt.analyses.cost.whole_run_report import source_chapters
from llm_perf_opt.analyses.run_description import setting_texts
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Level, Note, Report, Series, Table, table_of
from llm_perf_opt.core.source_figures import left_out
from llm_perf_opt.core.units import format_count, format_flops

TOP_OPERATORS = 8
_AT_LEAST = Column("FLOPs, at least", Kind.FLOPS)
_ACTIVE = Column("active per decode step", Kind.COUNT)  # grows with the batch, whose tokens choose other experts


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
        chapters=(*(_stage_chapter(stage) for stage in static.stages), *source_chapters(static)),
    )


def _configuration(static: StaticCompute) -> Table:
    libraries = ", ".join(f"{name} {version}" for name, version in static.library_versions.items())
    ran = (("libraries", libraries),) if libraries else ()
    rows = (("model", static.model), *setting_texts(static.workload).items(), *ran)
    return Table(title="Configuration", columns=(Column("setting"), Column("value")), rows=rows)


def _totals(static: StaticCompute) -> Table:
    """Active parameters are those of a decode step, and left out where nothing is decoded.

    Where every source left something out of a stage the FLOPs are unknown, and a column says what they are at least.
    """
    flops = static.flops
    cells: dict[Column, Cell] = {
        Column("parameters", Kind.COUNT): static.parameters,
        _ACTIVE: static.active_parameters,
        Column("FLOPs", Kind.FLOPS): flops,
        **({_AT_LEAST: static.flops_at_least} if flops is None else {}),
        Column("MACs", Kind.MACS): None if flops is None else flops // 2,
        Column("KV cache at the end", Kind.BYTES): static.last("kv_cache_bytes"),
        Column("KV per token", Kind.BYTES): static.last("kv_bytes_per_token"),
    }
    if all(stage.phase != "decode" for stage in static.stages):
        del cells[_ACTIVE]
    return Table(title="Totals", columns=tuple(cells), rows=(tuple(cells.values()),))


def _stages(static: StaticCompute) -> Table:
    table = table_of(
        "Stages",
        static.stages,
        {
            Column("stage"): lambda stage: stage.name,
            Column("parameters", Kind.COUNT): lambda stage: stage.first("parameters"),
            Column("FLOPs", Kind.FLOPS): lambda stage: stage.flops,
            Column("activations", Kind.COUNT): lambda stage: stage.first("activations"),
            Column("bytes moved", Kind.BYTES): lambda stage: stage.first("bytes_moved"),
        },
    )
    figures = ("activations", "bytes_moved")
    sums = (known_sum((stage.first(figure) for stage in static.stages), empty=0) for figure in figures)
    return replace(table, footer=("total", static.parameters, static.flops, *sums))


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


def _flops_of(stage: StageCompute, name: str) -> int:
    return sum(operator.flops or 0 for operator in stage.operators if _short(operator.name) == name)


def _stage_chapter(stage: StageCompute) -> Report:
    """The most expensive operators of one stage, by the source that its figure is taken from."""
    table = table_of(
        "Top operators",
        stage.operators[:TOP_OPERATORS],
        {
            Column("operator"): lambda operator: _short(operator.name),
            Column("kind"): lambda operator: operator.family.value,
            Column("calls", Kind.COUNT): lambda operator: operator.calls,
            Column("FLOPs", Kind.FLOPS): lambda operator: operator.flops,
            Column("share", Kind.RATIO): lambda operator: _share(operator.flops, stage.flops),
        },
    )
    source, partial = stage.preferred, stage.incomplete
    if source is not None:
        taken_from = Note(f"FLOPs are those of {source.source} ({source.method.value}).")
    elif partial is not None:
        taken_from = Note(f"The operators are those of {partial.source}, which left something out.", Level.WARNING)
    else:
        taken_from = Note("No source has a figure.", Level.WARNING)
    more = len(stage.operators) - TOP_OPERATORS
    cut = (Note(f"{more} more operators are in the JSON file."),) if more > 0 else ()
    notes = (Note(f"{source.source}: {note}.") for source in stage.sources for note in source.notes)
    return Report(
        title=f"{stage.name} ({stage.phase})" if stage.name != stage.phase else stage.name,
        tables=(table,) if table.rows else (),
        notes=(taken_from, *cut, *notes),
    )


def _share(flops: int | None, whole: int | None) -> float | None:
    return None if flops is None or not whole else flops / whole


def _incomplete_note(stage: StageCompute) -> Iterator[Note]:
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
    if len(names := sources_with_figures(static)) == 1:
        yield Note(f"One source only, {names[0]}: nothing was compared.")
    silent: dict[tuple[str, str], list[str]] = {}
    for source, phase, stage, reason in static.ledger.missing:
        silent.setdefault((source, reason), []).append(f"{stage} ({phase})")
    for (source, reason), stages in silent.items():
        yield Note(f"{source} says nothing of {', '.join(stages)}: {reason}.", Level.WARNING)
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
