"""Every seam of the project on one page: the protocols, the requests that cross them, and the lazy registries.

A plug-in imports no other plug-in. A registry holds import paths, so listing names loads nothing.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import import_failure
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plain_text import error_notes, error_text, first_line
from llm_perf_opt.core.target import Json, Part, Target
from llm_perf_opt.core.workload import Workload

if TYPE_CHECKING:
    from llm_perf_opt.core.callgraph import CallGraph, StoredFormats
    from llm_perf_opt.core.export_outcome import ExportOptions, PartOutcome
    from llm_perf_opt.core.graph_view import GraphView
    from llm_perf_opt.core.hardware.calibration import Calibration
    from llm_perf_opt.core.recorded_step import RecordedTrainingStep
    from llm_perf_opt.core.report import Report
    from llm_perf_opt.core.source_figures import SourceFigures
    from llm_perf_opt.core.training_setup import TrainingSetup


FORM = "[MODULE=]FILE[:rolled|:unrolled]"
SUFFIXES = (".svg", ".pdf", ".png")
_VIEWS = {":rolled": True, ":unrolled": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePicture:
    """One picture. Rolled, an op that ran several times is one node; unrolled, every run of it is a node of its own."""

    file: Path
    module: str = ""  # the whole model
    is_rolled: bool = False

    def __post_init__(self) -> None:
        if self.file.suffix not in SUFFIXES:
            raise UsageError(
                f"A picture cannot be written as {self.file.name!r}.",
                why=f"the suffix is the format: {', '.join(SUFFIXES)}",
                fix=f"give it as {FORM}, like model.layers.0=layer.svg",
            )

    @classmethod
    def parse(cls, text: str) -> ModulePicture:
        """A picture as the command line names it: `[MODULE=]FILE[:rolled|:unrolled]`, the whole model by default."""
        view = next((ending for ending in _VIEWS if text.endswith(ending)), "")
        module, _, file = text.removesuffix(view).rpartition("=")
        return cls(file=Path(file), module=module, is_rolled=_VIEWS.get(view, False))


def as_pictures(given: Sequence[ModulePicture | str]) -> tuple[ModulePicture, ...]:
    """The pictures, each into a file of its own."""
    pictures = tuple(ModulePicture.parse(picture) if isinstance(picture, str) else picture for picture in given)
    files = Counter(picture.file for picture in pictures)
    for file, count in files.items():
        if count > 1:
            raise UsageError(
                f"{count} pictures would be written to {file}.",
                why="a file holds one picture",
                fix="give each a file of its own",
            )
    return pictures


def require_modules(pictures: Sequence[ModulePicture], paths: Collection[str]) -> None:
    """Refuse a module that the model does not have, with the paths that come nearest."""
    for picture in pictures:
        if picture.module not in paths:
            close = difflib.get_close_matches(picture.module, [path for path in paths if path], n=3, cutoff=0.5)
            raise UsageError(
                f"The model has no module {picture.module!r}.",
                why="a picture is drawn of one module, named by its path in the model",
                fix=f"did you mean {' or '.join(map(repr, close))}?" if close else "take a path from call_counts",
            )


class Sight(Enum):
    """What a tracer can observe."""

    MODULES = auto()
    OPS = auto()
    TIME = auto()
    LIFETIMES = auto()


class ModelAdapter(Protocol):
    """A model folder: turns a workload into targets, without weights."""

    title: str

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """One target per phase, in the order in which they run."""
        ...


@runtime_checkable
class TakesOptions(Protocol):
    """An adapter of a model that understands more than the common fields of a workload."""

    @property
    def workload_type(self) -> type[Workload]:
        """The record that declares them: `WORKLOAD` in the file `options.py` of the model's folder."""
        ...


@runtime_checkable
class TrainsOneStep(Protocol):
    """An adapter that can run a training step of its model without weights."""

    def training_step(self, setup: TrainingSetup, routing: str | None = None) -> RecordedTrainingStep:
        """Forward, loss and backward of each micro batch, and the optimizer."""
        ...


