"""Every seam of the project on one page: the protocols, the requests that cross them, and the lazy registries.

A plug-in imports no other plug-in. A registry holds import paths, so listing names loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.registry import Registry

if TYPE_CHECKING:
    from llm_perf_opt.core.callgraph import CallGraph, StoredFormats
    from llm_perf_opt.core.export_outcome import ExportWishes, PartOutcome
    from llm_perf_opt.core.hardware.calibration import Calibration
    from llm_perf_opt.core.measurement import InferenceRequest, Kernel, OperatorTime, PageMeasurement, SessionRequest
    from llm_perf_opt.core.report import GraphView, Report
    from llm_perf_opt.core.source_figures import Testimony

Json = Any  # JSON-safe
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
class Deployment:
    """How a model is served, beside what it is asked to do; `None` means as the checkpoint says."""

    weights: str | None = None  # a stored format: "fp8", "int4-g128", "bf16"
    cache: str | None = None  # the type of keys and values


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
    tracer enters it around `invoke`, before it wraps anything itself (`execution.runtime_facts.observing`).

    `prepare` makes what the phase begins with: pixels and token ids, the cache that an earlier phase left. It runs
    before anything is recorded, so its ops are no work of the phase and its tensors are the phase's inputs. What it
    returns belongs to `invoke`, which may empty it as it goes, so that nothing is held longer than the model holds it.
    `notes` are sentences about the workload that every report of the trace repeats.
    """

    model: str
    phase: str
    workload: Mapping[str, Json]
    build: Callable[[], Any]
    invoke: Callable[..., object]  # (the built model), or with `prepare` (the built model, what it returned)
    stages: tuple[Stage, ...] = ()
    runtime: Mapping[str, Json] = field(default_factory=dict)
    observe: Observe | None = None
    prepare: Callable[[Any], object] | None = None
    notes: tuple[str, ...] = ()

    def start(self, model: Any) -> object:
        """What the phase begins with, made anew; None where it needs nothing."""
        return None if self.prepare is None else self.prepare(model)

    def run(self, model: Any, given: object = None) -> object:
        """Run the phase once on what `start` made, or makes now."""
        if self.prepare is None:
            return self.invoke(model)
        return self.invoke(model, self.start(model) if given is None else given)


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


