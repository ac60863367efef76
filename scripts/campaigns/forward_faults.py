"""Faults in model code: at every point of a forward, of every kind, under every tracer, source, exporter and clock.

After each the world is as before, the caller's module too, and the next run gives the figures of the first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.api.traced_phases import draw_modules, drawing_tracer, make_tracer, trace_targets
from llm_perf_opt.core.export_outcome import Check, ExportOptions
from llm_perf_opt.core.module_pictures import as_pictures
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.protocols import CountsWholeRuns, RealRun
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.harness.first_call import first_call
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.timing.timed_runs import PageRun, TimedRuns
from llm_perf_opt.labs.export.torch_lab import TorchLab
from llm_perf_opt.sources.fvcore_counter import FvcoreCounter
from scripts.campaigns.fingerprint import fingerprint
from scripts.campaigns.plain_world import World, changes, describe, look, put_right
from scripts.campaigns.rows import Row
from scripts.campaigns.stand_in import ERRORS, PART, PLAN, StandInAdapter, inputs, make_target, plain_model

NAME = "forward_faults"
DETAILS = {"with_stack": True, "with_modules": True, "profile_memory": True}
TRACED: tuple[tuple[str, str, dict[str, Any], int, int], ...] = (  # name, tracer, settings, faults: full and quick
    ("hooks", "hooks", {}, 0, 30),
    ("hooks, filtered", "hooks", {"only": "DeepseekV2DecoderLayer", "stage": "vision"}, 100, 5),
    ("profiler", "profiler", {}, 150, 6),
    ("profiler, filtered, with details", "profiler", {"only": "Linear", **DETAILS}, 60, 3),
    ("torchlens", "torchlens", {}, 60, 2),
)
SOURCES_TRIED = (("torch-counter", 150, 8), ("byte-counter", 150, 8), ("fvcore", 80, 2), ("exported", 40, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something that runs the stand-in. `run` gives what two good runs have in common."""

    name: str
    run: Callable[[], object]
    module: nn.Module | None = None  # of the caller's, which must stay as it was
    is_traced: bool = False  # a fault must reach the caller; other runs may turn it into a result
    full: int = 0  # faults in the full campaign; 0: every point with every error
    quick: int = 10


def traced(tracer: str, target: Target, **settings: Any) -> str:
    """The figures of one trace."""
    made = make_tracer(tracer, **settings)
    (graph,) = trace_targets(made, StandInAdapter(), [target], Deployment.make()).graphs
    return fingerprint(graph)


def subjects(scratch: Path) -> Iterator[Subject]:
    """Each way in which the house runs a model."""
    model = plain_model()
    yield Subject(name="tracer weightless", run=lambda: traced("weightless", make_target()), is_traced=True, quick=45)
    for name, tracer, settings, full, quick in TRACED:
        yield Subject(
            name=f"tracer {name}",
            run=lambda tracer=tracer, settings=settings: traced(tracer, make_target(model), **settings),
            module=model,
            is_traced=True,
            full=full,
            quick=quick,
        )
    if shutil.which("dot") is not None:
        yield Subject(name="torchlens picture", run=lambda: drawn(model, scratch), module=model, full=20, quick=0)
    for source, full, quick in SOURCES_TRIED:
        yield Subject(name=f"source {source}", run=lambda source=source: counted(source), full=full, quick=quick)
    yield Subject(name="fvcore, whole runs", run=lambda: counted("fvcore", whole=True), full=60, quick=2)
    yield Subject(name="fvcore on real tensors", run=lambda: counted_for_real(whole=False), full=60, quick=2)
    yield Subject(name="fvcore, whole real runs", run=lambda: counted_for_real(whole=True), full=60, quick=0)
    yield Subject(name="export lab", run=examined, full=30, quick=1)
    yield Subject(name="export lab with weights", run=lambda: examined(scratch), full=30, quick=0)
    yield Subject(name="first arguments", run=_first_arguments, full=0, quick=4)
    yield Subject(name="trace of a module", run=lambda: _of_module(model), module=model, full=150, quick=8)
    yield Subject(name="timed run", run=lambda: timed(model), module=model, full=150, quick=8)
    yield Subject(name="operator pass", run=lambda: _operators(model, scratch), module=model, full=60, quick=3)


