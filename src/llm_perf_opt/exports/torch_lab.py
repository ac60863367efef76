"""The export lab on torch: one part through torch.export, dynamic shapes, ONNX, onnxruntime and torch.compile."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.export_outcome import (
    AxisOutcome,
    Check,
    CheckOutcome,
    CompileFigures,
    CompileTrial,
    ExportOptions,
    GraphBreak,
    PartOutcome,
    Verdict,
)
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.exports.dynamic_shapes import axes_of, try_axis
from llm_perf_opt.exports.export_source import PartFiles, graph_ops, torch_count
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed, quiet
from llm_perf_opt.exports.onnx_trial import compare_runtimes, write_onnx, write_weighted
from llm_perf_opt.exports.part_under_test import (
    PartUnderTest,
    TensorsOnly,
    autocast_knows_meta,
    copied_inputs,
    fill_at_random,
    prepare,
    runnable,
    switch_attention,
    with_module,
    without_idle_cache,
)
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import meta_twin
from llm_perf_opt.harness.weights import load_some_weights, same_random_numbers
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
    examined = _with_eager_count(replace(_described(subject, target), outcomes=(outcome,)), on_meta)
    if program is not None:
        files.save_program(program, is_alone=subject.real is None)
        examined = replace(examined, ops=graph_ops(program))
    examined = _with_axes(examined, subject, on_meta, options)
    examined = _with_onnx(examined, subject, program, options, files)
    examined = _with_parity(examined, subject, options)
    examined = _with_weights(examined, subject, options, files)
    examined = _with_compile(examined, subject, options)
    return replace(examined, files=files.written)


def _and(part: PartOutcome, outcome: CheckOutcome) -> PartOutcome:
    return replace(part, outcomes=(*part.outcomes, outcome))


def _with_axes(part: PartOutcome, subject: PartUnderTest, call: TensorsOnly, options: ExportOptions) -> PartOutcome:
    if (skipped := _not_tried(Check.DYNAMIC, options, has_graph=part.ops is not None)) is not None:
        return _and(part, skipped)
    axes = tuple(try_axis(subject, call, axis) for axis in axes_of(subject))
    return _and(replace(part, axes=axes), _dynamic_outcome(axes))


def _with_onnx(
    part: PartOutcome,
    subject: PartUnderTest,
    program: ExportedProgram | None,
    options: ExportOptions,
    files: PartFiles,
) -> PartOutcome:
    skipped = _not_tried(Check.ONNX, options, has_graph=program is not None)
    if skipped is not None or program is None:
        return part if skipped is None else _and(part, skipped)
    onnx_file = write_onnx(subject, program)
    if subject.real is None:
        files.save_onnx(onnx_file.content)
    return _and(part, onnx_file.outcome)


def _with_parity(part: PartOutcome, subject: PartUnderTest, options: ExportOptions) -> PartOutcome:
    has_graph = part.ops is not None
    skipped = _not_tried(Check.PARITY, options, has_graph=has_graph) or _too_large(Check.PARITY, subject, options)
    if skipped is not None:
        return _and(part, skipped)
    outcome, parity = compare_runtimes(subject)
    return _and(replace(part, parity=parity), outcome)


def _with_weights(part: PartOutcome, subject: PartUnderTest, options: ExportOptions, files: PartFiles) -> PartOutcome:
    has_graph = part.ops is not None
    skipped = _not_tried(Check.WEIGHTS, options, has_graph=has_graph) or _too_large(Check.WEIGHTS, subject, options)
    if skipped is not None:
        return _and(part, skipped)
    with_onnx = part.outcome(Check.ONNX).verdict is Verdict.OK
    outcome, checks, written = write_weighted(subject, options.out, with_onnx=with_onnx)
    files.add(written)
    return _and(replace(part, weighted=checks), outcome)


def _with_compile(part: PartOutcome, subject: PartUnderTest, options: ExportOptions) -> PartOutcome:
    skipped = _not_tried(Check.COMPILE, options, has_graph=True) or _too_large(Check.COMPILE, subject, options)
    if skipped is not None:
        return _and(part, skipped)
    outcome, trials = compile_part(subject, options.compile_runs, options.compile_modes)
    return _and(replace(part, compiled=trials), outcome)


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


def _with_eager_count(part: PartOutcome, call: TensorsOnly) -> PartOutcome:
    try:
        count = torch_count(call, call.given)
    except EXPORT_ERRORS as error:
        outcome = failed(Check.EXPORT, error)
        return replace(part, eager_unknown=f"it cannot run on the meta device: {outcome.error} at {outcome.site}")
    unknown = ", ".join(f"{name} ({calls} calls)" for name, calls in count.unknown.items())
    return replace(
        part,
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


# Dynamo tags modules at construction from the first compilation on, and switches off the checks of distributions.
_PATCHED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.nn.Module, ("__init__", "__setstate__", "___needs_generation_tag_patch")),
    (torch.distributions.Distribution, ("_validate_args",)),
)
_COMPILER_MISSING = ("InvalidCxxCompiler", "CppCompileError", "No working C++ compiler")


def compile_part(
    subject: PartUnderTest, runs: int, modes: Sequence[str] = ("default",)
) -> tuple[CheckOutcome, tuple[CompileTrial, ...]]:
    """Compile the module with the arguments of its call in each mode, then time eager and compiled runs in turns."""
    started = time.perf_counter()
    call = runnable(subject)
    trials: list[CompileTrial] = []
    failures: list[CheckOutcome] = []
    try:
        breaks, graphs = _graph_breaks(call)
    except EXPORT_ERRORS as error:
        return _refused(subject, error, started), ()
    for mode in modes:
        try:
            with torch.no_grad(), _fresh_dynamo():
                trials.append(_trial(call, runs, mode, graphs, breaks))
        except EXPORT_ERRORS as error:
            failures.append(_refused(subject, error, started))
            trials.append(CompileTrial(mode=mode, figures=None, remarks=(failures[-1].reason or "",)))
    if failures:
        return failures[0], tuple(trials)
    detail = f"{graphs} graphs, {len(breaks)} breaks, compiled in " + ", ".join(
        f"{trial.figures.compile_seconds:.1f} s" for trial in trials if trial.figures is not None
    )
    seconds = time.perf_counter() - started
    return CheckOutcome(check=Check.COMPILE, verdict=Verdict.OK, detail=detail, seconds=seconds), tuple(trials)


def _refused(subject: PartUnderTest, error: Exception, started: float) -> CheckOutcome:
    outcome = failed(Check.COMPILE, error, instead=subject.part.instead, seconds=time.perf_counter() - started)
    return _without_compiler(outcome) or outcome


def _graph_breaks(call: TensorsOnly) -> tuple[tuple[GraphBreak, ...], int]:
    """Where dynamo leaves the graph, and how many graphs that gives; a mode is Inductor's, and changes neither."""
    args, kwargs = call.rebuilt(copied_inputs(call))
    with torch.no_grad(), _fresh_dynamo():
        explained = torch._dynamo.explain(call.module)(*args, **kwargs)
    return tuple(map(_graph_break, explained.break_reasons)), explained.graph_count


