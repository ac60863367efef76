"""The torchlens tracer: a real run as TorchLens sees it, read from its own event stream. The only file that knows it.

TorchLens replaces a thousand functions of torch while it looks; they are put back on every way out. No activation is
kept: shapes and dtypes are all that is asked for.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, TensorMeta
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.interrupts import Interruptible, puts_back
from llm_perf_opt.core.output_files import cannot_write, scratch_folder, write_result
from llm_perf_opt.core.plain_text import error_line, first_line, visible
from llm_perf_opt.core.protocols import ModulePicture, PartialTrace, Sight, require_modules
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.module_calls import watch_forwards
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.trace_header import declare_inputs, declare_modules, finished_graph, observing
from llm_perf_opt.harness.twins import RealTensors
from llm_perf_opt.weightless import Engine

WORKS_FROM, WORKS_BELOW = (2, 35), (2, 37)
_ROOT = "target"  # the name of the model inside the module that TorchLens is given
_NOT_OPS = frozenset({"input", "output", "buffer", "internalsource", "identity"})  # marks TorchLens makes for itself
_NOTE = "TorchLens lists a tensor that a call takes twice once; its ops are torch functions, and carry no cost"


class TorchLensTracer:
    """Runs targets with real tensors under TorchLens. It sees modules and which ops ran in them, not what they cost."""

    sees = frozenset({Sight.MODULES, Sight.OPS})
    takes = frozenset({"weights", "device"})

    def __init__(self, *, weights: str = "random", device: str = "cpu") -> None:
        self._torchlens = _import_torchlens()
        self._models = RealModels(weights=weights, device=device)

    def trace(self, target: Target) -> CallGraph:
        """Run one phase for real and record every module call with its tensors, and how many ops ran in it."""
        model = self._models.model_of(target)
        builder = CallGraphBuilder()
        tensors = RealTensors(builder)
        declare_modules(builder, model, tensors.described)
        replay = _Replay(builder)
        settings = self._models.settings
        with self._models.inputs_moved(model):
            given = target.start(model)
        declare_inputs(builder, given, tensors.described)
        with observing(target, model) as facts, self._models.inputs_moved(model), _torch_restored(model), silenced():
            try:
                phase = _Invocation(model, lambda module: target.run(module, given))
                seen = self._torchlens.trace(phase, (), capture=self._options())
            except Exception as error:
                _without_advice(error)
                partial = getattr(error, "partial_log", None)
                replay.follow(() if partial is None else _events(partial.trace))
                graph = finished_graph(
                    builder, target, facts, "torchlens", settings, notes=(_NOTE,), stopped_in=replay.innermost
                )
                raise PartialTrace(graph, error) from error
        replay.follow(_events(seen))
        return finished_graph(builder, target, facts, "torchlens", settings, notes=(_NOTE,))

    def require_drawable(self, target: Target, pictures: Sequence[ModulePicture]) -> None:
        """Graphviz is there, and the model, built without weights, has the modules."""
        _require_graphviz()
        engine = Engine(device="cpu")
        with engine:
            model = engine.adopt(target.build())
        require_modules(pictures, {path for path, _ in model.named_modules()})

    def draw(self, target: Target, picture: ModulePicture) -> None:
        """TorchLens's own Graphviz picture of one module: what runs in its first call, with that call's arguments."""
        model = self._models.model_of(target)
        require_modules([picture], {path for path, _ in model.named_modules()})
        module = model.get_submodule(picture.module)
        with self._models.inputs_moved(model), silenced():
            args, kwargs = _first_call(module, lambda: target.run(model), picture.module)
            with torch.no_grad(), _torch_restored(module):
                options = self._options(recurrence_detection=picture.is_rolled)
                seen = self._torchlens.trace(module, args, kwargs, capture=options)
        write_result(picture.file, _rendered(seen, picture))

    def _options(self, *, recurrence_detection: bool = False) -> Any:
        return self._torchlens.options.CaptureOptions(
            layers_to_save=None,
            save_raw_input=False,
            save_raw_output=False,
            recurrence_detection=recurrence_detection,  # which calls are the same op again: for rolled pictures
            compute_input_output_distances=False,
            keep_orphans=True,
            output_transform=_unchanged,  # with a transform TorchLens never runs the forward a second time
            random_seed=0,
            unwrap_when_done=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLayer:
    """One op of a logged forward; `containing_modules_origin_nested` has `path:pass` from the outermost module in."""

    layer_label: str
    layer_type: str
    containing_modules_origin_nested: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPassLog:
    """What `log_forward_pass` of TorchLens up to 1 gave, as far as call graphs are made from it."""

    module_num_passes: dict[str, int]
    layers: dict[str, LoggedLayer]

    @property
    def layer_labels(self) -> list[str]:
        """Every op, in order."""
        return list(self.layers)

    def __getitem__(self, label: str) -> LoggedLayer:
        return self.layers[label]


def log_forward_pass(
    model: torch.nn.Module,
    input_args: Sequence[Any],
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    layers_to_save: str | None = "none",
    vis_opt: str = "none",
    vis_outpath: str | Path = "graph.gv",
    vis_fileformat: str = "pdf",
) -> ForwardPassLog:
    """One forward under the installed TorchLens, which has no function of this name; no activation is kept."""
    if layers_to_save not in ("none", None) or vis_opt not in ("none", "rolled", "unrolled"):
        raise UsageError(
            f"layers_to_save={layers_to_save!r}, vis_opt={vis_opt!r} is not supported.",
            why="this tracer logs shapes and calls but saves no activations; its pictures are rolled or unrolled",
            fix='use layers_to_save="none" and vis_opt="none", "rolled" or "unrolled"',
        )
    if vis_opt != "none":
        _require_graphviz()
    tracer = TorchLensTracer()
    options = tracer._options(recurrence_detection=vis_opt == "rolled")
    with torch.no_grad(), _torch_restored(model), silenced():
        seen = tracer._torchlens.trace(model, tuple(input_args), dict(input_kwargs or {}), capture=options)
    if vis_opt != "none":
        picture = ModulePicture(module="", file=Path(f"{vis_outpath}.{vis_fileformat}"), is_rolled=vis_opt == "rolled")
        write_result(picture.file, _rendered(seen, picture))
    entered = (event.address for event in _events(seen) if type(event).__name__ == "ModuleEnterEvent")
    layers = (
        LoggedLayer(
            layer_label=op.layer_label, layer_type=op.layer_type, containing_modules_origin_nested=list(op.modules)
        )
        for op in seen.ops
    )
    return ForwardPassLog(
        module_num_passes=dict(Counter(entered)), layers={layer.layer_label: layer for layer in layers}
    )


def _require_graphviz() -> None:
    if shutil.which("dot") is None:
        raise PerfOptError(
            "TorchLens cannot draw: Graphviz is not installed.",
            why="its pictures are laid out by the program dot, which is not on the PATH",
            fix="install it: apt install graphviz, brew install graphviz, or conda install graphviz",
        )


def _rendered(seen: Any, picture: ModulePicture) -> bytes:
    """The picture that Graphviz makes of what TorchLens saw."""
    with scratch_folder() as folder, warnings.catch_warnings(), Interruptible():
        warnings.simplefilter("ignore")
        drawn = folder / f"picture{picture.file.suffix}"
        try:
            seen.draw(
                vis_mode="rolled" if picture.is_rolled else "unrolled",
                vis_outpath=str(drawn.with_suffix("")),
                vis_fileformat=drawn.suffix[1:],
                vis_save_only=True,
            )
            raw = drawn.read_bytes()
        except OSError as error:
            raise cannot_write(drawn, error) from error
        except (RuntimeError, ValueError) as error:
            raise _not_drawn(picture, error) from error
    if drawn.suffix != ".svg":
        return raw
    # Graphviz leaves characters in it that turn the direction of a line around.
    return "\n".join(map(visible, raw.decode("utf-8", "backslashreplace").split("\n"))).encode()


def _not_drawn(picture: ModulePicture, error: Exception) -> PerfOptError:
    """Graphviz takes no control characters, which names of modules may hold, and it may run out of time or memory."""
    cause = error.__cause__
    said = cause.stderr if isinstance(cause, subprocess.CalledProcessError) and cause.stderr else None
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return PerfOptError(
        f"TorchLens could not draw {picture.module or 'the model'}.",
        why=error_line(error).partition(" DOT source")[0] if text is None else f"Graphviz: {first_line(text, 300)}",
        fix="draw another module, or the folded picture, which needs no Graphviz: llm-perf-opt graph",
    )


def _unchanged(output: object) -> object:
    return output


class _SeenEnough(Exception):
    """Ends a run as soon as the call that was waited for has begun."""


def _first_call(
    module: torch.nn.Module, run: Callable[[], object], path: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `module` is called with first, by a direct call of its `forward` too; the run goes no further."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def begin(below: str, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not below:
            calls.append((args, kwargs))
            raise _SeenEnough

    with watch_forwards(module, begin, lambda _, __: None):
        try:
            run()
        except _SeenEnough:
            return calls[0]
    raise UsageError(
        f"The module {path!r} was not called.",
        why="this phase does not reach it",
        fix="choose a module that this phase calls",
    )


class _Invocation(torch.nn.Module):
    """A phase as one forward, since TorchLens traces forwards and a phase may be several."""

    def __init__(self, model: torch.nn.Module, invoke: Callable[[Any], object]) -> None:
        super().__init__()
        self.target = model
        self._invoke = invoke

    def forward(self, *_: object) -> object:
        return self._invoke(self.target)


def _without_advice(error: Exception) -> None:
    """Drop what TorchLens adds to the model's own message: the partial record is ours by now."""
    error.__notes__ = [note for note in getattr(error, "__notes__", ()) if not note.startswith("TorchLens")]


