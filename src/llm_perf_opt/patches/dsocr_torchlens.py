"""Call graphs by hand, for scripts that hook a model themselves; `llm_perf_opt.trace` does all of it in one call.

Modules are chosen as in `core.module_selection`, tensors and constructor parameters are written as in a call-graph
file, and the loops of the model are watched by `models.deepseek_ocr.patches`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.json_reader import read_callgraph
from llm_perf_opt.core.callgraph.json_writer import to_json_dict
from llm_perf_opt.core.callgraph.runtime_log import (
    events_of_facts,
    read_runtime_log,
    runtime_facts,
    write_runtime_events,
)
from llm_perf_opt.core.module_selection import is_heavy
from llm_perf_opt.harness.module_calls import watch_modules
from llm_perf_opt.harness.trace_header import constructor_params, constructor_params_below
from llm_perf_opt.harness.tracers.torchlens_tracer import log_forward_pass
from llm_perf_opt.models.deepseek_ocr.patches import VISION_ENCODER, patched

__all__ = [
    "GPU_HEAVY_CLASSES",
    "LOG",
    "DsocrCallgraph",
    "apply_runtime_patches",
    "attach_tensor_io_hooks",
    "collect_constructor_params",
    "is_gpu_heavy",
    "load_callgraph_json",
    "load_runtime_metadata",
    "log_forward_pass",
    "write_runtime_log",
]

GPU_HEAVY_CLASSES: tuple[type[nn.Module], ...] = tuple(
    kind
    for kind in vars(nn).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and is_heavy(kind.__name__)
)
"""The classes of torch that hold weights or run matmuls. Classes of a model's own are known by `is_gpu_heavy`."""


def is_gpu_heavy(module: nn.Module) -> bool:
    """Whether the module holds weights or runs matmuls, by its class or its constructor parameters."""
    return isinstance(module, GPU_HEAVY_CLASSES) or is_heavy(type(module).__name__, constructor_params(module))


@dataclass(slots=True, kw_only=True)
class DsocrCallgraph:
    """The keys of a call-graph file that a script fills in itself; shapes are lists, dtypes text."""

    call_counts: dict[str, int] = field(default_factory=dict)
    edges: dict[str, int] = field(default_factory=dict)  # "parent->child"
    op_call_counts: dict[str, int] = field(default_factory=dict)
    module_children: dict[str, list[str]] = field(default_factory=dict)
    module_types: dict[str, str] = field(default_factory=dict)
    constructor_params: dict[str, dict[str, Any]] = field(default_factory=dict)
    input_metadata: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    output_metadata: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: CallGraph) -> DsocrCallgraph:
        """The same keys of a traced phase."""
        document = to_json_dict(graph)
        return cls(**{name: document[name] for name in cls.__slots__})

    def to_dict(self) -> dict[str, Any]:
        """For `json.dump`; `llm_perf_opt.load` reads the file."""
        return asdict(self)


def load_callgraph_json(path: str | Path) -> DsocrCallgraph:
    """The keys of a file, also of one that an earlier script wrote."""
    return DsocrCallgraph.of(read_callgraph(Path(path)))


def collect_constructor_params(root: nn.Module) -> dict[str, dict[str, Any]]:
    """Module path -> what fixes its tensor shapes; an expert also has `num_experts` and `top_k` of its layer."""
    return constructor_params_below(root)


class TensorIoHooks:
    """What goes in and comes out of every module, until `remove` is called, once for all or on each handle."""

    def __init__(self, root: nn.Module) -> None:
        self.input_metadata: dict[str, list[dict[str, Any]]] = {}
        self.output_metadata: dict[str, list[dict[str, Any]]] = {}
        self._open: list[str] = []
        self._stack = ExitStack()
        self._stack.enter_context(watch_modules(root, self._enter, self._leave))

    def remove(self) -> None:
        """Take everything off the modules again; a second call does nothing."""
        self._stack.close()

    def __iter__(self) -> Iterator[TensorIoHooks]:
        yield self

    def _enter(self, path: str, tensors: Any) -> None:
        self._open.append(path)
        _observe(self.input_metadata.setdefault(path, []), tensors)

    def _leave(self, tensors: Any) -> None:
        path = self._open.pop()
        _observe(self.output_metadata.setdefault(path, []), tensors)


def _observe(seen: list[dict[str, Any]], tensors: Any) -> None:
    """Count one more call with these tensors."""
    rows = [
        {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "device": tensor.device.type}
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    ]
    known = next((entry for entry in seen if entry["tensors"] == rows), None)
    if known is None:
        seen.append({"tensors": rows, "calls": 1})
    else:
        known["calls"] += 1


def attach_tensor_io_hooks(root: nn.Module) -> TensorIoHooks:
    """Observe the tensors of every call below `root`: handles with `remove()`, which hold what was seen."""
    return TensorIoHooks(root)


class RuntimeLog:
    """What the loops of the watched model did so far."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._where: dict[str, Any] = {}
        self._layers: str | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """Events of the kinds `vision_inputs`, `llm_stack` and `decode_steps`."""
        return events_of_facts(self._facts, self._where, self._layers)

    def watch(self, model: nn.Module) -> ExitStack:
        """Begin anew with this model, until the stack is closed."""
        self._facts = {}
        paths = dict(model.named_modules())
        vision = (path for path, module in paths.items() if type(module).__name__ == VISION_ENCODER)
        self._where = {"module": next(vision, "")}
        self._layers = next(
            (path for path in paths if path.rpartition(".")[2] == "layers" and path.count(".") < 2), None
        )
        watching = ExitStack()
        watching.enter_context(patched(model, self._facts.__setitem__))
        return watching


LOG = RuntimeLog()


class RuntimePatches:
    """Patches of the live classes, until `remove` is called."""

    def __init__(self, watching: ExitStack) -> None:
        self._watching = watching

    def remove(self) -> None:
        """Put every class back as it was."""
        self._watching.close()


def apply_runtime_patches(model: nn.Module) -> RuntimePatches:
    """Watch how many images, crops, layers and steps the forwards of `model` run, from now on, in `LOG`."""
    return RuntimePatches(LOG.watch(model))


def write_runtime_log(path: str | Path) -> Path:
    """Write what `LOG` holds, replacing the file."""
    return write_runtime_events(LOG.events, path, overwrite=True)


def load_runtime_metadata(path: str | Path) -> Mapping[str, Any]:
    """The facts of such a file: images, crops of each, their grids, depth of the decoder, decode steps."""
    return runtime_facts(read_runtime_log(path))