class FolderAdapter(ModelAdapter, Protocol):
    """A model read from a folder that a person points at, which may bring its own code.

    Of a model that was found by its name, `name` is that name, and `source` says where the folder's content came from.
    """

    def __init__(self, folder: Path, trust_remote_code: bool, *, name: str | None = None, source: str = "") -> None: ...


class Tracer(Protocol):
    """Runs a target and records what happened.

    `takes` names the settings of its constructor: `routing` of tokens to experts, the torch `device`, the `weights` of
    a real run, `only` and `stage` for the modules to record, and `keep_in`, a folder for files of its own.
    """

    sees: frozenset[Sight]
    takes: frozenset[str]

    def trace(self, target: Target) -> CallGraph:
        """Run `target` once and return its call graph; a model that raises half-way ends in `PartialTrace`."""
        ...


@runtime_checkable
class DrawingTracer(Tracer, Protocol):
    """A tracer that can draw pictures with its own library."""

    def require_drawable(self, target: Target, pictures: Sequence[ModulePicture]) -> None:
        """Refuse, before any run, a picture of a module that the model lacks, or that no program here can draw.

        `target` is of no further use: its model may be built without weights.
        """
        ...

    def draw(self, target: Target, picture: ModulePicture) -> None:
        """Draw what runs in the first call of a module."""
        ...


class PartialTrace(PerfOptError):
    """The model raised half-way: `graph` holds what ran until then, and says in `stopped_in` where that was."""

    def __init__(self, graph: CallGraph, error: Exception) -> None:
        if isinstance(error, PerfOptError):
            super().__init__(error.what, why=error.why, fix=error.fix, exit_code=error.exit_code)
        else:
            missing = import_failure(error) if isinstance(error, ImportError) else None
            super().__init__(
                f"The model raised {type(error).__name__} in module {graph.stopped_in or '(root)'}.",
                why="; ".join((first_line(error_text(error), 500), *error_notes(error))),
                fix="correct the input, the weights or the model; the trace up to there is marked as partial"
                if missing is None
                else missing.fix,
            )
        self.graph = graph