class KnowsClosedForms(Protocol):
    """An adapter that can tell what its model costs without running it, and without torch."""

    def closed_forms(self, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase."""
        ...

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in, as a trace keeps it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a model that is worth a static graph: one module, or several wrapped as one."""

    name: str  # "sam-block-windowed"
    path: str  # of the module in the run; its last distinct call gives the arguments
    title: str = ""
    phase: str = "prefill"
    axes: tuple[str, ...] = ()  # names of the dimensions of its first tensor; an empty name: not tried, and listed so
    wrap: Callable[[Any], Any] | None = None  # (the built model) -> the module to export in place of the one at `path`
    wraps: tuple[str, ...] = ()  # the modules that do the work of the wrapper, where that is not `path` alone
    adaptation: str = ""  # what the wrapper changes
    does_other_work: bool = False  # than the modules it stands for: its FLOPs need not be theirs
    instead: tuple[str, ...] = ()  # names of the parts to export where this one cannot be


class KnowsStoredFormats(Protocol):
    """An adapter of a checkpoint that says how its weights are stored."""

    def stored_formats(self, graph: CallGraph) -> StoredFormats:
        """The format of each weight of the traced model that is not stored in the type of the trace."""
        ...


class KnowsParts(Protocol):
    """An adapter that names the pieces of its model that an exporter should take."""

    def parts(self) -> tuple[Part, ...]:
        """In the order of a matrix of results."""
        ...


class Witness(Protocol):
    """An independent counter. A stage it cannot count gets a testimony with the reason, not an exception."""

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase, in the order in which they run."""
        ...


class ExportLab(Protocol):
    """Takes a part of a model through the exporters of one library."""

    def examine(self, target: Target, part: Part, wishes: ExportWishes) -> PartOutcome:
        """What became of the part; a refusal of an exporter is a result with a place and a reason, not an exception."""
        ...


class StageWatch(Protocol):
    """Told where the stages of a run begin and end: a clock, the ranges of a profiler. Stages nest."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Entered when the stage begins, left when it ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What a session made of a request. `workload` is the same run for an adapter, with everything decided."""

    token_ids: tuple[int, ...]
    text: str | None  # None: no tokenizer
    context_tokens: int
    decode_steps: int
    cache_tokens: int
    workload: Workload


class Session(Protocol):
    """A model with weights on a device, and the adapter that tells the costs of what it runs."""

    adapter: ModelAdapter
    device: str
    notes: tuple[str, ...]

    @property
    def model(self) -> Any:
        """The torch module, built when it is first asked for."""
        ...

    def infer(self, request: InferenceRequest, watch: StageWatch, ranges: str = "none") -> Inference:
        """Run it once, each stage told to `watch`; `ranges` names "stages" or "modules" in the profilers' records."""
        ...


class Runner(Protocol):
    """Measures a session, page by page."""

    def __init__(
        self,
        session: Session,
        *,
        warmup: int = 1,
        repeats: int = 3,
        clock: str = "auto",
        threads: int | None = None,
        watch: StageWatch | None = None,
    ) -> None: ...

    def environment(self) -> dict[str, Json]:
        """What the times depend on besides the model."""
        ...

    def measure(self, request: InferenceRequest) -> PageMeasurement:
        """Raw samples of one page."""
        ...

    def operators(self, request: InferenceRequest, chrome_trace: Path, *, modules: bool) -> tuple[OperatorTime, ...]:
        """Operators by stage from a pass of its own, and its Chrome trace."""
        ...

    def ranged_pass(self, request: InferenceRequest, *, modules: bool) -> None:
        """One pass whose stages are named ranges, for a profiler that watches from outside."""
        ...


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


class Calibrator(Protocol):
    """Measures the machine at hand."""

    def __call__(
        self, *, device: str = "cpu", dtype: str = "bfloat16", threads: int | None = None, smoke: bool = False
    ) -> Calibration:
        """How long each kind of work takes; with `smoke` only the smallest sizes are tried."""
        ...


MODELS: Registry[type[ModelAdapter]] = Registry(
    "model",
    {
        "deepseek-ocr": "llm_perf_opt.models.deepseek_ocr.adapter:DeepSeekOcrAdapter",
        "got-ocr2": "llm_perf_opt.models.got_ocr2.adapter:GotOcr2Adapter",
    },
)
FOLDERS: Registry[type[FolderAdapter]] = Registry(
    "kind of model folder", {"huggingface": "llm_perf_opt.models.huggingface.adapter:HuggingFaceAdapter"}
)
FolderInputs = Callable[[str, Callable[[], Any], Workload], tuple[Target, ...]]
# Model types whose inputs no signature tells: their model folders give the targets, and the parts to export.
FOLDER_INPUTS: Registry[FolderInputs] = Registry(
    "model type with inputs of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.released:released_targets"}
)
SESSIONS: Registry[Callable[[SessionRequest], Session]] = Registry(
    "model that can be profiled",
    {
        "deepseek-ocr": "llm_perf_opt.models.deepseek_ocr.session:open_session",
        "deepseek-ocr-tiny": "llm_perf_opt.models.deepseek_ocr.session:open_tiny_session",
    },
)
RUNNERS: Registry[type[Runner]] = Registry("kind of run", {"timed": "llm_perf_opt.harness.timing.timed_runs:TimedRuns"})
OutsideProfiler = Callable[[Sequence[str], Path, str], "tuple[Kernel, ...]"]
OUTSIDE_PROFILERS: Registry[OutsideProfiler] = Registry(
    "profiler of another vendor",
    {"nsys": "llm_perf_opt.harness.timing.nsight:run_nsys", "ncu": "llm_perf_opt.harness.timing.nsight:run_ncu"},
)
TRACERS: Registry[type[Tracer]] = Registry(
    "tracer",
    {
        "weightless": "llm_perf_opt.harness.tracers.weightless_tracer:WeightlessTracer",
        "hooks": "llm_perf_opt.harness.tracers.hooks_tracer:HooksTracer",
        "torchlens": "llm_perf_opt.harness.tracers.torchlens_tracer:TorchLensTracer",
        "profiler": "llm_perf_opt.harness.tracers.profiler_tracer:ProfilerTracer",
    },
)
WITNESSES: Registry[type[Witness]] = Registry(
    "source of figures",
    {
        "torch-counter": "llm_perf_opt.sources.torch_counter:TorchCounter",
        "fvcore": "llm_perf_opt.sources.fvcore_counter:FvcoreCounter",
        "byte-counter": "llm_perf_opt.sources.byte_counter:ByteCounter",
        "closed-form": "llm_perf_opt.sources.closed_form:ClosedForm",
        "exported": "llm_perf_opt.labs.export.export_source:ExportWitness",
    },
)
CALIBRATORS: Registry[Calibrator] = Registry("calibrator", {"torch": "llm_perf_opt.labs.calibrate:calibrate"})
FOLDER_PARTS: Registry[Callable[[], tuple[Part, ...]]] = Registry(
    "model type with parts of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.parts:released_parts"}
)
EXPORT_LABS: Registry[type[ExportLab]] = Registry(
    "export lab", {"torch": "llm_perf_opt.labs.export.torch_lab:TorchLab"}
)
REPORTERS: Registry[type[Reporter]] = Registry(
    "report format",
    {
        "text": "llm_perf_opt.formats.text_report:TextReport",
        "json": "llm_perf_opt.formats.json_report:JsonReport",
        "markdown": "llm_perf_opt.formats.markdown_report:MarkdownReport",
        "csv": "llm_perf_opt.formats.csv_report:CsvReport",
        "html": "llm_perf_opt.formats.html_report:HtmlReport",
    },
)
DRAWINGS: Registry[type[Drawing]] = Registry(
    "drawing",
    {
        "text": "llm_perf_opt.formats.text_drawing:TextDrawing",
        "json": "llm_perf_opt.formats.json_drawing:JsonDrawing",
        "markdown": "llm_perf_opt.formats.markdown_drawing:MarkdownDrawing",
        "mermaid": "llm_perf_opt.formats.mermaid_drawing:MermaidDrawing",
        "dot": "llm_perf_opt.formats.dot_drawing:DotDrawing",
        "svg": "llm_perf_opt.formats.svg_drawing:SvgDrawing",
        "png": "llm_perf_opt.formats.svg_drawing:PngDrawing",
        "html": "llm_perf_opt.formats.html_drawing:HtmlDrawing",
        "model-explorer": "llm_perf_opt.formats.model_explorer_drawing:ModelExplorerDrawing",
        "model-explorer-data": "llm_perf_opt.formats.model_explorer_drawing:ModelExplorerDataDrawing",
        "speedscope": "llm_perf_opt.formats.flame_graph_drawing:SpeedscopeDrawing",
        "collapsed": "llm_perf_opt.formats.flame_graph_drawing:CollapsedDrawing",
    },
)
