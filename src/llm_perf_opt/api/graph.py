"""One phase of a trace folded into families of modules, and drawn in the format that a file's suffix names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.runtime_log import write_runtime_log
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box, Figures, GraphView
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import DRAWINGS
from llm_perf_opt.core.protocols import DrawsPhases
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table
from llm_perf_opt.core.units import format_bytes, format_flops
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.graphs.view import MAX_BOXES, group

_COLUMNS = (
    Column("box"),
    Column("stage"),
    Column("loops"),
    Column("instances", Kind.COUNT),
    Column("calls", Kind.COUNT),
    Column("FLOPs", Kind.FLOPS),
    Column("bytes moved", Kind.BYTES),
    Column("activation bytes", Kind.BYTES),
    Column("parameters", Kind.COUNT),
)
_NOTEBOOK_BYTES = 60_000
_FEWER_BOXES = (28, 20, 12, 6)
_FEWEST_BOXES = 6
_COLLECTIVES = (Column("collectives", Kind.COUNT), Column("collective payload", Kind.BYTES))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GraphAnswer(Answer):
    """A tree of boxes: `view.roots`, each with its `children`, `loops` and `figures`."""

    phase: str
    view: GraphView
    _graphs: tuple[CallGraph, ...] = ()  # all phases of the run, for a page that switches between them
    _options: Mapping[str, Any] = field(default_factory=dict)  # of `group`, as they were given

    def report(self) -> Report:
        """The picture, and its boxes as a table; for one rank of several also its collectives."""
        columns: tuple[Column, ...] = _COLUMNS
        rows = tuple(_row(box) for box in self.view.visible())
        if any(root.collectives for root in self.view.roots):
            columns = (*_COLUMNS, *_COLLECTIVES)
            rows = tuple((*row, *_collective_totals(box)) for row, box in zip(rows, self.view.visible(), strict=True))
        return Report(
            title=self.view.title,
            tables=(Table(title="Boxes", columns=columns, rows=rows),),
            notes=tuple(Note(line) for line in self.view.caption),
            graph=self.view,
        )

    @property
    def totals(self) -> Figures:
        """All that is shown, added up: FLOPs, bytes moved, activation memory, parameters."""
        return self.view.totals

    def save_runtime_log(self, path: str | Path, *, force: bool = False) -> Path:
        """Write what the loops of the phase did (images, grids of crops, layers, steps) as a file of its own."""
        graph = next(graph for graph in self._graphs if graph.phase == self.phase)
        return write_runtime_log(graph, path, overwrite=force)

    def draw(self, format_name: str = "text", metric: str = "flops") -> str | bytes:
        """The picture in one of the formats of `graph --format`, boxes weighed by `metric`.

        The page of the format `html` holds all phases of the run and begins with this one.
        """
        drawing = DRAWINGS.get(format_name)(metric)
        if not isinstance(drawing, DrawsPhases):
            return drawing.render(self.view)
        return drawing.render_phases(self._views(), self.phase, fits=self._options.get("depth") is None)

    def save(self, path: str | Path, metric: str = "flops", *, force: bool = False) -> Path:
        """Write the picture. The suffix is the format: .html, .svg, .png, .dot, .mmd and so on. `force` overwrites."""
        path = Path(path)
        format_name = drawing_format_of(path)
        free_file(path, force=force)
        write_result(path, self.draw(format_name, metric))
        return path

    def _views(self) -> dict[str, GraphView]:
        """Every phase with the same options; where they do not suit one, this phase says why it is missing."""
        views, missing = {self.phase: self.view}, []
        for graph in self._graphs:
            if graph.phase == self.phase or graph.calls is None:
                continue
            try:
                views[graph.phase] = grouped(graph, **self._options)
            except UsageError as error:
                missing.append(f"{graph.phase} is not on this page: {error.what}")
        ordered = [graph.phase for graph in self._graphs if graph.phase in views] or [self.phase]
        views[self.phase] = replace(self.view, caption=(*self.view.caption, *missing))
        return {phase: views[phase] for phase in ordered}

    def __repr__(self) -> str:
        return str(self.draw())

    def _repr_html_(self) -> str:
        """The picture, with as many boxes open as 60 kB hold: a notebook keeps every output."""
        drawing = DRAWINGS.get("svg")()
        shown = (f'<div style="overflow:auto">{drawing.render(view)!s}</div>' for view in self._smaller_views())
        return next(text for text in shown if len(text.encode()) <= _NOTEBOOK_BYTES)

    def _smaller_views(self) -> Iterator[GraphView]:
        """The view, then with fewer and fewer boxes open; at last the roots alone."""
        yield self.view
        options = {**self._options, "depth": None, "ungrouped": False}
        for graph in (graph for graph in self._graphs if graph.phase == self.phase):
            yield from (grouped(graph, **{**options, "max_boxes": most}) for most in _FEWER_BOXES)
        closed = tuple(replace(root, is_open=False, children=(), arrows=()) for root in self.view.roots[:_FEWEST_BOXES])
        yield replace(self.view, roots=closed, caption=())


def graph_answer(graph: CallGraph, graphs: tuple[CallGraph, ...] = (), **options: Any) -> GraphAnswer:
    """The picture of one phase; `graphs` are all phases of its run, `options` go to `group`."""
    return GraphAnswer(phase=graph.phase, view=grouped(graph, **options), _graphs=graphs or (graph,), _options=options)


def grouped(
    graph: CallGraph,
    *,
    depth: int | None = None,
    focus: str | None = None,
    max_boxes: int | None = None,
    metric: str = "flops",
    only: str | Iterable[str] | None = None,
    stage: str | Iterable[str] | None = None,
    min_share: float | str | None = None,
    ungrouped: bool = False,
) -> GraphView:
    """The boxes of one phase, with the stored formats in its caption, and of a part of it what it adds up to."""
    view = group(
        graph,
        depth=depth,
        focus=focus,
        max_boxes=max_boxes or MAX_BOXES,
        metric=metric,
        only=only,
        stage=stage,
        min_share=min_share,
        ungrouped=ungrouped,
    )
    together = () if focus is None else (totals_text(view.totals),)
    return replace(view, caption=(*together, *view.caption, *(note.text for note in deployment_notes([graph]))))


def totals_text(totals: Figures) -> str:
    """What a part costs in all: `Together: 2.45 TFLOP, 12.1 GiB moved, 9.9 GiB of activation memory`."""
    moved, held = (
        "?" if size is None else format_bytes(size) for size in (totals.bytes_moved, totals.activation_bytes)
    )
    flops = "FLOPs not known" if totals.flops is None else format_flops(totals.flops)
    return f"Together: {flops}, {moved} moved, {held} of activation memory."


def drawing_format_of(path: Path) -> str:
    """The drawing format for a file's suffix; the longer of two suffixes wins: `.speedscope.json` over `.json`."""
    suffixes = {name: DRAWINGS.get(name).suffix for name in DRAWINGS.names()}
    named = [name for name, suffix in suffixes.items() if path.name.endswith(suffix)]
    if named:
        return max(named, key=lambda name: len(suffixes[name]))
    alike = [name for name, suffix in suffixes.items() if path.suffix and suffix.endswith(path.suffix)]
    if not alike:
        raise UsageError(
            f"No format is known for the ending of {path}.",
            why="without --format it tells how to draw",
            fix=f"add --format, one of: {', '.join(DRAWINGS.names())}",
        )
    return alike[0]


def _collective_totals(box: Box) -> tuple[int, int]:
    """How many collectives, and the bytes of their payloads."""
    parts = box.collectives
    return sum(part.count for part in parts), sum(part.count * part.payload_bytes for part in parts)


def _row(box: Box) -> tuple[str | int | None, ...]:
    return (
        box.label,
        box.stage,
        ", ".join(loop.text for loop in box.loops),
        box.instances,
        box.calls,
        box.figures.flops,
        box.figures.bytes_moved,
        box.figures.activation_bytes,
        box.figures.parameters,
    )