class _Replay:
    """TorchLens events, in order, become calls and op counts of a builder."""

    def __init__(self, builder: CallGraphBuilder) -> None:
        self._builder = builder
        self._tensors: dict[str, tuple[TensorMeta, int]] = {}
        self._open: list[str] = []  # addresses; the exits of a module that calls itself all carry its last label
        self._counted: set[int] = set()  # an op with several results is several events

    @property
    def innermost(self) -> str:
        """The module that was running when the events ended."""
        return self._builder.current_path or ""

    def follow(self, events: Sequence[Any]) -> None:
        """Take the events in the order in which they happened."""
        for event in events:
            kind = type(event).__name__
            if kind == "ModuleEnterEvent":
                self._enter(event)
            elif kind == "ModuleExitEvent":
                self._leave(event)
            elif hasattr(event, "core"):
                self._op(event)

    def _op(self, event: Any) -> None:
        result = event.core.output.tensor
        dtype, device = result.dtype.removeprefix("torch."), result.device.partition(":")[0]
        meta = self._builder.meta(tuple(result.shape), dtype, device)
        self._tensors[event.core.label_raw] = (meta, -1 - len(self._tensors))
        if event.core.layer_type in _NOT_OPS or event.core.func_call_id in self._counted:
            return
        self._counted.add(event.core.func_call_id)
        inside = [address for address, _ in event.modules if _is_ours(address)]
        self._builder.named_op(_path(inside[-1]) if inside else None, event.core.layer_type)

    def _enter(self, event: Any) -> None:
        if not _is_ours(event.address):
            return
        self._close_down_to(sum(_is_ours(label.rpartition(":")[0]) for label in event.call_stack))
        self._open.append(event.address)
        self._builder.enter(_path(event.address), self._pairs(event.input_labels))

    def _leave(self, event: Any) -> None:
        if event.address in self._open:
            while self._open[-1] != event.address:
                self._close_down_to(len(self._open) - 1)
            self._open.pop()
            self._builder.leave(self._pairs(event.output_tensor_labels_raw))

    def _close_down_to(self, depth: int) -> None:
        """Leave calls that ended with an error which the model caught: TorchLens has no exit event for them."""
        while len(self._open) > depth:
            self._open.pop()
            self._builder.leave(())

    def _pairs(self, labels: Sequence[str]) -> list[tuple[TensorMeta, int]]:
        return [self._tensors[label] for label in labels if label in self._tensors]


