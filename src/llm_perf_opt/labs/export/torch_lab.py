"""The export lab on torch: one part through torch.export, dynamic shapes, ONNX, onnxruntime and torch.compile."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch
from torch.export import ExportedProgram

from llm_perf_opt.core.export_outcome import AxisOutcome, Check, CheckOutcome, ExportOptions, PartOutcome, Verdict
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import meta_twin
from llm_perf_opt.labs.export.compile_trial import compile_part
from llm_perf_opt.labs.export.dynamic_shapes import axes_of, try_axis
from llm_perf_opt.labs.export.export_source import torch_count
from llm_perf_opt.labs.export.exported_graph import PartFiles, graph_ops
from llm_perf_opt.labs.export.failure import EXPORT_ERRORS, failed, quiet
from llm_perf_opt.labs.export.onnx_trial import compare_runtimes, write_onnx
from llm_perf_opt.labs.export.part_under_test import (
    PartUnderTest,
    TensorsOnly,
    autocast_knows_meta,
    prepare,
    without_idle_cache,
)
from llm_perf_opt.labs.export.part_weights import with_weights
from llm_perf_opt.labs.export.weighted_files import write_weighted
from llm_perf_opt.weightless import Engine
from llm_perf_opt.weightless.spec import dtype_name

log = logging.getLogger(__name__)


class TorchLab:
    """Examines parts one by one. One lab keeps one engine, so that the next part of a model is found faster."""

    def __init__(self) -> None:
        self._engine = Engine(device="cpu")

    def examine(self, target: Target, part: Part, options: ExportOptions, fresh: Target | None = None) -> PartOutcome:
        """Try everything asked for; weights are made only where numbers are compared or timed, or asked for."""
        with OneRun(), Interruptible():
            subject = prepare(target, part, self._engine)
            with quiet(), silenced():
                subject = without_idle_cache(subject)
                if (
                    options.load_weights is not None
                    and fresh is not None
                    and _too_large(Check.WEIGHTS, subject, options) is None
                ):
                    subject = with_weights(subject, fresh, options.load_weights)
                return _examined(subject, target, options)


def _examined(subject: PartUnderTest, target: Target, options: ExportOptions) -> PartOutcome:
    on_meta = meta_twin(subject.call)
    files = PartFiles(subject.part.name, options.out)
    outcome, program = export_part(subject, on_meta)
    found = _with_eager_count(replace(_described(subject, target), outcomes=(outcome,)), on_meta)
    if program is not None:
        files.save_program(program, is_alone=subject.real is None)
        found = replace(found, ops=graph_ops(program))
    found = _with_axes(found, subject, on_meta, options)
    found = _with_onnx(found, subject, program, options, files)
    found = _with_parity(found, subject, options)
    found = _with_weights(found, subject, options, files)
    found = _with_compile(found, subject, options)
    return replace(found, files=files.written)


def _and(found: PartOutcome, outcome: CheckOutcome) -> PartOutcome:
    return replace(found, outcomes=(*found.outcomes, outcome))


def _with_axes(found: PartOutcome, subject: PartUnderTest, call: TensorsOnly, options: ExportOptions) -> PartOutcome:
    if (skipped := _not_tried(Check.DYNAMIC, options, has_graph=found.ops is not None)) is not None:
        return _and(found, skipped)
    axes = tuple(try_axis(subject, call, axis) for axis in axes_of(subject))
    return _and(replace(found, axes=axes), _dynamic_outcome(axes))


def _with_onnx(
    found: PartOutcome,
    subject: PartUnderTest,
    program: ExportedProgram | None,
    options: ExportOptions,
    files: PartFiles,
) -> PartOutcome:
    skipped = _not_tried(Check.ONNX, options, has_graph=program is not None)
    if skipped is not None or program is None:
        return found if skipped is None else _and(found, skipped)
    onnx_file = write_onnx(subject, program)
    if subject.real is None:
        files.save_onnx(onnx_file.content)
    return _and(found, onnx_file.outcome)


def _with_parity(found: PartOutcome, subject: PartUnderTest, options: ExportOptions) -> PartOutcome:
    has_graph = found.ops is not None
    skipped = _not_tried(Check.PARITY, options, has_graph=has_graph) or _too_large(Check.PARITY, subject, options)
    if skipped is not None:
        return _and(found, skipped)
    outcome, parity = compare_runtimes(subject)
    return _and(replace(found, parity=parity), outcome)


def _with_weights(found: PartOutcome, subject: PartUnderTest, options: ExportOptions, files: PartFiles) -> PartOutcome:
    has_graph = found.ops is not None
    skipped = _not_tried(Check.WEIGHTS, options, has_graph=has_graph) or _too_large(Check.WEIGHTS, subject, options)
    if skipped is not None:
        return _and(found, skipped)
    with_onnx = found.outcome(Check.ONNX).verdict is Verdict.OK
    outcome, checks, written = write_weighted(subject, options.out, with_onnx=with_onnx)
    files.add(written)
    return _and(replace(found, weighted=checks), outcome)


def _with_compile(found: PartOutcome, subject: PartUnderTest, options: ExportOptions) -> PartOutcome:
    skipped = _not_tried(Check.COMPILE, options, has_graph=True) or _too_large(Check.COMPILE, subject, options)
    if skipped is not None:
        return _and(found, skipped)
    outcome, trials = compile_part(subject, options.compile_runs, options.compile_modes)
    return _and(replace(found, compiled=trials), outcome)


def export_part(subject: PartUnderTest, call: TensorsOnly) -> tuple[CheckOutcome, ExportedProgram | None]:
    """The static graph of the call at the shapes of the run."""
    started = time.perf_counter()
    try:
        with torch.no_grad(), autocast_knows_meta():
            program = torch.export.export(call, tuple(call.given))
    except EXPORT_ERRORS as error:
        seconds = time.perf_counter() - started
        return failed(Check.EXPORT, error, instead=subject.part.instead, seconds=seconds), None
    seconds = time.perf_counter() - started
    detail = f"{len(program.graph.nodes)} nodes"
    return CheckOutcome(check=Check.EXPORT, verdict=Verdict.OK, detail=detail, seconds=seconds), program


def _described(subject: PartUnderTest, target: Target) -> PartOutcome:
    part = subject.part
    return PartOutcome(
        name=part.name,
        title=part.title,
        phase=target.phase,
        path=part.path,
        wraps=part.wraps or (part.path,),
        class_name=type(subject.module).__name__,
        inputs=tuple(
            f"{name}: {dtype_name(tensor.dtype)}{list(tensor.shape)}"
            for name, tensor in zip(subject.names, subject.call.given, strict=True)
        ),
        adaptation=part.adaptation,
        does_other_work=part.does_other_work,
        adaptations=subject.adaptations,
        parameters=subject.parameters,
        outcomes=(),
    )


def _with_eager_count(found: PartOutcome, call: TensorsOnly) -> PartOutcome:
    try:
        count = torch_count(call, call.given)
    except EXPORT_ERRORS as error:
        outcome = failed(Check.EXPORT, error)
        return replace(found, eager_unknown=f"it cannot run on the meta device: {outcome.error} at {outcome.site}")
    unknown = ", ".join(f"{name} ({calls} calls)" for name, calls in count.unknown.items())
    return replace(
        found,
        eager_flops=count.flops,
        eager_unknown=f"torch's counter has no formula for {unknown}" if unknown else None,
    )


def _dynamic_outcome(axes: tuple[AxisOutcome, ...]) -> CheckOutcome:
    free = [axis.axis for axis in axes if axis.verdict is Verdict.OK]
    fixed = [axis for axis in axes if axis.verdict is Verdict.FAILED]
    return CheckOutcome(
        check=Check.DYNAMIC,
        verdict=Verdict.OK if free else Verdict.FAILED,
        detail=f"may vary: {', '.join(free) or 'nothing'}",
        reason="; ".join(f"{axis.axis} is fixed by {axis.guard}" for axis in fixed) or None,
        site=fixed[0].site if fixed and not free else None,
    )


def _not_tried(check: Check, options: ExportOptions, *, has_graph: bool) -> CheckOutcome | None:
    if check not in options.checks:
        return CheckOutcome(check=check, verdict=Verdict.SKIPPED, detail="not asked for")
    return (
        None if has_graph else CheckOutcome(check=check, verdict=Verdict.SKIPPED, detail="there is no exported graph")
    )


def _too_large(check: Check, subject: PartUnderTest, options: ExportOptions) -> CheckOutcome | None:
    if subject.weight_bytes <= options.max_weight_bytes:
        return None
    needed, limit = format_bytes(subject.weight_bytes), format_bytes(options.max_weight_bytes)
    detail = f"its weights take {needed}, over the limit of {limit}"
    return CheckOutcome(check=check, verdict=Verdict.SKIPPED, detail=detail, remedy="raise --max-weights")
