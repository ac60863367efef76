"""Faults in model code and in our own functions, under every tracer, source, exporter and clock; and leaks.

After each the world is as before, the caller's module too, and the next run gives the figures of the first. In our own
code faults come on entry of the n-th call, and at each line of a context manager up to its block. A step that puts
something back cannot do so when it is never entered, so what runs while things are put back is made to raise on return:
then the step is done, and every later one has to be done all the same.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core import interrupts
from llm_perf_opt.core.export_outcome import Check, ExportOptions
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.protocols import RealRun, as_pictures
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.sources.fvcore_counter import FvcoreCounter
from llm_perf_opt.exports.torch_lab import TorchLab
from llm_perf_opt.harness.isolation import first_call
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.measurements.timed.operator_pass import resident_bytes
from llm_perf_opt.measurements.timed.timed_runs import PageRun, TimedRuns
from llm_perf_opt.tracing.traced_phases import draw_modules, drawing_tracer, make_tracer, trace_targets
from llm_perf_opt.weightless import engine
from scripts.campaigns.plain_world import World, changes, describe, fingerprint, look, put_right
from scripts.campaigns.rows import Row
from scripts.campaigns.stand_in import ERRORS, PART, PLAN, StandInAdapter, inputs, make_target, plain_model

DETAILS = {"with_stack": True, "with_modules": True, "profile_memory": True}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that runs the stand-in. `run` gives what two good runs have in common.

    Faults are those of the full and of the quick campaign: in forwards, where 0 in the full one is every point with
    every error, and in our own functions.
    """

    name: str
    run: Callable[[], object]
    in_forwards: tuple[int, int] = (0, 10)
    in_our_own: tuple[int, int] = (0, 0)
    module: nn.Module | None = None  # of the caller's, which must stay as it was
    is_traced: bool = False  # a fault must reach the caller; other runs may turn it into a result


def traced(tracer: str, target: Target, **settings: Any) -> str:
    """The figures of one trace."""
    made = make_tracer(tracer, **settings)
    (graph,) = trace_targets(made, StandInAdapter(), [target], Deployment.make()).graphs
    return fingerprint(graph)


def subjects(scratch: Path) -> Iterator[Subject]:
    """Each way in which the house runs a model."""
    model = plain_model()

    def of_tracer(name: str, tracer: str, *faults: tuple[int, int], **settings: Any) -> Subject:
        def run() -> str:
            return traced(tracer, make_target(model), **settings)

        return Subject(f"tracer {name}", run, *faults, module=model, is_traced=True)

    yield Subject("tracer weightless", lambda: traced("weightless", make_target()), (0, 45), (800, 35), is_traced=True)
    yield of_tracer("hooks", "hooks", (0, 30), (400, 20))
    yield of_tracer("hooks, filtered", "hooks", (100, 5), (60, 0), only="DeepseekV2DecoderLayer", stage="vision")
    yield of_tracer("profiler", "profiler", (150, 6), (200, 5))
    yield of_tracer("profiler, filtered, with details", "profiler", (60, 3), (60, 0), only="Linear", **DETAILS)
    yield of_tracer("torchlens", "torchlens", (60, 2), (40, 0))
    if shutil.which("dot") is not None:
        yield Subject("torchlens picture", lambda: drawn(model, scratch), (20, 0), (25, 0), module=model)
    yield Subject("source torch-counter", partial(counted, "torch-counter"), (150, 8), (150, 5))
    yield Subject("source byte-counter", partial(counted, "byte-counter"), (150, 8), (60, 0))
    yield Subject("source fvcore", partial(counted, "fvcore"), (80, 2), (80, 0))
    yield Subject("source exported", partial(counted, "exported"), (40, 0))
    yield Subject("fvcore, whole runs", partial(counted, "fvcore", whole=True), (60, 2), (60, 0))
    yield Subject("fvcore on real tensors", partial(counted_for_real, whole=False), (60, 2), (60, 0))
    yield Subject("fvcore, whole real runs", partial(counted_for_real, whole=True), (60, 0), (40, 0))
    yield Subject("export lab", examined, (30, 1), (25, 0))
    yield Subject("export lab with weights", partial(examined, scratch), (30, 0), (60, 0))
    yield Subject("first arguments", _first_arguments, (0, 4), (40, 5))
    yield Subject("trace of a module", partial(of_module, model), (150, 8), (150, 5), module=model)
    yield Subject("timed run", partial(timed, model), (150, 8), (250, 8), module=model)
    yield Subject("operator pass", partial(_operators, model, scratch), (60, 3), (60, 0), module=model)


