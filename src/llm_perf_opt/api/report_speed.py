"""How fast a run could be, as a chapter of the whole report: one machine in detail, or several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.api.prediction import PhaseBand, PredictionAnswer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Report, Series, Table


def speed_title(predictions: Sequence[PredictionAnswer]) -> str:
    """The question, with the machine where there is but one."""
    machine = f" on {predictions[0].machine}" if len(predictions) == 1 else ""
    return f"How fast could it be{machine}?"


def speed_chapter(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Report:
    """The stages on one machine; of several a chart for each phase, and a chapter for each machine."""
    if len(predictions) == 1:
        return replace(predictions[0].times(), title=speed_title(predictions))
    return Report(
        title=speed_title(predictions),
        charts=tuple(_charts(graphs, predictions)),
        chapters=tuple(replace(one.times(), title=one.machine) for one in predictions),
    )


def machine_table(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Table:
    """A row for each phase on each machine: its times, and whether the machine has the memory."""
    rows = [(one, one.phase_band(graph)) for one in predictions for graph in graphs]
    has_expected = any(band.expected_s is not None for _, band in rows)
    edges = ("low", "expected", "high") if has_expected else ("data sheet low", "data sheet high")
    times = ("lower bound", *edges)
    memory = (Column("needed by the run", Kind.BYTES), Column("of its memory", Kind.RATIO), Column("fits"))
    return Table(
        title="By device",
        columns=(Column("device"), Column("phase"), *(Column(name, Kind.SECONDS) for name in times), *memory),
        rows=tuple((one.machine, band.name, *_times(band, has_expected), *_memory(one)) for one, band in rows),
    )


def _times(band: PhaseBand, has_expected: bool) -> tuple[Cell, ...]:
    expected = (band.expected_s,) if has_expected else ()
    return (band.lower_bound_s, band.low_s, *expected, band.high_s)


def _memory(one: PredictionAnswer) -> tuple[Cell, ...]:
    needed, device = one.needed_bytes, one.device
    share = None if needed is None or device is None else needed / device.memory_bytes
    return needed, share, {True: "yes", False: "no", None: None}[one.fits]


def _charts(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Iterator[BarChart]:
    """A chart for each phase: lower bound, low and high of every machine."""
    for graph in graphs:
        bands = [one.phase_band(graph) for one in predictions]
        yield BarChart(
            title=f"Predicted time by device: {bands[0].name}",
            categories=tuple(one.machine for one in predictions),
            series=(
                Series("lower bound", tuple(band.lower_bound_s for band in bands)),
                Series("low", tuple(band.low_s for band in bands)),
                Series("high", tuple(band.high_s for band in bands)),
            ),
            kind=Kind.SECONDS,
            caption="Nothing runs faster than the lower bound; a run is expected between low and high.",
        )
