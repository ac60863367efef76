"""Names -> import paths: the tables of plug-ins, which can be listed without loading any of them.

The options of a model are found next to its entry, by the same rule: `workload_type`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from llm_perf_opt.core.errors import PerfOptError, UsageError

# The records and protocols that describe plug-ins are imported where they are used: `--help` lists names alone.

if TYPE_CHECKING:
    from llm_perf_opt.core.measurement import MeasuredKernel
    from llm_perf_opt.core.options import Option
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.core.protocols import (
        Calibrator,
        Drawing,
        ExportLab,
        FolderAdapter,
        KnowsClosedForms,
        ModelAdapter,
        Reporter,
        Source,
        TakesOptions,
        Tracer,
    )
    from llm_perf_opt.core.target import Part, Target, World
    from llm_perf_opt.core.workload import Workload

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
        """The registered object; an unknown name raises with the nearest known one, as does one that lacks torch."""
        self.check(name)
        module, _, attribute = self._entries[name].partition(":")
        try:
            return cast("T_co", getattr(importlib.import_module(module), attribute))
        except ModuleNotFoundError as error:
            from llm_perf_opt.core.missing_packages import RUNS_MODELS, cannot_run

            if error.name not in RUNS_MODELS:
                raise
            raise cannot_run(error.name) from error

    def package(self, name: str) -> str:
        """The package that the entry's module lies in; nothing is imported."""
        self.check(name)
        return self._entries[name].partition(":")[0].rpartition(".")[0]

    def check(self, name: str, besides: Sequence[str] = ()) -> None:
        """Refuse an unknown name without importing anything; `besides` are names that the caller knows itself."""
        known = (*besides, *self._entries)
        if name not in known:
            noun, joined, rest = re.split("( of | with |$)", self.kind, maxsplit=1)
            raise UsageError(
                f"No {self.kind} named {name!r}.",
                why=f"known {noun}s{joined}{rest}: {', '.join(known)}",
                fix=self._nearest(name, known),
            )

    def _nearest(self, name: str, known: Sequence[str]) -> str:
        import difflib

        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        return f"did you mean {close[0]!r}?" if close else "pick one of the known names"


MODELS: Registry[type[ModelAdapter]] = Registry(
    "model",
    {
        "deepseek-ocr": "llm_perf_opt.models.deepseek_ocr.adapter:DeepSeekOcrAdapter",
        "deepseek-ocr-tiny": "llm_perf_opt.models.deepseek_ocr.adapter:DeepSeekOcrTinyAdapter",
        "got-ocr2": "llm_perf_opt.models.got_ocr2.adapter:GotOcr2Adapter",
    },
)
# Published names of registered models.
MODEL_ALIASES: Mapping[str, str] = {"deepseek-ai/DeepSeek-OCR": "deepseek-ocr", "stepfun-ai/GOT-OCR-2.0-hf": "got-ocr2"}
FOLDERS: Registry[type[FolderAdapter]] = Registry(
    "kind of model folder", {"huggingface": "llm_perf_opt.models.huggingface.adapter:HuggingFaceAdapter"}
)
FolderInputs = Callable[[str, Callable[[], Any], "Workload", "World | None"], "tuple[Target, ...]"]
# For these model types no signature tells the inputs: model folders that know them give the targets.
FOLDER_INPUTS: Registry[FolderInputs] = Registry(
    "model type with inputs of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.targets:released_targets"}
)
# (command line of a process that makes a ranged pass, folder for files, stage of interest) -> the kernels it launched
OutsideProfiler = Callable[[Sequence[str], Path, str], "tuple[MeasuredKernel, ...]"]
OUTSIDE_PROFILERS: Registry[OutsideProfiler] = Registry(
    "profiler of another vendor",
    {
        "nsys": "llm_perf_opt.measurements.timed.nsight:run_nsys",
        "ncu": "llm_perf_opt.measurements.timed.nsight:run_ncu",
    },
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
SOURCES: Registry[type[Source]] = Registry(
    "source of figures",
    {
        "torch-counter": "llm_perf_opt.costs.sources.torch_counter:TorchCounter",
        "fvcore": "llm_perf_opt.costs.sources.fvcore_counter:FvcoreCounter",
        "byte-counter": "llm_perf_opt.costs.sources.byte_counter:ByteCounter",
        "closed-form": "llm_perf_opt.costs.sources.closed_form:ClosedForm",
        "exported": "llm_perf_opt.exports.export_source:ExportSource",
        "vllm-estimate": "llm_perf_opt.costs.sources.vllm_estimate:VllmEstimate",
    },
)
# The same for closed forms: (the folder) -> what they are for its configuration.
FOLDER_FORMS: Registry[Callable[[Path], KnowsClosedForms]] = Registry(
    "model type with closed forms", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.closed_forms:ReleasedForms"}
)
# The same for the ranks that differ when such a model is spread.
FOLDER_RANKS: Registry[Callable[[ParallelPlan, Workload], tuple[int, ...]]] = Registry(
    "model type with kinds of rank of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.ranks:kinds_of_rank"}
)
CALIBRATORS: Registry[Calibrator] = Registry(
    "calibrator", {"torch": "llm_perf_opt.measurements.calibrate.calibrate:calibrate"}
)
# The same for the pieces of such a model that are worth a static graph.
FOLDER_PARTS: Registry[Callable[[], tuple[Part, ...]]] = Registry(
    "model type with parts of its own", {"DeepseekOCR": "llm_perf_opt.models.deepseek_ocr.parts:released_parts"}
)
EXPORT_LABS: Registry[type[ExportLab]] = Registry("export lab", {"torch": "llm_perf_opt.exports.torch_lab:TorchLab"})
REPORTERS: Registry[type[Reporter]] = Registry(
    "report format",
    {
        "text": "llm_perf_opt.formats.text_format:TextReport",
        "json": "llm_perf_opt.formats.json_format:JsonReport",
        "markdown": "llm_perf_opt.formats.markdown_format:MarkdownReport",
        "csv": "llm_perf_opt.formats.csv_format:CsvReport",
        "html": "llm_perf_opt.formats.html_format:HtmlReport",
    },
)
DRAWINGS: Registry[type[Drawing]] = Registry(
    "drawing",
    {
        "text": "llm_perf_opt.formats.text_format:TextDrawing",
        "json": "llm_perf_opt.formats.json_format:JsonDrawing",
        "markdown": "llm_perf_opt.formats.markdown_format:MarkdownDrawing",
        "mermaid": "llm_perf_opt.formats.mermaid_format:MermaidDrawing",
        "dot": "llm_perf_opt.formats.dot_format:DotDrawing",
        "svg": "llm_perf_opt.formats.svg_format:SvgDrawing",
        "png": "llm_perf_opt.formats.svg_format:PngDrawing",
        "html": "llm_perf_opt.formats.html_format:HtmlDrawing",
        "model-explorer": "llm_perf_opt.formats.model_explorer_format:ModelExplorerDrawing",
        "model-explorer-data": "llm_perf_opt.formats.model_explorer_format:ModelExplorerDataDrawing",
        "speedscope": "llm_perf_opt.formats.flame_graph_format:SpeedscopeDrawing",
        "collapsed": "llm_perf_opt.formats.flame_graph_format:CollapsedDrawing",
    },
)


