"""What every tracer records besides events: the module tree, the facts of the run, the header."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, Json, TensorMeta
from llm_perf_opt.core.module_selection import layer_experts
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.environment import library_versions
from llm_perf_opt.harness.module_calls import class_name
from llm_perf_opt.harness.twins import tensors_in

# Which field of a configuration limits the attention of a layer of this type; without types all layers are alike.
_SPAN_FIELDS = {
    "": "sliding_window",
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}

_NO_SIZES = frozenset({"training", "name_or_path"})  # the latter is where transformers read the configuration

Describe = Callable[[torch.Tensor], tuple[TensorMeta, int, int]]  # meta, storage token, bytes


def declare_modules(builder: CallGraphBuilder, root: torch.nn.Module, describe: Describe) -> None:
    """Declare every module and weight below `root`; a shared module keeps its first path under every parent."""
    path_of = {id(module): path for path, module in root.named_modules()}
    params = constructor_params_below(root)
    for path, module in root.named_modules():
        children = tuple(path_of[id(child)] for child in module._modules.values() if child is not None)
        builder.module(path, class_name(module), children, params[path])
        for name, tensor, is_buffer in _own_tensors(module):
            meta, token, size_bytes = describe(tensor)
            full_name = f"{path}.{name}" if path else name
            builder.parameter(full_name, meta, token, size_bytes, is_buffer=is_buffer)


def declare_inputs(builder: CallGraphBuilder, given: object, describe: Describe) -> None:
    """Declare the memory behind every tensor that the phase begins with; after the weights, which stay weights."""
    for tensor in tensors_in(given):
        _, token, size_bytes = describe(tensor)
        builder.given(token, size_bytes)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    for table, is_buffer in ((module._parameters, False), (module._buffers, True)):
        for name, tensor in table.items():
            if tensor is not None:
                yield name, tensor, is_buffer


def constructor_params_below(root: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Module path -> constructor parameters; an expert also has `num_experts` and `top_k` of the block around it."""
    params = {path: constructor_params(module) for path, module in root.named_modules()}
    for path, block in root.named_modules():
        inside = {name: f"{path}.{name}" if path else name for name in block._modules}
        numbers = layer_experts(params.get(part, {}) for part in (path, *inside.values()))
        for name, siblings in block.named_children():
            if numbers is not None and isinstance(siblings, torch.nn.ModuleList) and len(siblings) == numbers[0]:
                for expert in (params.get(f"{inside[name]}.{index}", {}) for index in range(numbers[0])):
                    expert.update({"num_experts": numbers[0], "top_k": numbers[1]} | expert)
    return params


def constructor_params(module: torch.nn.Module) -> dict[str, Any]:
    """Public plain attributes of a module: numbers, names and short tuples that its constructor kept.

    Read by reflection, with no list of known names, so that a new architecture needs no change here.
    """
    params: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _NO_SIZES:
            continue
        plain = _plain(value)
        if plain is not None:
            params[name] = plain
    return {**_layer_facts(module), **params}


def _layer_facts(module: torch.nn.Module) -> dict[str, Any]:
    """What a configuration kept in the module says of its layer: which keys its attention may look at.

    Many models leave the window or chunk of a layer in the configuration and read it when a mask is made.
    """
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    if config is None or type(index) is not int:
        return {}
    types = getattr(config, "layer_types", None)
    layer_type = str(types[index]) if isinstance(types, (list, tuple)) and 0 <= index < len(types) else ""
    facts: dict[str, Any] = {"layer_type": layer_type} if layer_type else {}
    name = _SPAN_FIELDS.get(layer_type)
    span = None if name is None else getattr(config, name, None)
    return {**facts, name: span} if name is not None and type(span) is int and span > 0 else facts


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)) and value and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    return None


@dataclass(slots=True)
class RuntimeFacts:
    """Facts of one run by name. Emitting a name again replaces it, so that a counter may be emitted at every step."""

    claimed: dict[str, Json]
    observed: dict[str, Json] = field(default_factory=dict)

    def emit(self, name: str, fact: Json) -> None:
        """What an observer calls."""
        self.observed[name] = fact

    def runtime(self) -> dict[str, Json]:
        """What was seen wins over what was claimed; `observed` names the facts that are more than a claim."""
        seen = {"observed": sorted(self.observed)} if self.observed else {}
        return {**self.claimed, **self.observed, **seen}

    def notes(self) -> list[str]:
        """One sentence per fact that the adapter claimed and the run contradicted."""
        return [
            f"runtime.{name}: {self.claimed[name]!r} was expected, {fact!r} was observed"
            for name, fact in self.observed.items()
            if name in self.claimed and self.claimed[name] != fact
        ]


def autocast_of(target: Target, model: torch.nn.Module) -> AbstractContextManager[object]:
    """The `torch.autocast` that the workload asks for, on the device of the model; nothing where it asks for none."""
    name = target.workload.get("autocast")
    if name is None:
        return nullcontext()
    first = next((tensor for tensor in (*model.parameters(), *model.buffers())), None)
    return torch.autocast("cpu" if first is None else first.device.type, dtype=getattr(torch, name))


@contextmanager
def observing(target: Target, model: Any) -> Iterator[RuntimeFacts]:
    """Around `target.invoke(model)`, in every tracer: the facts, complete when the block ends.

    The observer may replace methods of the model's classes, so enter this before anything wraps `forward` per
    instance, and leave it after.
    """
    facts = RuntimeFacts(dict(target.runtime))
    with ExitStack() as stack:
        if target.observe is not None:
            stack.enter_context(target.observe(model, facts.emit))
        stack.enter_context(autocast_of(target, model))
        yield facts


def finished_graph(
    builder: CallGraphBuilder,
    target: Target,
    facts: RuntimeFacts,
    tracer: str,
    settings: Mapping[str, Json],
    *,
    notes: Sequence[str] = (),
    stopped_in: str | None = None,
) -> CallGraph:
    """The call graph; `settings` are the tracer's own part of the workload, such as routing, weights and device."""
    return builder.finish(
        model=target.model,
        phase=target.phase,
        tracer=tracer,
        workload={**target.workload, **settings},
        stages=[(stage.name, stage.paths) for stage in target.stages],
        runtime=facts.runtime(),
        library_versions=library_versions(),
        notes=(*target.notes, *facts.notes(), *_notes_of_modes(), *notes),
        stopped_in=stopped_in,
    )


def _notes_of_modes() -> list[str]:
    """A dispatch mode of the caller, such as FlopCounterMode, sees each op first and may run others in its place."""
    names = ", ".join(dict.fromkeys(type(mode).__name__.lstrip("_") for mode in _get_current_dispatch_mode_stack()))
    note = f"{names} was on around the trace and may have taken ops apart: they are listed as it ran them"
    return [note] if names else []
