"""Which parts of a model become static graphs, why others do not, and their FLOPs compared with a trace."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.export_outcome import Check, ExportOptions, PartOutcome, Verdict
from llm_perf_opt.core.output_files import write_together
from llm_perf_opt.core.plugins import EXPORT_LABS, REPORTERS
from llm_perf_opt.core.protocols import ExportLab, RunsForReal
from llm_perf_opt.core.report import Report, counted, listed
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.costs.stage_costs import kinds_in_call
from llm_perf_opt.exports.export_matrix import PartFlops, export_report, part_flops
from llm_perf_opt.exports.export_names import (
    MATRIX,
    MATRIX_FORMATS,
    check_names,
    chosen_parts,
    compile_mode_names,
    require_called,
    require_chosen,
    reserve_part_files,
    target_of,
    weight_values,
)
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.traced_phases import make_tracer, trace_phase

log = logging.getLogger(__name__)

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
        """Parts with FLOPs that differ between the sources for no known reason."""
        return tuple(part.name for part in self.flops if not part.is_explained)

    def report(self) -> Report:
        """The matrix of parts and checks, the FLOPs, and a chapter of operators per part."""
        return replace(export_report(self.model, self.parts, self.flops), answer=self.answer)

    @property
    def answer(self) -> tuple[str, ...]:
        """How many parts each check takes, which are refused, and whether the FLOPs agree."""
        tried = {
            check: [verdict for part in self.parts if (verdict := part.outcome(check).verdict) is not Verdict.SKIPPED]
            for check in Check
        }
        taken = [
            f"{check} {sum(verdict is Verdict.OK for verdict in verdicts)}"
            for check, verdicts in tried.items()
            if verdicts
        ]
        failed = [part.name for part in self.parts if part.outcome(Check.EXPORT).verdict is Verdict.FAILED]
        refused = f"torch.export refuses {listed(failed)}." if failed else "torch.export refuses none."
        unknown = self.unexplained
        agree = (
            f"FLOPs differ without a cause in {listed(unknown)}."
            if unknown
            else "FLOPs of all sources agree or differ with a cause."
        )
        return f"{self.model}, {counted(len(self.parts), 'part')}: {', '.join(taken)}.", refused, agree


def export(
    model: Any,
    *parts: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    phase: str = "prefill",
    checks: Sequence[str] | None = None,
    compile_parts: Sequence[str] = (),
    compile_runs: int = _DEFAULTS.compile_runs,
    compile_modes: Sequence[str] = _DEFAULTS.compile_modes,
    load_weights: str | Path | None = None,
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
    compile_parts, compile_runs, compile_modes
        Parts that are also compiled, how many timed runs of each kind, and the modes of `torch.compile` to compare.
    load_weights
        Values that go into the files: `random`, or a folder of safetensors. Default, and `none`: the files hold no
        values. A module keeps its own weights, whichever of the two is given.
    max_weight_bytes
        Weights that one part may take, for onnxruntime, compiling and files with weights.
    out, force
        A folder for .pt2, .onnx, listings and the matrix, and whether to overwrite those in it.
    """
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
        compile_modes=compile_modes,
        load_weights=load_weights,
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
    compile_modes: Sequence[str] = _DEFAULTS.compile_modes,
    load_weights: str | Path | None = None,
    max_weight_bytes: int = _DEFAULTS.max_weight_bytes,
    out: str | Path | None = None,
    force: bool = False,
) -> ExportAnswer:
    """The same for a model and workload that were found before. Every name and file is checked before the work."""
    if origin.plan.is_spread:
        raise UsageError(
            f"The parts of one rank of {origin.plan.describe()} are not exported.",
            why="an exporter runs a part in this one process, in which no other rank exists",
            fix="leave tp, ep, pp and fsdp out",
        )
    weights = weight_values(load_weights)
    options = ExportOptions(
        checks=check_names(checks) | (frozenset() if weights is None else {Check.WEIGHTS}),
        compile_runs=compile_runs,
        compile_modes=compile_mode_names(compile_modes),
        load_weights=weights,
        max_weight_bytes=max_weight_bytes,
        out=None if out is None else Path(out),
    )
    chosen = chosen_parts(origin, parts, phase)
    require_chosen(compile_parts, [part.name for part in chosen])
    reserve_part_files(options.out, chosen, force=force)
    targets = {target.phase: target for target in origin.targets()}
    for part in chosen:
        target_of(targets, part)
    require_called(origin, chosen, parts)
    lab = EXPORT_LABS.get("torch")()  # one for all parts, which finds the next part of a model faster
    outcomes = [_examined(lab, origin, part, targets, options, part.name in compile_parts) for part in chosen]
    files = tuple(file for outcome in outcomes for file in outcome.files)
    answer = ExportAnswer(model=origin.name, parts=tuple(outcomes), flops=_flops(outcomes, targets), files=files)
    return replace(answer, files=(*files, *_write_matrix(answer.report(), options.out)))


def _examined(
    lab: ExportLab,
    origin: Origin,
    part: Part,
    targets: Mapping[str, Target],
    options: ExportOptions,
    is_compiled: bool,
) -> PartOutcome:
    log.info("Exporting %s ...", part.name)
    started = time.perf_counter()
    checks = options.checks | ({Check.COMPILE} if is_compiled else frozenset())
    fresh = None if options.load_weights is None else target_of(_fresh_targets(origin), part)
    with OneRun(), RunWatch(f"{origin.name}, exporting {part.name}"):
        outcome = lab.examine(target_of(targets, part), part, replace(options, checks=checks), fresh)
    log.info("  %s", format_seconds(time.perf_counter() - started))
    return outcome


def _fresh_targets(origin: Origin) -> dict[str, Target]:
    """Targets that nothing has run yet; a module that has weights keeps them."""
    targets = origin.targets()
    if isinstance(origin.adapter, RunsForReal):
        real = origin.adapter.real_run(origin.workload, None).targets
        targets = real if all(target.has_weights for target in real) else targets
    return {target.phase: target for target in targets}


def _flops(outcomes: Sequence[PartOutcome], targets: Mapping[str, Target]) -> tuple[PartFlops, ...]:
    """Trace each phase once, on the device that the code of the lab sees, and compare."""
    tracer = make_tracer(torch_device="cpu")
    graphs = {phase: trace_phase(tracer, targets[phase]) for phase in {outcome.phase for outcome in outcomes}}
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


def _write_matrix(report: Report, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    reporters = [REPORTERS.get(name)() for name in MATRIX_FORMATS]
    texts = {folder / f"{MATRIX}{reporter.suffix}": [reporter.render(report).encode()] for reporter in reporters}
    write_together(texts)
    return [*texts]
