"""torch.compile as a benchmark: where the graph breaks, how long compiling takes, and eager against compiled time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.export_outcome import Check, CheckOutcome, CompileFigures, CompileTrial, GraphBreak, Verdict
from llm_perf_opt.core.scratch import scratch_folder
from llm_perf_opt.labs.export.failure import EXPORT_ERRORS, failed
from llm_perf_opt.labs.export.part_under_test import PartUnderTest, TensorsOnly, copied_inputs, runnable

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
    asked = torch._inductor.list_mode_options(mode) if mode != "default" else {}
    if asked.get("triton.cudagraphs") and done.get("cudagraph_skips"):
        yield "CUDA graphs skipped: no GPU"
    if asked.get("max_autotune") and not done.get("select_algorithm_autotune"):
        yield "nothing autotuned: on a CPU Inductor has a second kernel for a product only where weights are frozen"


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


def _graph_break(found: Any) -> GraphBreak:
    frame = found.user_stack[-1] if found.user_stack else None
    site = "unknown" if frame is None else f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return GraphBreak(reason=str(found.reason).strip().partition("\n")[0][:300], site=site)


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