def make_workload(model: str | ModelAdapter | TakesOptions, **given: object) -> Workload:
    """The workload of a model (a registered name, a folder, an adapter) of values as a person gives them.

    A field that the model does not declare is refused.
    """
    return workload_type(model).make(**given)


def workload_type(model: str | ModelAdapter | TakesOptions) -> type[Workload]:
    """The record of the options that a model takes; by name it loads no torch."""
    from llm_perf_opt.core.protocols import TakesOptions
    from llm_perf_opt.core.workload import Workload

    if not isinstance(model, str):
        return model.workload_type if isinstance(model, TakesOptions) else Workload
    if model in MODELS.names():
        return _declared_in(MODELS.package(model))
    model_type = folder_model_type(Path(model))
    if model_type in FOLDER_INPUTS.names():
        return _declared_in(FOLDER_INPUTS.package(model_type))
    return _declared_in(FOLDERS.package("huggingface"))


def workload_options() -> dict[str, tuple[Option, tuple[str, ...]]]:
    """Every option of every model by name, and the models that take it; none is named where all do."""
    from llm_perf_opt.core.workload import Workload

    named = {name: _declared_in(MODELS.package(name)) for name in MODELS.names()}
    folders = {
        record.taken_by[:1].lower() + record.taken_by[1:]: record
        for record in map(_declared_in, map(FOLDERS.package, FOLDERS.names()))
    }
    common = Workload.options()
    of_models: dict[str, tuple[Option, tuple[str, ...]]] = {}
    for taker, record in (*named.items(), *folders.items()):
        for name, declared in record.options().items():
            if name not in common:
                first, takers = of_models.get(name, (declared, ()))
                of_models[name] = first, (*takers, taker)
    return {**of_models, **{name: (declared, ()) for name, declared in common.items()}}


def _declared_in(package: str) -> type[Workload]:
    """`WORKLOAD` in the file `options.py` of a model's folder; the common fields where there is none."""
    from llm_perf_opt.core.workload import Workload

    name = f"{package}.options"
    if name not in sys.modules and (not _is_there(package) or importlib.util.find_spec(name) is None):
        return Workload
    return cast("type[Workload]", importlib.import_module(name).WORKLOAD)


def _is_there(package: str) -> bool:
    """Whether the package and those around it can be imported."""
    outer = package.rpartition(".")[0]
    return bool(package) and (not outer or _is_there(outer)) and importlib.util.find_spec(package) is not None


def folder_model_type(folder: Path) -> str:
    """What the folder's `config.json` says; nothing where it cannot be read, which the adapter reports."""
    from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json

    try:
        stored = read_foreign_json(folder / "config.json", MODEL_FILE)
    except PerfOptError:
        return ""
    return str(stored.get("model_type", "")) if isinstance(stored, dict) else ""
