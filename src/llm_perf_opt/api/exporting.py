"""Adapter -> parts -> export lab -> matrix and files, each figure held against a trace of the same run."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from llm_perf_opt.analyses.cost.module_costs import kinds_in_call
from llm_perf_opt.analyses.export.export_figures import PartFlops, part_flops
from llm_perf_opt.analyses.export.export_matrix import export_report
from llm_perf_opt.api.tracing import find_adapter
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.export_outcome import Check, ExportWishes, PartOutcome
from llm_perf_opt.core.output_files import make_folder, require_free, write_whole
from llm_perf_opt.core.protocols import (
    EXPORT_LABS,
    REPORTERS,
    TRACERS,
    KnowsParts,
    ModelAdapter,
    Part,
    Target,
    Workload,
)
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.units import format_seconds

log = logging.getLogger(__name__)

MATRIX = "matrix"
_FORMATS = ("json", "markdown", "html")
_PART_SUFFIXES = (".pt2", ".fx.txt", ".onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Everything `export` can be asked for. A part is a name that the adapter knows, or the path of a module."""

    model: str
    workload: Workload
    parts: tuple[str, ...] = ()  # none: all that the adapter names
    compiled_parts: tuple[str, ...] = ()
    phase: str = "prefill"  # of parts that are given as paths
    wishes: ExportWishes = field(default_factory=ExportWishes)
    lab: str = "torch"
    trust_remote_code: bool = False
    out: Path | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRun:
    """What became of each part, its FLOPs from three sources, the report of it all, and the files."""

    parts: tuple[PartOutcome, ...]
    flops: tuple[PartFlops, ...]
    report: Report
    files: tuple[Path, ...]


def run_export(request: ExportRequest) -> ExportRun:
    """Take every part through the lab; a part that no exporter takes is a row with its reason."""
    return export_parts(find_adapter(request.model, request.trust_remote_code), request)


def export_parts(adapter: ModelAdapter, request: ExportRequest) -> ExportRun:
    """The same for an adapter at hand; `request.model` is then only a name."""
    parts = _chosen(adapter, request)
    _refuse_unknown(request.compiled_parts, [part.name for part in parts])
    _free_folder(request, parts)
    targets = {target.phase: target for target in adapter.targets(request.workload)}
    lab = EXPORT_LABS.get(request.lab)()
    outcomes = []
    for part in parts:
        log.info("Exporting %s ...", part.name)
        started = time.perf_counter()
        outcomes.append(lab.examine(_target(targets, part), part, _wishes(request, part)))
        log.info("  %s", format_seconds(time.perf_counter() - started))
    flops = _flops(outcomes, targets)
    report = export_report(request.model, outcomes, flops)
    files = tuple(file for outcome in outcomes for file in outcome.files)
    return ExportRun(
        parts=tuple(outcomes), flops=flops, report=report, files=(*files, *_write_matrix(report, request.out))
    )


def _chosen(adapter: ModelAdapter, request: ExportRequest) -> tuple[Part, ...]:
    known = {part.name: part for part in cast("KnowsParts", adapter).parts()} if hasattr(adapter, "parts") else {}
    if not request.parts and not known:
        raise UsageError(
            f"No parts are known for {request.model}.",
            why="only a model folder of this package can name the pieces that are worth a graph",
            fix="add --part with the path of a module, such as --part model.layers.0",
        )
    wanted = request.parts or tuple(known)
    return tuple(known.get(name) or _part_at(name, request.phase) for name in wanted)


def _part_at(path: str, phase: str) -> Part:
    """The module at a path, under a name that is safe as the name of a file."""
    return Part(name=re.sub(r"[^\w.-]", "_", path) or "model", path=path, phase=phase)


def _refuse_unknown(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name!r} is not among the parts to export.",
                why=f"chosen: {', '.join(known)}",
                fix="name one of these after --compile, or add --part",
            )


def _target(targets: Mapping[str, Target], part: Part) -> Target:
    if part.phase not in targets:
        raise UsageError(
            f"The run has no phase {part.phase!r}, which the part {part.name!r} needs.",
            why=f"its phases are: {', '.join(targets)}",
            fix="ask for at least one decode step, or choose other parts with --part",
        )
    return targets[part.phase]


def _wishes(request: ExportRequest, part: Part) -> ExportWishes:
    is_compiled = part.name in request.compiled_parts
    checks = request.wishes.checks | ({Check.COMPILE} if is_compiled else frozenset())
    return replace(request.wishes, checks=checks, out=request.out)


def _flops(outcomes: Sequence[PartOutcome], targets: Mapping[str, Target]) -> tuple[PartFlops, ...]:
    """Trace each phase once, on the device that the lab's modules believe in, and compare."""
    tracer = TRACERS.get("weightless")(device="cpu")  # type: ignore[call-arg]  # this tracer takes a device
    graphs = {phase: tracer.trace(targets[phase]) for phase in {outcome.phase for outcome in outcomes}}
    return tuple(part_flops(outcome, _traced_kinds(graphs[outcome.phase], outcome)) for outcome in outcomes)


def _traced_kinds(graph: CallGraph, outcome: PartOutcome) -> dict[OpKind, int] | None:
    """The ops of all modules that do the part's work; None where one of them is not in the trace."""
    total: dict[OpKind, int] = {}
    for path in outcome.wraps:
        kinds = kinds_in_call(graph, path)
        if kinds is None:
            return None
        for kind, count in kinds.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _free_folder(request: ExportRequest, parts: Sequence[Part]) -> None:
    """Refuse before the work begins where something would be overwritten, and make the folder."""
    if request.out is None:
        return
    names = [f"{part.name}{suffix}" for part in parts for suffix in _PART_SUFFIXES]
    names += [f"{MATRIX}{REPORTERS.get(name).suffix}" for name in _FORMATS]
    require_free((request.out / name for name in names), force=request.force)
    make_folder(request.out)


def _write_matrix(report: Report, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    files = []
    for name in _FORMATS:
        reporter = REPORTERS.get(name)()
        file = folder / f"{MATRIX}{reporter.suffix}"
        write_whole(file, [reporter.render(report).encode()])
        files.append(file)
    return files
