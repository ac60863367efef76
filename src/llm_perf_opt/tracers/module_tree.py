"""The static side of a trace: modules, their classes, children and weights, and what fixed their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from llm_perf_opt.callgraph import CallGraphBuilder, TensorMeta

Describe = Callable[[torch.Tensor], tuple[TensorMeta, int, int]]  # meta, storage token, bytes


def declare_modules(builder: CallGraphBuilder, root: torch.nn.Module, describe: Describe) -> None:
    """Declare every module and weight below `root`; a shared module keeps its first path under every parent."""
    path_of = {id(module): path for path, module in root.named_modules()}
    for path, module in root.named_modules():
        children = tuple(path_of[id(child)] for child in module._modules.values() if child is not None)
        builder.module(path, type(module).__name__, children, constructor_params(module))
        for name, tensor, is_buffer in _own_tensors(module):
            meta, token, size_bytes = describe(tensor)
            full_name = f"{path}.{name}" if path else name
            builder.parameter(full_name, meta, token, size_bytes, is_buffer=is_buffer)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    for table, is_buffer in ((module._parameters, False), (module._buffers, True)):
        for name, tensor in table.items():
            if tensor is not None:
                yield name, tensor, is_buffer


def constructor_params(module: torch.nn.Module) -> dict[str, Any]:
    """Public plain attributes of a module: numbers, names and short tuples that its constructor kept.

    Read by reflection, with no list of known names, so that a new architecture needs no change here.
    """
    params: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        plain = _plain(value)
        if plain is not None:
            params[name] = plain
    return params


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)) and value and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    return None