def _trial(call: TensorsOnly, runs: int, mode: str, graphs: int, breaks: tuple[GraphBreak, ...]) -> CompileTrial:
    _load_compiler()
    done = torch._dynamo.utils.counters["inductor"]
    done.clear()
    with _empty_cache():
        compiled = torch.compile(call.module, mode=mode)
        first_seconds = _seconds(compiled, call)
        pairs = [_pair(compiled, call, place) for place in range(-1, runs)][1:]  # the first pair warms up
    compiled_seconds = statistics.median(fast for _, fast in pairs)
    figures = CompileFigures(
        graphs=graphs,
        breaks=breaks,
        compile_seconds=first_seconds - compiled_seconds,
        eager_seconds=statistics.median(eager for eager, _ in pairs),
        compiled_seconds=compiled_seconds,
        compiled_of_eager=statistics.median(fast / eager for eager, fast in pairs),
        runs=runs,
        threads=torch.get_num_threads(),
        autotuned=done["select_algorithm_autotune"],
    )
    return CompileTrial(mode=mode, figures=figures, remarks=tuple(_remarks(mode, done)))


def _remarks(mode: str, done: Mapping[str, int]) -> Iterator[str]:
    """What the mode asks of Inductor and Inductor did not do, by Inductor's own counters."""
    mode_options = torch._inductor.list_mode_options(mode) if mode != "default" else {}
    if mode_options.get("triton.cudagraphs") and done.get("cudagraph_skips"):
        yield "CUDA graphs skipped: no GPU"
    if mode_options.get("max_autotune") and not done.get("select_algorithm_autotune"):
        yield "nothing autotuned: on a CPU Inductor has a second kernel for a matmul only where weights are frozen"