def of_module(model: nn.Module, **settings: Any) -> str:
    """The figures of a trace of the caller's module."""
    return fingerprint(lpo.trace(model, kwargs=inputs(), **settings).graphs[0])


def _first_arguments() -> object:
    args, kwargs = first_call(make_target())
    return len(args), sorted(kwargs)


def drawn(model: nn.Module, scratch: Path) -> object:
    """The size of a picture: its boxes hold times."""
    tracer, target, file = drawing_tracer(make_tracer("torchlens")), make_target(model), scratch / "picture.svg"
    pictures = as_pictures([f"vision={file}"])
    tracer.require_drawable(make_target(), pictures)
    graphs = trace_targets(make_tracer("hooks"), StandInAdapter(), [target], Deployment.make()).graphs
    draw_modules(tracer, [target], graphs, pictures)
    return file.read_text("utf-8").count("<g ")


def counted(source: str, *, whole: bool = False) -> object:
    """The figures of one source."""
    return _counted(SOURCES.get(source)(), StandInAdapter(), whole=whole)


def counted_for_real(*, whole: bool) -> object:
    """By fvcore, of a model that cannot be traced without values."""
    return _counted(FvcoreCounter(), StandInAdapter(refuses_ghosts=True), whole=whole)


def _counted(counter: Any, adapter: StandInAdapter, *, whole: bool) -> object:
    figures = (counter.whole_runs if whole else counter.figures)(adapter, Workload())
    return [(stage.stage, stage.flops, stage.bytes_moved, stage.tensors, stage.failure) for stage in figures]


def examined(weights_in: Path | None = None) -> object:
    """What the export lab finds, but for times; with files that hold weights in that folder."""
    if weights_in is None:
        checks = frozenset({Check.EXPORT, Check.DYNAMIC, Check.ONNX, Check.PARITY})
        outcome_of_part = TorchLab().examine(make_target(), PART, ExportOptions(checks=checks))
    else:
        options = ExportOptions(checks=frozenset({Check.EXPORT, Check.WEIGHTS}), load_weights="random", out=weights_in)
        outcome_of_part = TorchLab().examine(make_target(), PART, options, make_target())
    return [(outcome.check, outcome.verdict) for outcome in outcome_of_part.outcomes]


def _page(model: nn.Module) -> PageRun:
    return PageRun(image=None, run=RealRun(targets=(make_target(model),), workload=Workload(decode_steps=0)))


def timed(model: nn.Module) -> object:
    """The stages of a timed run."""
    page = TimedRuns(RealModels(weights="random", device="cpu"), warmup=1, repeats=2).measure(_page(model))
    return [sorted(timed_pass.stages_ns) for timed_pass in page.passes]


def _operators(model: nn.Module, scratch: Path) -> object:
    runs = TimedRuns(RealModels(weights="random", device="cpu"))
    operators = runs.operators(_page(model), scratch / "operators.json", modules=True)
    return sorted((operator.stage, operator.operator, operator.calls) for operator in operators)


def campaign_forward_faults(*, quick: bool, seed: int) -> list[Row]:
    """One row for each way of running a model."""
    with tempfile.TemporaryDirectory() as folder, quiet_streams():
        chosen = [subject for subject in subjects(Path(folder)) if subject.in_forwards[quick] or not quick]
        return [_forward_row(subject, quick=quick, seed=seed) for subject in chosen]


