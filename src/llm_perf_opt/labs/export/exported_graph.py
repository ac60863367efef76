"""The exported graph of a part: its ops in the terms of a trace, priced alike, and its files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.node import Node, map_arg

from llm_perf_opt.core.callgraph import OpKind, TensorMeta
from llm_perf_opt.core.export_outcome import GraphOp
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.weightless.recording import flat_tensors, is_mutating, named_tensors, op_name, plain_arguments
from llm_perf_opt.weightless.spec import dtype_name

# Regions under another grad or autocast mode: their body is part of the graph and runs exactly once.
_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def graph_ops(program: ExportedProgram) -> tuple[GraphOp, ...]:
    """Every op with tensors in it, alike ones counted together, in the order of first appearance.

    Checks of shapes and dtypes have no outputs and are left out: they are no work of the model.
    """
    found: dict[tuple[Any, ...], tuple[OpKind, int]] = {}
    for node in _op_nodes(program.graph_module):
        kind = _kind(node)
        if not kind.outputs and not kind.mutates:
            continue
        key = (kind.name, kind.inputs, kind.outputs, kind.output_aliases, repr(kind.arguments))
        known, count = found.get(key, (kind, 0))
        found[key] = (known, count + 1)
    return tuple(GraphOp(kind=kind, count=count) for kind, count in found.values())


def _op_nodes(module: torch.fx.GraphModule) -> Iterator[Node]:
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            yield node
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            bodies = [getattr(module, str(arg.target)) for arg in node.all_input_nodes if arg.op == "get_attr"]
            if node.target.name() in _REGIONS and len(bodies) == 1:
                yield from _op_nodes(bodies[0])
            else:
                yield node


def _kind(node: Node) -> OpKind:
    args = map_arg(node.args, _value)
    kwargs = map_arg(node.kwargs, _value)
    inputs = named_tensors(node.target, args, kwargs)
    outputs = list(flat_tensors(node.meta.get("val")))
    return OpKind(
        name=op_name(node.target),
        inputs=tuple(_meta(tensor) for _, tensor in inputs),
        outputs=tuple(map(_meta, outputs)),
        arguments=plain_arguments(node.target, args, kwargs),
        input_names=tuple(name for name, _ in inputs),
        output_aliases=_aliases([tensor for _, tensor in inputs], outputs),
        mutates=is_mutating(node.target),
    )


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(shape=tuple(map(int, tensor.shape)), dtype=dtype_name(tensor.dtype), device=tensor.device.type)


def _aliases(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    places: dict[int, int] = {}
    for place, tensor in enumerate(inputs):
        places.setdefault(_memory(tensor), place)
    return tuple(places.get(_memory(tensor), -1) for tensor in outputs)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class PartFiles:
    """Writes into a folder, or nowhere without one; none of the files that it writes itself holds weights."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder = folder
        self._written: list[Path] = []

    @property
    def written(self) -> tuple[Path, ...]:
        """What is there now, in the order of writing."""
        return tuple(self._written)

    def save_program(self, program: ExportedProgram, *, is_alone: bool = True) -> None:
        """The program for `torch.export.load`, its weights on the meta device, and the graph as text.

        Without `is_alone` only the text: a program with weights will stand beside it.
        """
        if self._folder is None:
            return
        if is_alone:
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            self._write(".pt2", buffer.getvalue())
        self._write(".fx.txt", program.graph_module.print_readable(print_output=False).encode())

    def add(self, files: Sequence[Path]) -> None:
        """Files that were written to the folder elsewhere."""
        self._written += files

    def save_onnx(self, content: bytes | None) -> None:
        """The ONNX graph, if there is one."""
        if content is not None:
            self._write(".onnx", content)

    def _write(self, suffix: str, content: bytes) -> None:
        if self._folder is not None:
            file = self._folder / f"{self._name}{suffix}"
            write_whole(file, [content])
            self._written.append(file)