def _load_compiler() -> None:
    """Compile next to nothing: what only the first compilation of a process has to load is no time of the part."""
    with _empty_cache():
        torch.compile(torch.neg)(torch.ones(2))
    torch._dynamo.reset()


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Inductor finds nothing that an earlier trial or another process compiled, and leaves nothing behind."""
    from torch._inductor.utils import fresh_cache  # loads Inductor

    with scratch_folder() as folder, fresh_cache(dir=str(folder), delete=False):
        yield


def _pair(compiled: Callable[..., Any], call: TensorsOnly, place: int) -> tuple[float, float]:
    """An eager and a compiled run back to back, so that a busy moment meets both; they take turns in going first."""
    if place % 2:
        fast = _seconds(compiled, call)
        return _seconds(call.module, call), fast
    return _seconds(call.module, call), _seconds(compiled, call)


def _seconds(forward: Callable[..., Any], call: TensorsOnly) -> float:
    """One run; the arguments are rebuilt before the clock starts, since a run may write to its cache."""
    args, kwargs = call.rebuilt(copied_inputs(call))
    started = time.perf_counter()
    forward(*args, **kwargs)
    return time.perf_counter() - started


def _graph_break(reported: Any) -> GraphBreak:
    frame = reported.user_stack[-1] if reported.user_stack else None
    site = "unknown" if frame is None else f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return GraphBreak(reason=str(reported.reason).strip().partition("\n")[0][:300], site=site)


def _without_compiler(outcome: CheckOutcome) -> CheckOutcome | None:
    if not any(word in f"{outcome.error} {outcome.reason}" for word in _COMPILER_MISSING):
        return None
    return CheckOutcome(
        check=Check.COMPILE,
        verdict=Verdict.SKIPPED,
        detail="torch.compile needs a C++ compiler on this machine",
        error=outcome.error,
        reason=outcome.reason,
        remedy="install g++ or clang, or set CXX",
    )


@contextmanager
def _fresh_dynamo() -> Iterator[None]:
    """What dynamo remembers of other modules changes neither breaks nor times; what it patches is put back."""
    before = [(owner, name, vars(owner).get(name)) for owner, names in _PATCHED for name in names]
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        for owner, name, value in before:
            if value is not None:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


# The weights of one part, from a checkpoint or random; the weights of the rest of the model are not loaded.
#
# The model is built with its parameters on the meta device and its buffers, which no checkpoint may hold, as their
# constructors make them. Then the parameters below the part's modules get memory and values.

RANDOM = "random"
_SEED = 0
_SPREAD = 0.02


def with_weights(subject: PartUnderTest, target: Target, weights: str) -> PartUnderTest:
    """The part with values: of `target`, which nothing has run yet, or of the folder `weights`, or random ones.

    A target that has weights of its own, as a module that was passed in, keeps them.
    """
    with silenced():
        model = target.build() if target.has_weights else _built(target)
    switch_attention(model)
    part = subject.part
    if not target.has_weights:
        _give_values(model, part, weights)
    with torch.no_grad():
        module = model.get_submodule(part.path) if part.wrap is None else part.wrap(model)
    _require_values(module, part)
    return with_module(subject, module.eval().requires_grad_(False))


def _require_values(module: torch.nn.Module, part: Part) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise PerfOptError(
                f"{name} of the part {part.name!r} has no value.",
                why="its constructor computes it from weights that are read later",
                fix="export without --load-weights",
            )


def _built(target: Target) -> torch.nn.Module:
    with same_random_numbers(_SEED), _parameters_on_meta():
        model: torch.nn.Module = target.build()
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A parameter loses its memory as soon as a module takes it; one that is shared stays one."""

    def without_memory(register: Any) -> Any:
        def registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
            if parameter is not None and not parameter.is_meta:
                parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
            register(module, name, parameter)

        return registered

    with ThreadPatches() as patches:
        patches.wrap(torch.nn.Module, "register_parameter", without_memory)
        yield


@torch.no_grad()
def _give_values(model: torch.nn.Module, part: Part, weights: str) -> None:
    under = part.wraps or (part.path,)
    made = _materialised(model, under)
    if weights != RANDOM:
        load_some_weights(made, Path(weights), under)
        return
    generator = torch.Generator().manual_seed(_SEED)
    for name, tensor in made.items():
        if isinstance(tensor, torch.nn.Parameter):  # a buffer keeps what its constructor made
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * _SPREAD)
            fill_at_random(name, tensor, generator)


def _materialised(model: torch.nn.Module, under: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Every weight of the modules at these paths, with memory, under all names that the model has for it."""
    wanted = [tensor for path in under for tensor in model.get_submodule(path).state_dict(keep_vars=True).values()]
    ids = set(map(id, wanted))
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) not in ids:
                continue
            if parameter.is_meta and id(parameter) not in made:
                memory = torch.empty_like(parameter, device="cpu")
                made[id(parameter)] = torch.nn.Parameter(memory, requires_grad=False)
            module._parameters[name] = made.get(id(parameter), parameter)
    wanted_ids = set(map(id, made.values())) | ids
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in wanted_ids}