def _forward_row(subject: Subject, *, quick: bool, seed: int) -> Row:
    PLAN.set(0, RuntimeError)
    subject.run()  # whatever is loaded or cached once
    PLAN.set(0, RuntimeError, each_try=subject.is_traced)
    first = subject.run()
    points = PLAN.passed
    pairs = list(itertools.product(range(1, points + 1), ERRORS))
    wanted = subject.in_forwards[quick] or len(pairs)
    if wanted < len(pairs):
        pairs = random.Random(f"{seed} {subject.name}").sample(pairs, wanted)
    findings: list[str] = []
    for at, error in pairs:
        where = f"{subject.name}, {error.__name__} at point {at} of {points}"
        findings += [f"{where}: {finding}" for finding in faulted_forward(subject, at, error, first)]
    return Row(f"{subject.name}, {points} points", len(pairs), findings)


def faulted_forward(subject: Subject, at: int, error: type[BaseException], first: object) -> Iterator[str]:
    """What one fault did wrong."""
    before = look()
    module = None if subject.module is None else describe(subject.module)
    PLAN.set(at, error, each_try=subject.is_traced)
    caught = outcome(subject.run)
    raised = PLAN.raised
    PLAN.set(0, RuntimeError)
    if subject.is_traced and not is_told(raised, caught):
        yield f"the caller got {caught!r:.120}"
    yield from left_behind(subject, before, module, first)


def left_behind(subject: Subject, before: World, module: object, first: object) -> Iterator[str]:
    """What is not as it was before a fault: the world, the caller's module, the next run."""
    changed = list(changes(before, look()))
    yield from changed
    if changed:
        put_right(before)
    if subject.module is not None and describe(subject.module) != module:
        yield "the caller's module was changed"
    again = outcome(subject.run)
    if again != first:
        yield f"the next run gave other figures: {again!r:.160}"
    yield from (f"after the next run, {change}" for change in changes(before, look()))


def outcome(work: Callable[[], object]) -> object:
    """What it returned, or raised."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001  every kind is raised on purpose
        return error


_OF_PYTHON = ("unsupported operand type(s)", "not supported between instances")


def is_told(raised: list[BaseException], caught: object) -> bool:
    """Whether a planned error reached the caller, by itself or as the cause of ours.

    torch's operators take a TypeError for "not this operand", and Python then raises one of its own.
    """
    chain = caught if isinstance(caught, BaseException) else None
    is_operand = any(isinstance(error, TypeError) for error in raised)
    while chain is not None:
        if any(chain is error for error in raised):
            return True
        if is_operand and isinstance(chain, TypeError) and any(text in str(chain) for text in _OF_PYTHON):
            return True
        chain = chain.__cause__
    return False


@contextlib.contextmanager
def quiet_streams() -> Iterator[None]:
    """Messages of the libraries that are made to fail are no findings."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


HOUSE = str(Path(lpo.__file__).parent)
ROOMS = ("core", "weightless", "harness", "costs", "exports", "measurements", "tracing", "models", "api")


@dataclass(frozen=True, slots=True)
class Place:
    """The n-th time that one of our functions is entered, is left, or (a generator) passes a line before its yield."""

    code: CodeType
    event: str  # "call", "return" or "line"
    number: int

    def __str__(self) -> str:
        file = self.code.co_filename.removeprefix(f"{HOUSE}/")
        return f"{self.event} {self.number} of {self.code.co_qualname} in {file}"


