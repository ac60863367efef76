"""The static compute report for people: totals, the five-column stage table, sources side by side, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import deepest_claim, label_of, path_pattern
from llm_perf_opt.core.graph_view import share
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Level, Listing, Note, Report, Series, Table, table_of
from llm_perf_opt.core.source_figures import ModuleFigure, SourceFigures, left_out
from llm_perf_opt.core.units import format_count, format_flops, macs_of
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.reconcile import FigureDifference, FlopsDifference, SingleSource
from llm_perf_opt.costs.run_description import setting_texts
from llm_perf_opt.costs.stage_costs import module_costs
from llm_perf_opt.costs.static_figures import StageCompute, StaticCompute

TOP_OPERATORS = 8
_AT_LEAST = Column("FLOPs, at least", Kind.FLOPS)
_ACTIVE = Column("active per decode step", Kind.COUNT)  # grows with the batch: more tokens choose more experts


def static_report(static: StaticCompute, graphs: Sequence[CallGraph] = ()) -> Report:
    """A summary, then everything but memory, which is a chapter of its own; each stage is a chapter too.

    The summary is one screen: stages with their shares, what the sources disagree on, and the largest modules of
    `graphs`. `Totals` begins the rest.
    """
    return Report(
        title=f"{static.model}: static compute",
        tables=(
            _stages(static),
            *_disagreements(static),
            *_largest_modules(graphs),
            _totals(static),
            *source_tables(static),
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
    """Active parameters are counted for a decode step, and left out where nothing is decoded.

    Where every source left something out of a stage the FLOPs are unknown, and a column says what they are at least.
    """
    flops = static.flops
    cells: dict[Column, Cell] = {
        Column("parameters", Kind.COUNT): static.parameters,
        _ACTIVE: static.active_parameters,
        Column("FLOPs", Kind.FLOPS): flops,
        **({_AT_LEAST: static.flops_at_least} if flops is None else {}),
        Column("MACs", Kind.MACS): macs_of(flops),
        Column("KV cache at the end", Kind.BYTES): static.last("kv_cache_bytes"),
        Column("KV per token", Kind.BYTES): static.last("kv_bytes_per_token"),
    }
    if all(stage.phase != "decode" for stage in static.stages):
        del cells[_ACTIVE]
    return Table(title="Totals", columns=tuple(cells), rows=(tuple(cells.values()),), origin=_COUNTED)


def _stages(static: StaticCompute) -> Table:
    table = table_of(
        "Stages",
        static.stages,
        {
            Column("stage"): lambda stage: stage.name,
            Column("parameters", Kind.COUNT): lambda stage: stage.first("parameters"),
            Column("FLOPs", Kind.FLOPS): lambda stage: stage.flops,
            Column("share", Kind.RATIO): lambda stage: share(stage.flops, static.flops),
            Column("activations", Kind.COUNT): lambda stage: stage.first("activations"),
            Column("bytes moved", Kind.BYTES): lambda stage: stage.first("bytes_moved"),
        },
    )
    figures = ("activations", "bytes_moved")
    sums = (known_sum((stage.first(figure) for stage in static.stages), empty=0) for figure in figures)
    of_all = share(static.flops, static.flops)
    table = replace(table, formulas={"share": ("share", "FLOPs")}, origin=_COUNTED)
    return replace(table, footer=("total", static.parameters, static.flops, of_all, *sums))


_COUNTED = "the ops of the trace, each at its price by shape (docs/how/counting.md), added up"
_COMPARED = "what the named source counts in the same run (docs/evidence/source-agreement.md)"
_SHOWN_DIFFERENCES = 5
_LARGEST_MODULES = 3


def _disagreements(static: StaticCompute) -> Iterator[Table]:
    """The largest differences between sources, of whole stages where these differ; none where all agree."""
    differences = static.ledger.differences
    alike: dict[tuple[str, str, str, int, str], list[str]] = {}  # which sources differ so from the one on the right
    for entry in [entry for entry in differences if entry.family is None] or differences:
        causes = ", ".join(part.cause for part in entry.explanations) or "unknown"
        alike.setdefault((entry.phase, entry.stage, entry.right, entry.flops, causes), []).append(entry.left)
    flops = {(stage.phase, stage.name): stage.flops for stage in static.stages}
    if alike:
        yield table_of(
            "Where the sources disagree",
            sorted(alike, key=lambda key: -abs(key[3]))[:_SHOWN_DIFFERENCES],
            {
                Column("stage"): lambda key: key[1],
                Column("sources"): lambda key: f"{', '.join(alike[key])} - {key[2]}",
                Column("difference", Kind.FLOPS): lambda key: key[3],
                Column("of the stage", Kind.RATIO): lambda key: share(key[3], flops.get(key[:2])),
                Column("cause"): lambda key: key[4],
            },
            origin=_COMPARED,
        )


def _largest_modules(graphs: Sequence[CallGraph]) -> Iterator[Table]:
    """The modules that run the most FLOPs themselves; modules with paths that differ in numbers alone count as one."""
    flops, calls = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    paths: dict[tuple[str, str], list[str]] = {}
    classes: dict[tuple[str, str], str] = {}
    for graph in (graph for graph in graphs if graph.ops is not None and graph.calls is not None):
        claims = {path: stage for stage, claimed in graph.stages for path in claimed}
        for path, cost in module_costs(graph).by_path.items():
            key = (deepest_claim(path, claims) or graph.phase, path_pattern(path))
            flops[key] += cost.own.flops
            calls[key] += cost.calls
            paths.setdefault(key, []).append(path)
            classes.setdefault(key, graph.module_types.get(path, ""))
    if total := flops.total():
        yield table_of(
            "Largest modules",
            [key for key, count in flops.most_common(_LARGEST_MODULES) if count],
            {
                Column("module"): lambda key: f"{classes[key]} @ {label_of(paths[key], _LARGEST_MODULES) or '(root)'}",
                Column("stage"): lambda key: key[0],
                Column("calls", Kind.COUNT): lambda key: calls[key],
                Column("FLOPs", Kind.FLOPS): lambda key: flops[key],
                Column("share", Kind.RATIO): lambda key: share(flops[key], total),
            },
            origin=f"{_COUNTED}; the ops that run directly in the module",
        )


def _charts(static: StaticCompute) -> Iterator[BarChart]:
    stages = [stage for stage in static.stages if stage.flops_at_least]
    if not stages:
        return
    names = dict.fromkeys(
        short_name(operator.name) for stage in stages for operator in stage.operators if operator.flops
    )
    yield BarChart(
        title="FLOPs by stage and operator",
        categories=tuple(stage.name for stage in stages),
        series=tuple(Series(name, tuple(_flops_of(stage, name) for stage in stages)) for name in names),
        kind=Kind.FLOPS,
        is_stacked=True,
        caption="" if static.flops is not None else "A source left something out of a stage: bars are lower bounds.",
    )
    yield from agreement_chart(static)


def short_name(operator: str) -> str:
    """`mm` for `aten.mm.default`."""
    return operator.removeprefix("aten.").removesuffix(".default")


def _flops_of(stage: StageCompute, name: str) -> int:
    return sum(operator.flops or 0 for operator in stage.operators if short_name(operator.name) == name)


def _stage_chapter(stage: StageCompute) -> Report:
    """The most expensive operators of one stage, by the source that its figure is taken from."""
    table = table_of(
        "Top operators",
        stage.operators[:TOP_OPERATORS],
        {
            Column("operator"): lambda operator: short_name(operator.name),
            Column("kind"): lambda operator: operator.family.value,
            Column("calls", Kind.COUNT): lambda operator: operator.calls,
            Column("FLOPs", Kind.FLOPS): lambda operator: operator.flops,
            Column("share", Kind.RATIO): lambda operator: share(operator.flops, stage.flops),
        },
        origin=f"{_COUNTED}, of the stage {stage.name}",
    )
    source, partial = stage.preferred, stage.incomplete
    if source is not None:
        taken_from = Note(f"FLOPs are taken from {source.source} ({source.method.value}).")
    elif partial is not None:
        taken_from = Note(f"The operators are taken from {partial.source}, which left something out.", Level.WARNING)
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
        yield Note(f"{names[0]} is the only source, so nothing was compared.")
    silent: dict[tuple[str, str], list[str]] = {}
    for source, phase, stage, reason in static.ledger.missing:
        silent.setdefault((source, reason), []).append(f"{stage} ({phase})")
    for (source, reason), stages in silent.items():
        yield Note(f"{source} has no figures for {', '.join(stages)}: {reason}.", Level.WARNING)
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


# A source that tells modules apart, in its own words: whole phases, by operator, by module, and its own table.
#
# fvcore is the one that does. Everything that is cut off here, modules inside modules, is in `static_compute.json`.

_SHOWN_DEPTH = 2  # parts of a path: `model.layers` is shown, `model.layers.0` is not
_OURS = "our formula"


def source_chapters(static: StaticCompute) -> Iterator[Report]:
    """One chapter per source that took a phase as one piece."""
    for source in dict.fromkeys(run.source for run in static.whole_runs):
        runs = [run for run in static.whole_runs if run.source == source]
        stages = [figures for run in runs for figures in _stages_of(static, run)]
        if not stages:
            continue
        yield Report(
            title=source,
            tables=(_runs_table(static, runs), _operators_table(stages), _modules_table(stages), _both_table(stages)),
            listings=tuple(_listing(figures) for figures in stages if figures.own_table is not None),
            notes=tuple(_whole_run_notes(static, runs)),
        )


def _stages_of(static: StaticCompute, run: SourceFigures) -> tuple[SourceFigures, ...]:
    """The phase as one piece; where it could not be taken so, its stages."""
    if run.failure is None:
        return (run,)
    stages = (figures for stage in static.stages for figures in stage.sources if stage.phase == run.phase)
    return tuple(figures for figures in stages if figures.source == run.source and figures.failure is None)


def _name(figures: SourceFigures) -> str:
    return figures.phase if figures.stage == figures.phase else f"{figures.phase}, {figures.stage}"


def _runs_table(static: StaticCompute, runs: Sequence[SourceFigures]) -> Table:
    return table_of(
        "Whole phases",
        runs,
        {
            Column("phase"): lambda run: run.phase,
            Column("FLOPs, at least", Kind.FLOPS): lambda run: run.at_least_flops,
            Column("MACs, at least", Kind.MACS): lambda run: macs_of(run.at_least_flops),
            Column("ops left out", Kind.COUNT): lambda run: None if run.failure else run.left_out_ops,
            Column("FLOPs, completed by us", Kind.FLOPS): lambda run: run.completed_flops,
            Column("stages add up to", Kind.FLOPS): lambda run: static.phase_flops(run.phase),
            Column("activations", Kind.COUNT): lambda run: run.activations,
            Column("parameters", Kind.COUNT): lambda run: run.parameters,
            Column("tensors"): lambda run: run.tensors,
        },
        origin=_COMPARED,
    )


def _operators_table(stages: Sequence[SourceFigures]) -> Table:
    rows = [
        (_name(figures), name, flops, by, activations)
        for figures in stages
        for name, flops, by, activations in _operators(figures)
    ]
    return table_of(
        "By operator",
        rows,
        {
            Column("phase"): lambda row: row[0],
            Column("operator"): lambda row: row[1],
            Column("MACs", Kind.MACS): lambda row: macs_of(row[2]),
            Column("FLOPs", Kind.FLOPS): lambda row: row[2],
            Column("counted by"): lambda row: row[3],
            Column("activations", Kind.COUNT): lambda row: row[4],
        },
        origin=_COMPARED,
    )


def _operators(figures: SourceFigures) -> Iterator[tuple[str, int | None, str, int | None]]:
    """What the source counts, then what it has no formula for and we have."""
    for operator in figures.operators:
        yield operator.name, operator.flops, figures.source, operator.activations
    for spot in figures.blind_spots:
        if spot.operator in figures.completed_with:
            yield spot.operator, spot.flops, _OURS if spot.flops is not None else "nobody", None


def _shown(figures: SourceFigures) -> Iterator[ModuleFigure]:
    for module in figures.modules:
        if len(module.path.split(".")) <= _SHOWN_DEPTH:
            yield module


def _modules_table(stages: Sequence[SourceFigures]) -> Table:
    return table_of(
        "By module",
        [(figures, module) for figures in stages for module in _shown(figures)],
        {
            Column("phase"): lambda pair: _name(pair[0]),
            Column("module"): lambda pair: pair[1].path or "(model)",
            Column("MACs counted", Kind.MACS): lambda pair: pair[1].macs,
            Column("FLOPs counted", Kind.FLOPS): lambda pair: pair[1].flops,
            Column("FLOPs, completed by us", Kind.FLOPS): lambda pair: pair[1].completed_flops,
            Column("activations", Kind.COUNT): lambda pair: pair[1].activations,
        },
        origin=_COMPARED,
    )


def _both_table(stages: Sequence[SourceFigures]) -> Table:
    rows = [
        (_name(figures), module.path or "(model)", name, flops)
        for figures in stages
        for module in _shown(figures)
        for name, flops in module.operators
        if flops
    ]
    return table_of(
        "By module and operator",
        rows,
        {
            Column("phase"): lambda row: row[0],
            Column("module"): lambda row: row[1],
            Column("operator"): lambda row: row[2],
            Column("MACs", Kind.MACS): lambda row: row[3] // 2,
            Column("FLOPs", Kind.FLOPS): lambda row: row[3],
        },
        origin=_COMPARED,
    )


def _listing(figures: SourceFigures) -> Listing:
    unit = "MACs" if figures.unit == "mac" else "FLOPs"
    return Listing(f"Table of {figures.source}, {_name(figures)}; #flops are {unit}", figures.own_table or "")


def _whole_run_notes(static: StaticCompute, runs: Sequence[SourceFigures]) -> Iterator[Note]:
    if any(run.unit == "mac" for run in runs):
        yield Note(f"{runs[0].source} counts a multiply-add as one flop: its own figures are the MACs.")
    yield Note("Modules inside these are in static_compute.json.")
    for run in runs:
        if run.failure is not None:
            yield Note(f"{run.source} could not count {run.phase} as a whole: {run.failure}.", Level.WARNING)
            continue
        yield from _completion_note(static, run)
        yield from (Note(f"{run.phase}: {note}.") for note in run.notes)


def _completion_note(static: StaticCompute, run: SourceFigures) -> Iterator[Note]:
    """Whether the phase as one piece is what its stages add up to."""
    stages, total = static.phase_flops(run.phase), run.completed_flops
    if run.completed_with:
        names = ", ".join(run.completed_with)
        yield Note(f"{run.phase}: {run.source} has no formula for {names}; the completed figure takes ours for it.")
    if stages is not None and total is not None and stages != total:
        yield Note(
            f"{run.phase}: {run.source} has {format_flops(total)} for the whole phase, and its stages add up to "
            f"{format_flops(stages)}.",
            Level.WARNING,
        )


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
        origin=_COMPARED,
    )
    if has_gaps:
        yield _incomplete_table(static)
    counters = _names_with(static, "bytes_moved")
    if len(counters) > 1:
        yield Table(
            title="Bytes moved by source",
            columns=(Column("stage"), *(Column(name, Kind.BYTES) for name in counters)),
            rows=tuple((stage.name, *_figures(stage, "bytes_moved", counters)) for stage in static.stages),
            origin=_COMPARED,
        )


def incomplete_sources(stage: StageCompute) -> tuple[SourceFigures, ...]:
    """Sources that counted something in the stage and left something out of it, or added something to it."""
    return tuple(source for source in stage.sources if source.flops is not None and not source.is_complete)


def _complete_flops(stage: StageCompute, sources: tuple[str, ...]) -> tuple[int | None, ...]:
    complete = {source.source: source.flops for source in stage.sources if source.is_complete}
    return tuple(complete.get(name) for name in sources)


def _incomplete_table(static: StaticCompute) -> Table:
    """Lower bounds, what they lack, and what they are once formulas of ours fill the gaps."""
    incomplete = [(stage, source) for stage in static.stages for source in incomplete_sources(stage)]
    return table_of(
        "Sources that left something out",
        incomplete,
        {
            Column("stage"): lambda pair: pair[0].name,
            Column("source"): lambda pair: pair[1].source,
            Column("FLOPs, at least", Kind.FLOPS): lambda pair: pair[1].at_least_flops,
            Column("MACs, at least", Kind.MACS): lambda pair: macs_of(pair[1].at_least_flops),
            Column("ops left out", Kind.COUNT): lambda pair: pair[1].left_out_ops,
            Column("what"): lambda pair: left_out(pair[1]),
            Column("FLOPs, completed by us", Kind.FLOPS): lambda pair: pair[1].completed_flops,
        },
        origin=_COMPARED,
    )


def agreement_chart(static: StaticCompute) -> Iterator[BarChart]:
    """Every source as a part of the preferred figure; only where there are two sources to compare."""
    sources = _names_with(static, "flops")
    stages = [stage for stage in static.stages if stage.flops]
    if len(sources) < 2 or not stages:
        return
    yield BarChart(
        title="Source agreement",
        categories=tuple(stage.name for stage in stages),
        series=tuple(Series(source, tuple(_share_of_source(stage, source) for stage in stages)) for source in sources),
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
        origin=_COMPARED,
    )


def _causes_text(entry: FlopsDifference) -> str:
    causes = "; ".join(f"{part.cause} {format_flops(part.flops)} ({part.detail})" for part in entry.explanations)
    if entry.one_source is not None:
        return f"one source only, {entry.one_source}: {causes}"
    return causes or "unknown"


def _one_source_table(single: Sequence[SingleSource]) -> Table:
    """One row per figure and source, with the stages that it holds for."""
    stages: dict[tuple[str, str], dict[str, None]] = {}
    for alone in single:
        figure = _words(alone.figure) if alone.family is None else f"FLOPs, {alone.family.value}"
        stages.setdefault((figure, alone.source), {})[alone.stage] = None
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
    sources = (source for stage in static.stages for source in stage.sources if getattr(source, figure) is not None)
    return tuple(dict.fromkeys(source.source for source in sources))


def _figures(stage: StageCompute, figure: str, sources: tuple[str, ...]) -> tuple[int | None, ...]:
    by_source = {source.source: getattr(source, figure) for source in stage.sources}
    return tuple(by_source.get(name) for name in sources)


def _share_of_source(stage: StageCompute, source: str) -> float | None:
    flops = {figures.source: figures.flops for figures in stage.sources}.get(source)
    return None if flops is None or not stage.flops else flops / stage.flops