@runtime_checkable
class KnowsClosedForms(Protocol):
    """An adapter that can tell what its model costs without running it, and without torch."""

    def closed_forms(self, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase; none where no formulas are known for this model."""
        ...

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in, as a trace keeps it."""
        ...


@runtime_checkable
class KnowsStoredFormats(Protocol):
    """An adapter of a checkpoint that says how its weights are stored."""

    def stored_formats(self, graph: CallGraph) -> StoredFormats:
        """The format of each weight of the traced model that is not stored in the type of the trace."""
        ...


@runtime_checkable
class SpreadsOverRanks(Protocol):
    """An adapter with a model that can be split between ranks."""

    def on_rank(self, plan: ParallelPlan) -> ModelAdapter:
        """The same model as one rank of the plan holds and runs it."""
        ...


@runtime_checkable
class CopiesKeyHeads(Protocol):
    """An adapter that can spread its model as engines do where ranks outnumber key heads."""

    def copying_key_heads(self) -> ModelAdapter:
        """The same model; on a rank of a plan it then has a copy of a key head that others hold too."""
        ...


@runtime_checkable
class KnowsKindsOfRank(Protocol):
    """An adapter with ranks that may differ in more than their pipeline stage."""

    def kinds_of_rank(self, plan: ParallelPlan, workload: Workload) -> tuple[int, ...]:
        """One rank of each kind, in order; of a plan that names a rank, that one."""
        ...


@runtime_checkable
class KnowsLengths(Protocol):
    """An adapter that reads from a configuration at which context lengths something may change, such as a window."""

    def lengths_of_interest(self) -> tuple[int, ...]:
        """Windows and chunks, in tokens."""
        ...


@runtime_checkable
class KnowsParts(Protocol):
    """An adapter that names the pieces of its model that an exporter should take."""

    def parts(self) -> tuple[Part, ...]:
        """In the order of a matrix of results."""
        ...


class Source(Protocol):
    """An independent counter. A stage it cannot count gets a record with the reason, not an exception.

    One that runs the model takes `routing` and `device` in its constructor, as a tracer does.
    """

    runs_model: bool

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which they run."""
        ...


@runtime_checkable
class CountsWholeRuns(Protocol):
    """A source that also takes a phase as one piece, as its own users do."""

    def whole_runs(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """One record per phase, `Method.WHOLE_RUN`, with the figures of every module; or the reason of its failure."""
        ...


@runtime_checkable
class ReadsTraces(Protocol):
    """A source with figures that were computed during tracing and saved in the trace."""

    def of_trace(self, graphs: Sequence[CallGraph]) -> tuple[SourceFigures, ...]:
        """The figures of each phase; or the reason why there are none."""
        ...


class ExportLab(Protocol):
    """Takes a part of a model through the exporters of one library."""

    def examine(self, target: Target, part: Part, options: ExportOptions, fresh: Target | None = None) -> PartOutcome:
        """What became of the part; a refusal of an exporter is a result with a place and a reason, not an exception.

        `fresh` is the same target once more, not run yet: its model gets the weights that `options` ask for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One page or prompt as it runs for real; `workload` is the same for `targets`, with everything decided."""

    targets: tuple[Target, ...]
    workload: Workload


@runtime_checkable
class RunsForReal(Protocol):
    """An adapter with real runs beyond its targets: files that are read, a prompt in words, own weights."""

    def real_run(self, workload: Workload, prompt: str | None) -> RealRun:
        """The phases to run one after the other; a prompt in words takes the place of `prompt_tokens`."""
        ...


@runtime_checkable
class SpeaksText(Protocol):
    """An adapter that knows the token that ends a text, and with a tokenizer puts tokens into words."""

    @property
    def eos_token_id(self) -> int | None:
        """None: the configuration names none."""
        ...

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """The words; None without a tokenizer."""
        ...


class Checkpoint(RunsForReal, SpeaksText, Protocol):
    """A released folder that runs; `adapter` gives the targets of its traces, `notes` say what was decided."""

    adapter: ModelAdapter
    notes: tuple[str, ...]


@runtime_checkable
class OpensCheckpoint(Protocol):
    """An adapter that can run a released folder of its model: with its sizes, its weights and its tokenizer."""

    def open_checkpoint(
        self, folder: Path, *, device: str, attention: str | None, trust_remote_code: bool
    ) -> Checkpoint:
        """The folder, opened; its own code runs only under `trust_remote_code`."""
        ...


@runtime_checkable
class WritesEngineFolder(Protocol):
    """An adapter without a folder of its own that can write what a serving engine needs of one."""

    def write_engine_folder(self, folder: Path) -> None:
        """The configuration; no weights and no tokenizer."""
        ...


class StageWatch(Protocol):
    """Told where the stages of a run begin and end: a clock, the ranges of a profiler. Stages nest."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Entered when the stage begins, left when it ends."""
        ...


class Reporter(Protocol):
    """One output format. It sees a report, never an analysis."""

    suffix: str

    def render(self, report: Report) -> str:
        """The whole report as text."""
        ...


@runtime_checkable
class FitsOneScreen(Protocol):
    """A format that a terminal shows: the most important of a report or a view in one screen."""

    def one_screen(self, shown: Any, /) -> str:
        """At most one screen; its last line says what is left out, and how that is shown."""
        ...


class Drawing(Protocol):
    """One way to draw a grouped view. `metric` is what it weighs by: a word of `Metric`."""

    suffix: str

    def __init__(self, metric: str = "flops") -> None: ...

    def render(self, view: GraphView) -> str | bytes:
        """The whole view as text, or as the bytes of a picture; the same view gives the same result."""
        ...


@runtime_checkable
class DrawsPhases(Drawing, Protocol):
    """A drawing that holds all phases of a run, between which its reader switches."""

    def render_phases(self, views: Mapping[str, GraphView], first: str, *, fits: bool = True) -> str | bytes:
        """The views by phase; the reader sees `first` first.

        With `fits` boxes may begin closed, so that the first picture can be read whole.
        """
        ...


class Calibrator(Protocol):
    """Measures this machine."""

    def __call__(
        self, *, device: str = "cpu", dtype: str = "bfloat16", threads: int | None = None, smoke: bool = False
    ) -> Calibration:
        """How long each kind of work takes; with `smoke` only the smallest sizes are tried."""
        ...