def _of_module(model: nn.Module) -> object:
    return fingerprint(lpo.trace(model, kwargs=inputs()).graphs[0])


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
    made = SOURCES.get(source)()
    if whole:
        assert isinstance(made, CountsWholeRuns)
        return figures_of(made.whole_runs(StandInAdapter(), Workload()))
    return figures_of(made.figures(StandInAdapter(), Workload()))


def counted_for_real(*, whole: bool) -> object:
    """By fvcore, of a model that cannot be traced without values."""
    adapter = StandInAdapter(refuses_ghosts=True)
    made = FvcoreCounter()
    return figures_of((made.whole_runs if whole else made.figures)(adapter, Workload()))


def figures_of(found: Sequence[SourceFigures]) -> object:
    """What two good runs have in common."""
    return [(one.stage, one.flops, one.bytes_moved, one.tensors, one.failure) for one in found]


def examined(weights_in: Path | None = None) -> object:
    """What the export lab finds, but for times; with files that hold weights in that folder."""
    if weights_in is None:
        checks = frozenset({Check.EXPORT, Check.DYNAMIC, Check.ONNX, Check.PARITY})
        found = TorchLab().examine(make_target(), PART, ExportOptions(checks=checks))
    else:
        options = ExportOptions(checks=frozenset({Check.EXPORT, Check.WEIGHTS}), load_weights="random", out=weights_in)
        found = TorchLab().examine(make_target(), PART, options, make_target())
    return [(outcome.check, outcome.verdict) for outcome in found.outcomes]


def _page(model: nn.Module) -> PageRun:
    return PageRun(image=None, run=RealRun(targets=(make_target(model),), workload=Workload(decode_steps=0)))


def timed(model: nn.Module) -> object:
    """The stages of a timed run."""
    page = TimedRuns(RealModels(weights="random", device="cpu"), warmup=1, repeats=2).measure(_page(model))
    return [sorted(one.stages_ns) for one in page.passes]


def _operators(model: nn.Module, scratch: Path) -> object:
    runs = TimedRuns(RealModels(weights="random", device="cpu"))
    found = runs.operators(_page(model), scratch / "operators.json", modules=True)
    return sorted((one.stage, one.operator, one.calls) for one in found)


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each way of running a model."""
    with tempfile.TemporaryDirectory() as folder, quiet_streams():
        chosen = [subject for subject in subjects(Path(folder)) if subject.quick or not quick]
        return [_campaign(subject, quick=quick, seed=seed) for subject in chosen]


def _campaign(subject: Subject, *, quick: bool, seed: int) -> Row:
    PLAN.set(0, RuntimeError)
    subject.run()  # whatever is loaded or cached once
    PLAN.set(0, RuntimeError, each_try=subject.is_traced)
    first = subject.run()
    points = PLAN.passed
    pairs = list(itertools.product(range(1, points + 1), ERRORS))
    wanted = subject.quick if quick else subject.full or len(pairs)
    if wanted < len(pairs):
        pairs = random.Random(f"{seed} {subject.name}").sample(pairs, wanted)
    findings: list[str] = []
    for at, error in pairs:
        where = f"{subject.name}, {error.__name__} at point {at} of {points}"
        findings += [f"{where}: {finding}" for finding in faulted(subject, at, error, first)]
    return Row(campaign=NAME, what=f"{subject.name}, {points} points", tried=len(pairs), findings=findings)


def faulted(subject: Subject, at: int, error: type[BaseException], first: object) -> Iterator[str]:
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
    found = list(changes(before, look()))
    yield from found
    if found:
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
    is_operand = any(isinstance(one, TypeError) for one in raised)
    while chain is not None:
        if any(chain is one for one in raised):
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
