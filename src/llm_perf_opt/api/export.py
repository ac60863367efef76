"""Which parts of a model become static graphs, why others do not, and their FLOPs beside those of a trace."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.analyses.cost.module_costs import kinds_in_call
from llm_perf_opt.analyses.export_matrix import PartFlops, export_report, part_flops
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.trace import Origin
from llm_perf_opt.api.traced_phases import make_tracer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.export_outcome import CHECKS_BY_NAME, Check, ExportOptions, PartOutcome
from llm_perf_opt.core.output_files import make_folder, require_free, write_whole
from llm_perf_opt.core.plugins import EXPORT_LABS, REPORTERS
from llm_perf_opt.core.protocols import KnowsParts
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.units import format_seconds

log = logging.getLogger(__name__)

MATRIX = "matrix"
_FORMATS = ("json", "markdown", "html")
_PART_SUFFIXES = (".pt2", ".fx.txt", ".onnx")
_DEFAULTS = ExportOptions()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExportAnswer(Answer):
    """What became of each part, its FLOPs from three sources, and the files that were written."""

    model: str
    parts: tuple[PartOutcome, ...]
    flops: tuple[PartFlops, ...]
    files: tuple[Path, ...]

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Operators of the static graphs that are in no total."""
        return tuple(name for part in self.flops for name in part.unpriced)

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Parts whose FLOPs differ between the sources for no known reason."""
        return tuple(part.name for part in self.flops if not part.is_explained)

    def report(self) -> Report:
        """The matrix of parts and checks, the FLOPs, and a chapter of operators per part."""
        return export_report(self.model, self.parts, self.flops)


def export(
    model: Any,
    *parts: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    phase: str = "prefill",
    checks: Sequence[str] | None = None,
    compile_parts: Sequence[str] = (),
    compile_runs: int = _DEFAULTS.compile_runs,
    max_weight_bytes: int = _DEFAULTS.max_weight_bytes,
    out: str | Path | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    **workload: Any,
) -> ExportAnswer:
    """Take parts of a model through the exporters. A part that none takes is a row with the reason.

    Parameters
    ----------
    model, args, kwargs, trust_remote_code, dtype, **workload
        As for `lpo.trace`. The default type of a named model is float32; a module has its own.
    *parts
        Names of parts that the model declares, or paths of any module. Default: all declared parts.
    phase
        The run that a module path is taken from.
    checks
        Some of `export`, `dynamic`, `onnx`, `onnxruntime`. Default: all of them.
    compile_parts, compile_runs
        Parts that are also compiled, and how many timed runs of each kind.
    max_weight_bytes
        Random weights that one part may take, for onnxruntime and compiling.
    out, force
        A folder for .pt2, .onnx, listings and the matrix, and whether to overwrite those in it.
    """
    from llm_perf_opt.api.tracing import find_origin

    if dtype is not None or isinstance(model, str | Path):
        workload["dtype"] = dtype or "float32"
    origin = find_origin(model, args, kwargs, trust_remote_code=trust_remote_code, **workload)
    return export_parts(
        origin,
        parts,
        phase=phase,
        checks=checks,
        compile_parts=compile_parts,
        compile_runs=compile_runs,
        max_weight_bytes=max_weight_bytes,
        out=out,
        force=force,
    )


def export_parts(
    origin: Origin,
    parts: Sequence[str] = (),
    *,
    phase: str = "prefill",
    checks: Sequence[str] | None = None,
    compile_parts: Sequence[str] = (),
    compile_runs: int = _DEFAULTS.compile_runs,
    max_weight_bytes: int = _DEFAULTS.max_weight_bytes,
    out: str | Path | None = None,
    force: bool = False,
) -> ExportAnswer:
    """The same for a model and workload that were found before."""
    options = ExportOptions(
        checks=_checks(checks),
        compile_runs=compile_runs,
        max_weight_bytes=max_weight_bytes,
        out=None if out is None else Path(out),
    )
    chosen = _chosen(origin, parts, phase)
    _refuse_unknown(compile_parts, [part.name for part in chosen])
    _reserve_folder(options.out, chosen, force=force)
    targets = {target.phase: target for target in origin.adapter.targets(origin.workload)}
    lab = EXPORT_LABS.get("torch")()
    outcomes = []
    for part in chosen:
        log.info("Exporting %s ...", part.name)
        started = time.perf_counter()
        compiled = {Check.COMPILE} if part.name in compile_parts else frozenset()
        outcomes.append(lab.examine(_target(targets, part), part, replace(options, checks=options.checks | compiled)))
        log.info("  %s", format_seconds(time.perf_counter() - started))
    files = tuple(file for outcome in outcomes for file in outcome.files)
    answer = ExportAnswer(model=origin.name, parts=tuple(outcomes), flops=_flops(outcomes, targets), files=files)
    return replace(answer, files=(*files, *_write_matrix(answer.report(), options.out)))


def _checks(names: Sequence[str] | None) -> frozenset[Check]:
    """Those asked for; the graph itself is always made, since all others start from it."""
    for name in names or ():
        if name not in CHECKS_BY_NAME:
            raise UsageError(
                f"There is no check {name!r}.", why=f"there are: {', '.join(CHECKS_BY_NAME)}", fix="choose one"
            )
    return frozenset(CHECKS_BY_NAME[name] for name in names or CHECKS_BY_NAME) | {Check.EXPORT}


def _chosen(origin: Origin, names: Sequence[str], phase: str) -> tuple[Part, ...]:
    adapter = origin.adapter
    known = {part.name: part for part in adapter.parts()} if isinstance(adapter, KnowsParts) else {}
    if not names and not known:
        raise UsageError(
            f"No parts are known for {origin.name}.",
            why="only a model folder of this package can name the pieces that are worth a graph",
            fix="add --part with the path of a module, such as --part model.layers.0",
        )
    return tuple(known.get(name) or _part_at(name, phase) for name in names or known)


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


def _flops(outcomes: Sequence[PartOutcome], targets: Mapping[str, Target]) -> tuple[PartFlops, ...]:
    """Trace each phase once, on the device that the code of the lab sees, and compare."""
    tracer = make_tracer(torch_device="cpu")
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


def _reserve_folder(folder: Path | None, parts: Sequence[Part], *, force: bool) -> None:
    """Refuse, before the work begins, to overwrite anything; make the folder."""
    if folder is None:
        return
    names = [f"{part.name}{suffix}" for part in parts for suffix in _PART_SUFFIXES]
    names += [f"{MATRIX}{REPORTERS.get(name).suffix}" for name in _FORMATS]
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


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
