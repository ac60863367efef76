"""Every seam of the project on one page: the protocols, the requests that cross them, and the lazy registries.

A plug-in imports no other plug-in. A registry holds import paths, so listing names loads nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from llm_perf_opt.errors import PerfOptError, UsageError

if TYPE_CHECKING:
    from llm_perf_opt.callgraph import CallGraph
    from llm_perf_opt.document import GraphView, Report

Json = Any  # JSON-safe value: None, bool, int, float, str, list, dict with string keys
Emit = Callable[[str, Json], None]  # the name of a runtime fact and its value so far
Observe = Callable[[Any, Emit], AbstractContextManager[object]]  # (the built model, emit) -> entered around `invoke`


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a person asks a model to do; `None` means the adapter's own default.

    An adapter that has no use for a field that was set raises `UsageError`: a silently ignored wish is a wrong figure.
    """

    image: str | None = None  # "1240x1754" (width x height) or a path to an image file
    mode: str | None = None
    crops: tuple[int, int] | None = None  # (columns, rows)
    prompt_tokens: int | None = None
    decode_steps: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    attention: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A named part of the run: every call below one of `paths`, unless a deeper stage claims it."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One phase of one model under one workload, ready for any tracer.

    `build` and `invoke` are plain torch code that runs the same with real tensors and with ghosts. The targets of one
    workload share one `build`, which builds once. Calls that no stage claims belong to a stage named after the phase.
    `runtime` is what the adapter claims of the model's loops; `observe` sees them happen, and what it emits wins. Every
    tracer enters it around `invoke`, before it wraps anything itself (`tracers.runtime_facts.observing`).
    """

    model: str
    phase: str
    workload: Mapping[str, Json]
    build: Callable[[], Any]
    invoke: Callable[[Any], object]
    stages: tuple[Stage, ...] = ()
    runtime: Mapping[str, Json] = field(default_factory=dict)
    observe: Observe | None = None


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


class FolderAdapter(ModelAdapter, Protocol):
    """A model read from a folder that a person points at, which may bring its own code."""

    def __init__(self, folder: Path, trust_remote_code: bool) -> None: ...


class Tracer(Protocol):
    """Runs a target and records what happened."""

    sees: frozenset[Sight]

    def trace(self, target: Target) -> CallGraph:
        """Run `target` once and return its call graph; a model that raises half-way ends in `PartialTrace`."""
        ...


class DrawingTracer(Tracer, Protocol):
    """A tracer whose library draws pictures of its own."""

    def picture(self, target: Target, path: str, file: Path) -> None:
        """Draw one module into `file`, whose suffix is the format."""
        ...


class PartialTrace(PerfOptError):
    """The model raised half-way: `graph` holds what ran until then, and says in `stopped_in` where that was."""

    def __init__(self, graph: CallGraph, error: Exception) -> None:
        if isinstance(error, PerfOptError):
            super().__init__(error.what, why=error.why, fix=error.fix, exit_code=error.exit_code)
        else:
            notes = getattr(error, "__notes__", ())
            super().__init__(
                f"The model raised {type(error).__name__} in module {graph.stopped_in or '(root)'}.",
                why="; ".join((str(error).strip().partition("\n")[0][:500], *notes)),
                fix="correct the input, the weights or the model; the trace up to there is marked as partial",
            )
        self.graph = graph


class Reporter(Protocol):
    """One output format. It sees a report, never an analysis."""

    suffix: str

    def render(self, report: Report) -> str:
        """The whole report as text."""
        ...


class Drawing(Protocol):
    """One way to draw a grouped view. `metric` is what it weighs by: flops, bytes, parameters or calls."""

    suffix: str

    def __init__(self, metric: str = "flops") -> None: ...

    def render(self, view: GraphView) -> str | bytes:
        """The whole view as text, or as the bytes of a picture; the same view gives the same result."""
        ...


T_co = TypeVar("T_co", covariant=True)


class Registry(Generic[T_co]):
    """Names -> `"package.module:attribute"`, imported at the first `get`."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def names(self) -> tuple[str, ...]:
        """Every registered name, in the order of the table."""
        return tuple(self._entries)

    def get(self, name: str) -> T_co:
        """The registered object; an unknown name raises with the nearest known one."""
        if name not in self._entries:
            raise UsageError(
                f"No {self.kind} named {name!r}.",
                why=f"known {self.kind}s: {', '.join(self._entries)}",
                fix=self._nearest(name),
            )
        module, _, attribute = self._entries[name].partition(":")
        return cast("T_co", getattr(importlib.import_module(module), attribute))

    def _nearest(self, name: str) -> str:
        import difflib

        close = difflib.get_close_matches(name, self._entries, n=1, cutoff=0.5)
        return f"did you mean {close[0]!r}?" if close else "pick one of the known names"


MODELS: Registry[type[ModelAdapter]] = Registry(
    "model", {"deepseek-ocr": "llm_perf_opt.models.deepseek_ocr.adapter:DeepSeekOcrAdapter"}
)
FOLDERS: Registry[type[FolderAdapter]] = Registry(
    "kind of model folder", {"huggingface": "llm_perf_opt.models.huggingface.adapter:HuggingFaceAdapter"}
)
FolderInputs = Callable[[str, Callable[[], Any], Workload], tuple[Target, ...]]
# Model types whose inputs no signature tells: model folders that know them give the targets for such a folder.
FOLDER_INPUTS: Registry[FolderInputs] = Registry(
    "model type with inputs of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.released:released_targets"}
)
TRACERS: Registry[type[Tracer]] = Registry(
    "tracer",
    {
        "weightless": "llm_perf_opt.tracers.weightless_tracer:WeightlessTracer",
        "hooks": "llm_perf_opt.tracers.hooks_tracer:HooksTracer",
        "torchlens": "llm_perf_opt.tracers.torchlens_tracer:TorchLensTracer",
        "profiler": "llm_perf_opt.tracers.profiler_tracer:ProfilerTracer",
    },
)
REPORTERS: Registry[type[Reporter]] = Registry(
    "report format",
    {
        "text": "llm_perf_opt.reports.text_report:TextReport",
        "json": "llm_perf_opt.reports.json_report:JsonReport",
        "markdown": "llm_perf_opt.reports.markdown_report:MarkdownReport",
    },
)
DRAWINGS: Registry[type[Drawing]] = Registry(
    "drawing",
    {
        "text": "llm_perf_opt.reports.text_drawing:TextDrawing",
        "json": "llm_perf_opt.reports.json_drawing:JsonDrawing",
        "markdown": "llm_perf_opt.reports.markdown_drawing:MarkdownDrawing",
        "mermaid": "llm_perf_opt.reports.mermaid_drawing:MermaidDrawing",
        "dot": "llm_perf_opt.reports.dot_drawing:DotDrawing",
        "svg": "llm_perf_opt.reports.svg_drawing:SvgDrawing",
        "png": "llm_perf_opt.reports.png_drawing:PngDrawing",
        "html": "llm_perf_opt.reports.html_drawing:HtmlDrawing",
        "model-explorer": "llm_perf_opt.reports.model_explorer_drawing:ModelExplorerDrawing",
        "model-explorer-data": "llm_perf_opt.reports.model_explorer_data_drawing:ModelExplorerDataDrawing",
        "speedscope": "llm_perf_opt.reports.speedscope_drawing:SpeedscopeDrawing",
        "collapsed": "llm_perf_opt.reports.collapsed_drawing:CollapsedDrawing",
    },
)