class Tracing:
    """Counts places of our own functions in this thread, and raises at one of them."""

    def __init__(self, at: Place | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.counts: Counter[tuple[CodeType, str]] = Counter()
        self.raised: list[BaseException] = []
        self._at, self._error = at, error

    def __enter__(self) -> Tracing:
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not _is_ours(code.co_filename):
            return None
        if _first_yield(code) is not None:
            return None if code.co_name == "<genexpr>" or _is_putting_back(frame) else _Lines(self).on_event
        if self._at is None or self._at.code is code:
            if not _is_putting_back(frame):
                self.reach(code, "call")
            frame.f_trace_lines = False
            return self._on_return
        return None

    def _on_return(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" and _is_putting_back(frame):
            self.reach(frame.f_code, "return")
        return self._on_return

    def reach(self, code: CodeType, event: str) -> None:
        """This place is passed; at the planned one an error is raised."""
        self.counts[code, event] += 1
        at = self._at
        if at is not None and at.code is code and at.event == event and at.number == self.counts[code, event]:
            error = self._error("planned fault")
            self.raised.append(error)
            raise error


class _Lines:
    """The lines of one generator up to its first yield.

    A line that is met again is the end of a `with` block. Python would skip what the block undoes, which no error of
    ours can bring about and Ctrl-C, which waits there, neither.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._last = 0

    def on_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        end = _first_yield(frame.f_code)
        if event == "line" and end is not None and frame.f_lasti < end and frame.f_lineno > self._last:
            self._last = frame.f_lineno
            self._tracing.reach(frame.f_code, "line")
        return self.on_event


@functools.cache
def _is_ours(file: str) -> bool:
    """Not the guard itself that holds Ctrl-C back while things are put back."""
    return file != interrupts.__file__ and any(file.startswith(f"{HOUSE}/{room}/") for room in ROOMS)


@functools.cache
def _first_yield(code: CodeType) -> int | None:
    """Where a generator first yields; None for a function."""
    if not code.co_flags & inspect.CO_GENERATOR:
        return None
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "YIELD_VALUE"), None)


def _is_putting_back(frame: FrameType | None) -> bool:
    """Not what is entered meanwhile: that is taken, and can be given back only after it is."""
    while frame is not None and frame.f_code.co_name != "__enter__":
        if frame.f_code in interrupts._PUTTING_BACK:
            return True
        frame = frame.f_back
    return False


def campaign_own_faults(*, quick: bool, seed: int) -> list[Row]:
    """One row for each way of running a model."""
    with tempfile.TemporaryDirectory() as folder, quiet_streams():
        chosen = [subject for subject in subjects(Path(folder)) if subject.in_our_own[quick]]
        return [own_row(subject, subject.in_our_own[quick], seed) for subject in chosen]


def own_row(subject: Subject, wanted: int, seed: int) -> Row:
    """This many faults in the functions that this subject reaches: of each the first, a middle and the last time."""
    PLAN.set(0, RuntimeError)
    subject.run()
    first = subject.run()
    with Tracing() as tracing:
        subject.run()
    places = list(_places(tracing.counts))
    chosen = random.Random(f"{seed} {subject.name}")
    chosen.shuffle(places)
    findings: list[str] = []
    for place in places[:wanted]:
        error = chosen.choice(ERRORS)
        faulted = _faulted(subject, place, error, first)
        findings += [f"{subject.name}, {error.__name__} at {place}: {finding}" for finding in faulted]
    what = f"{subject.name}, {len({code for code, _ in tracing.counts})} functions"
    return Row(what, min(wanted, len(places)), findings)


def _places(counts: Counter[tuple[CodeType, str]]) -> Iterator[Place]:
    for (code, event), count in counts.items():
        for number in sorted({1, (count + 1) // 2, count}):
            yield Place(code, event, number)


def _faulted(subject: Subject, place: Place, error: type[BaseException], first: object) -> Iterator[str]:
    """What one fault did wrong.

    A run may go on after a fault in a finaliser, whose errors Python gives to nobody, and after one that a guess may
    have caused: the guess is revised, and the trace says so.
    """
    before = look()
    module = None if subject.module is None else describe(subject.module)
    with _finaliser_errors() as lost, Tracing(place, error) as tracing:
        caught = outcome(subject.run)
    may_go_on = lost or not subject.is_traced or issubclass(error, engine._OF_A_GUESS)
    if isinstance(caught, BaseException):
        if not is_told(tracing.raised, caught):
            yield f"the caller got {caught!r:.160}"
    elif caught != first and not may_go_on:
        yield "the run went on and gave other figures"
    yield from left_behind(subject, before, module, first)


@contextlib.contextmanager
def _finaliser_errors() -> Iterator[list[object]]:
    errors: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda error: errors.append(error.exc_type)
    try:
        yield errors
    finally:
        sys.unraisablehook = before


WARM_UP = 20
ROUNDS = 3
GROWTH_BYTES = 4 << 20  # an allocator keeps some pages
GROWTH_OBJECTS = 40  # fewer than there are traces: a leak of one object for each would show


def campaign_memory(*, quick: bool, seed: int) -> list[Row]:
    """One row for each kind of run."""
    module, numbers = plain_model(), itertools.count(1)

    def fails() -> None:
        number = next(numbers)
        PLAN.set(1 + number % 25, ERRORS[number % len(ERRORS)])
        outcome(lambda: traced("weightless", make_target()))
        PLAN.set(0, RuntimeError)

    def of_one(tracer: str, **settings: Any) -> Callable[[], object]:
        return lambda: lpo.trace(module, kwargs=inputs(), tracer=tracer, **settings)

    works: dict[str, tuple[Callable[[], object], int, int]] = {
        "weightless traces, each of a new model": (lambda: traced("weightless", make_target()), 200, 40),
        "weightless traces of one module": (of_one("weightless"), 200, 40),
        "weightless traces that fail": (fails, 200, 40),
        "traces with hooks of one module": (of_one("hooks"), 200, 40),
        "traces with the profiler of one module": (of_one("profiler"), 100, 0),
        "traces with the profiler's details of some modules": (of_one("profiler", only="Linear", **DETAILS), 60, 0),
        "weightless traces of a named model": (
            lambda: lpo.trace("deepseek-ocr-tiny", crops=(1, 2), decode_steps=0),
            60,
            0,
        ),
        "first arguments of a model": (lambda: first_call(make_target()), 200, 0),
        "figures of fvcore": (lambda: counted("fvcore", whole=True), 100, 0),
        "figures of fvcore on real tensors": (lambda: counted_for_real(whole=True), 100, 0),
        "timed runs of one module": (lambda: timed(module), 100, 0),
    }
    with quiet_streams():
        return [
            leak_row(what, work, few if quick else many)
            for what, (work, many, few) in works.items()
            if few or not quick
        ]


def leak_row(what: str, work: Callable[[], object], times: int) -> Row:
    """Flat in one of some rounds: a leak grows in each of them, what an allocator keeps to itself does not."""
    for _ in range(WARM_UP):
        work()
    findings = ["not tried"]
    rounds = 0
    while findings and rounds < ROUNDS:
        findings = _grown(what, work, times)
        rounds += 1
    return Row(what, times * rounds, findings)


def _grown(what: str, work: Callable[[], object], times: int) -> list[str]:
    bytes_before, objects_before = _held()
    for _ in range(times):
        work()
    bytes_after, objects_after = _held()
    findings = []
    if bytes_before is not None and bytes_after is not None and bytes_after - bytes_before > GROWTH_BYTES:
        findings.append(f"{what}: resident memory grew by {bytes_after - bytes_before:,} bytes in {times} traces")
    more = objects_after - objects_before
    if more.total() > GROWTH_OBJECTS:
        most = ", ".join(f"{number} {kind}" for kind, number in more.most_common(4))
        findings.append(f"{what}: {more.total():,} objects more after {times} traces: {most}")
    return findings


def _held() -> tuple[int | None, Counter[str]]:
    """Resident bytes, and the objects that are alive, by type."""
    gc.collect()
    return resident_bytes(), Counter(type(item).__qualname__ for item in gc.get_objects())