def _is_ours(address: str) -> bool:
    return address == _ROOT or address.startswith(f"{_ROOT}.")


def _path(address: str) -> str:
    return address[len(_ROOT) + 1 :]


def _events(trace: Any) -> list[Any]:
    return sorted((*trace.op_events, *trace.sibling_events), key=lambda event: event.seq)


@contextmanager
def _torch_restored(model: torch.nn.Module) -> Iterator[None]:
    """Take TorchLens's wrappers off torch also when the capture failed, and keep its advice out of our talk.

    Where it wrapped something inherited, it leaves the original behind as an attribute of the heir; that goes too.
    """
    wrappers = importlib.import_module("torchlens.backends.torch.wrappers")
    heirs = {torch.Tensor, *(kind for module in model.modules() for kind in type(module).__mro__)}
    own_names = {heir: set(vars(heir)) for heir in heirs}
    functions = vars(importlib.import_module("torch._VF"))
    known_functions = set(functions)
    with ExitStack() as undo:
        undo.callback(_drop_functions, functions, known_functions)
        undo.callback(_drop_names, own_names)
        undo.callback(wrappers.unwrap_torch)
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


@puts_back
def _drop_names(own_names: Mapping[type, Collection[str]]) -> None:
    """What was added to classes: to tensors in any case, to others where it is the original of an ancestor."""
    for heir, names in own_names.items():
        for name in vars(heir).keys() - names:
            inherited = {id(vars(base).get(name)) for base in heir.__mro__[1:]}
            if heir is torch.Tensor or id(vars(heir)[name]) in inherited:
                delattr(heir, name)


@puts_back
def _drop_functions(functions: dict[str, Any], known: Collection[str]) -> None:
    """They are looked up in torch's own table again when asked for."""
    for name in functions.keys() - known:
        del functions[name]


def _import_torchlens() -> Any:
    """The library, in a version with known events; any other would be read wrongly."""
    wanted = f"torchlens>={_dotted(WORKS_FROM)},<{_dotted(WORKS_BELOW)}"
    try:
        version = metadata.version("torchlens")
    except metadata.PackageNotFoundError as error:
        raise PerfOptError(
            "TorchLens is not installed.",
            why="the torchlens tracer is an optional extra",
            fix="pip install 'llm-perf-opt[torchlens]'",
        ) from error
    release = tuple(int(part) for part in version.split(".")[:2])
    if not WORKS_FROM <= release < WORKS_BELOW:
        raise PerfOptError(
            f"TorchLens {version} is not supported by this tracer.",
            why="the names and the order of its events differ between versions",
            fix=f"pip install '{wanted}'",
        )
    return importlib.import_module("torchlens")


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
