"""A source that tells modules apart, in its own words: whole phases, by operator, by module, and its own table.

fvcore is the one that does. Everything that is cut off here, modules inside modules, is in `static_compute.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.cost.static_figures import StaticCompute
from llm_perf_opt.core.report import Column, Kind, Level, Listing, Note, Report, Table, table_of
from llm_perf_opt.core.source_figures import ModuleFigure, SourceFigures
from llm_perf_opt.core.units import format_flops

_SHOWN_DEPTH = 2  # parts of a path: `model.layers` is shown, `model.layers.0` is not
_OURS = "our formula"


def source_chapters(static: StaticCompute) -> Iterator[Report]:
    """One chapter per source that took a phase as one piece."""
    for source in dict.fromkeys(run.source for run in static.whole_runs):
        runs = [run for run in static.whole_runs if run.source == source]
        told = [figures for run in runs for figures in _told(static, run)]
        if not told:
            continue
        yield Report(
            title=source,
            tables=(_runs_table(static, runs), _operators_table(told), _modules_table(told), _both_table(told)),
            listings=tuple(_listing(figures) for figures in told if figures.own_table is not None),
            notes=tuple(_notes(static, runs)),
        )


def _told(static: StaticCompute, run: SourceFigures) -> tuple[SourceFigures, ...]:
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
            Column("MACs, at least", Kind.MACS): lambda run: _halved(run.at_least_flops),
            Column("ops left out", Kind.COUNT): lambda run: None if run.failure else run.left_out_ops,
            Column("FLOPs, completed by us", Kind.FLOPS): lambda run: run.completed_flops,
            Column("stages add up to", Kind.FLOPS): lambda run: static.phase_flops(run.phase),
            Column("activations", Kind.COUNT): lambda run: run.activations,
            Column("parameters", Kind.COUNT): lambda run: run.parameters,
            Column("tensors"): lambda run: run.tensors,
        },
    )


def _halved(flops: int | None) -> int | None:
    return None if flops is None else flops // 2


def _operators_table(told: Sequence[SourceFigures]) -> Table:
    rows = [
        (_name(figures), name, flops, by, activations)
        for figures in told
        for name, flops, by, activations in _operators(figures)
    ]
    return table_of(
        "By operator",
        rows,
        {
            Column("phase"): lambda row: row[0],
            Column("operator"): lambda row: row[1],
            Column("MACs", Kind.MACS): lambda row: _halved(row[2]),
            Column("FLOPs", Kind.FLOPS): lambda row: row[2],
            Column("counted by"): lambda row: row[3],
            Column("activations", Kind.COUNT): lambda row: row[4],
        },
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


def _modules_table(told: Sequence[SourceFigures]) -> Table:
    return table_of(
        "By module",
        [(figures, module) for figures in told for module in _shown(figures)],
        {
            Column("phase"): lambda pair: _name(pair[0]),
            Column("module"): lambda pair: pair[1].path or "(model)",
            Column("MACs counted", Kind.MACS): lambda pair: pair[1].macs,
            Column("FLOPs counted", Kind.FLOPS): lambda pair: pair[1].flops,
            Column("FLOPs, completed by us", Kind.FLOPS): lambda pair: pair[1].completed_flops,
            Column("activations", Kind.COUNT): lambda pair: pair[1].activations,
        },
    )


def _both_table(told: Sequence[SourceFigures]) -> Table:
    rows = [
        (_name(figures), module.path or "(model)", name, flops)
        for figures in told
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
    )


def _listing(figures: SourceFigures) -> Listing:
    unit = "MACs" if figures.unit == "mac" else "FLOPs"
    return Listing(f"Table of {figures.source}, {_name(figures)}; #flops are {unit}", figures.own_table or "")


def _notes(static: StaticCompute, runs: Sequence[SourceFigures]) -> Iterator[Note]:
    if any(run.unit == "mac" for run in runs):
        yield Note(f"{runs[0].source} counts a multiply-add as one flop: its own figures are the MACs.")
    yield Note("Modules inside these are in static_compute.json.")
    for run in runs:
        if run.failure is not None:
            yield Note(f"{run.source} did not take {run.phase} as a whole: {run.failure}.", Level.WARNING)
            continue
        yield from _completion_note(static, run)
        yield from (Note(f"{run.phase}: {note}.") for note in run.notes)


def _completion_note(static: StaticCompute, run: SourceFigures) -> Iterator[Note]:
    """Whether the phase as one piece is what its stages add up to."""
    stages, whole = static.phase_flops(run.phase), run.completed_flops
    if run.completed_with:
        names = ", ".join(run.completed_with)
        yield Note(f"{run.phase}: {run.source} has no formula for {names}; the completed figure takes ours for it.")
    if stages is not None and whole is not None and stages != whole:
        yield Note(
            f"{run.phase}: {run.source} has {format_flops(whole)} for the whole phase, and its stages add up to "
            f"{format_flops(stages)}.",
            Level.WARNING,
        )
