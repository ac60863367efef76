"""One phase of a trace folded into families of modules, and drawn in the format that a file's suffix names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.analyses.grouping.view import MAX_BOXES, group
from llm_perf_opt.analyses.run_description import deployment_notes
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import DRAWINGS
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table

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
_COLLECTIVES = (Column("collectives", Kind.COUNT), Column("collective payload", Kind.BYTES))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GraphAnswer(Answer):
    """A tree of boxes: `view.roots`, each with its `children`, `loops` and `figures`."""

    phase: str
    view: GraphView

    def report(self) -> Report:
        """The picture, and the boxes that it shows as a table; of a rank among several with what they exchange."""
        columns: tuple[Column, ...] = _COLUMNS
        rows = tuple(_row(box) for box in self.view.visible())
        if any(root.collectives for root in self.view.roots):
            columns = (*_COLUMNS, *_COLLECTIVES)
            rows = tuple((*row, *_exchanged(box)) for row, box in zip(rows, self.view.visible(), strict=True))
        return Report(
            title=self.view.title,
            tables=(Table(title="Boxes", columns=columns, rows=rows),),
            notes=tuple(Note(line) for line in self.view.caption),
            graph=self.view,
        )

    def draw(self, format_name: str = "text", metric: str = "flops") -> str | bytes:
        """The picture in one of the formats of `graph --format`, boxes weighed by `metric`."""
        return DRAWINGS.get(format_name)(metric).render(self.view)

    def save(self, path: str | Path, metric: str = "flops", *, force: bool = False) -> Path:
        """Write the picture. The suffix is the format: .html, .svg, .png, .dot, .mmd and so on. `force` overwrites."""
        path = Path(path)
        drawing = DRAWINGS.get(drawing_format_of(path))(metric)
        free_file(path, force=force)
        write_result(path, drawing.render(self.view))
        return path

    def __repr__(self) -> str:
        return str(self.draw())

    def _repr_html_(self) -> str:
        return f'<div style="overflow:auto">{self.draw("svg")!s}</div>'


def graph_answer(graph: CallGraph, **options: Any) -> GraphAnswer:
    """The picture of one phase; `options` are those of `group`."""
    return GraphAnswer(phase=graph.phase, view=grouped(graph, **options))


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
    """The boxes of one phase, with the stored formats in its caption."""
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
    return replace(view, caption=(*view.caption, *(note.text for note in deployment_notes([graph]))))


def drawing_format_of(path: Path) -> str:
    """The drawing whose files end like this; the longer of two endings wins: `.speedscope.json` over `.json`."""
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


def _exchanged(box: Box) -> tuple[int, int]:
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
