"""From dispatched ops to the record: one row per op, one `OpKind` per distinct op.

The engine calls `hit` with a ready kind on its fast path, and `observe` where it has none (real ops, oracle answers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from llm_perf_opt.core.callgraph import CallGraphBuilder, OpKind, TensorMeta
from llm_perf_opt.weightless.ghost import Ghost
from llm_perf_opt.weightless.spec import Spec, dtype_name, spec_of_tensor
from llm_perf_opt.weightless.storage import RealStorages, Storage

_JSON_SCALARS = (bool, int, float, str, type(None))


class OpRecorder:
    """Writes ops into a call-graph builder; `device` is the one that model code sees."""

    def __init__(self, builder: CallGraphBuilder, device: str, real_storages: RealStorages) -> None:
        self.builder = builder
        self._device = device
        self._real = real_storages
        self._metas: dict[Spec, TensorMeta] = {}
        self._kinds: dict[tuple[Any, ...], OpKind] = {}
        self._real_allocated: set[int] = set()

    def meta(self, tensor: torch.Tensor) -> TensorMeta:
        """The interned meta of a tensor."""
        spec = tensor.spec if type(tensor) is Ghost else spec_of_tensor(tensor)
        meta = self._metas.get(spec)
        if meta is None:
            meta = self._metas[spec] = self.builder.meta(tuple(spec.shape), dtype_name(spec.dtype), self._device)
        return meta

    def token(self, tensor: torch.Tensor) -> int:
        """The number of the memory behind a tensor."""
        return tensor.memory.number if type(tensor) is Ghost else self._real.token(tensor).number

    def hit(self, kind: OpKind, tensors: Sequence[torch.Tensor], output: Any, scratch: int = 0) -> None:
        """One op of a known kind, which holds `scratch` bytes next to its result while it runs."""
        token = self.token
        if type(output) is Ghost:
            number = output.memory.number
            if kind.output_aliases[0] < 0:
                self.builder.allocate(number, output.spec.bytes)
            outputs = [number]
        else:
            outputs = self._allocate_outputs(kind, list(flat_tensors(output)))
        held = Storage() if scratch else None  # it dies when this method returns, after the op
        if held is not None:
            self.builder.allocate(held.number, scratch, "scratch")
        self.builder.op(kind, [token(tensor) for tensor in tensors], outputs)

    def _allocate_outputs(self, kind: OpKind, outputs: Sequence[torch.Tensor]) -> list[int]:
        numbers = []
        for tensor, alias in zip(outputs, kind.output_aliases, strict=True):
            number = self.token(tensor)
            if alias < 0 and number not in self._real_allocated:
                # A real kernel may return memory that is older than its arguments; a ghost is always new.
                if type(tensor) is not Ghost:
                    self._real_allocated.add(number)
                self.builder.allocate(number, bytes_of(tensor))
            numbers.append(number)
        return numbers

    def observe(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        output: Any,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """One op of a kind that is not known yet; `facts`, which values said of its cost, join its arguments."""
        inputs = named_tensors(func, args, kwargs)
        outputs = list(flat_tensors(output))
        tensors = [tensor for _, tensor in inputs]
        aliases = self._aliases(tensors, outputs)
        key = (
            id(func),
            tuple(map(self.meta, tensors)),
            tuple(map(self.meta, outputs)),
            aliases,
            repr(plain_arguments(func, args, kwargs)),
            tuple(facts.items()) if facts else (),
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self.kind(func, args, kwargs, outputs, aliases)
            kind = self._kinds[key] = replace(kind, arguments={**kind.arguments, **facts}) if facts else kind
        self.builder.op(kind, [self.token(tensor) for tensor in tensors], self._allocate_outputs(kind, outputs))

    def observe_collective(
        self, func: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], group: Mapping[str, Any]
    ) -> None:
        """A collective that does not take its group as a plain argument: `group` says its size and ranks."""
        aliases = self._aliases(inputs, outputs)
        key = (id(func), tuple(map(self.meta, inputs)), tuple(map(self.meta, outputs)), aliases, tuple(group.items()))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = OpKind(
                name=str(func),
                inputs=tuple(map(self.meta, inputs)),
                outputs=tuple(map(self.meta, outputs)),
                arguments=dict(group),
                input_names=("tensor",) * len(inputs),
                output_aliases=aliases,
                mutates=bool(outputs),
            )
        self.builder.op(kind, [self.token(tensor) for tensor in inputs], self._allocate_outputs(kind, outputs))

    def _aliases(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        position: dict[int, int] = {}
        for index, tensor in enumerate(inputs):
            position.setdefault(self.token(tensor), index)
        return tuple(position.get(self.token(tensor), -1) for tensor in outputs)

    def kind(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Sequence[torch.Tensor],
        aliases: tuple[int, ...] | None = None,
        parts: tuple[OpKind, ...] = (),
    ) -> OpKind:
        """Describe an op from one occurrence of it."""
        inputs = named_tensors(func, args, kwargs)
        if aliases is None:
            aliases = self._aliases([tensor for _, tensor in inputs], outputs)
        return OpKind(
            name=op_name(func),
            inputs=tuple(self.meta(tensor) for _, tensor in inputs),
            outputs=tuple(map(self.meta, outputs)),
            arguments=plain_arguments(func, args, kwargs),
            input_names=tuple(name for name, _ in inputs),
            output_aliases=aliases,
            mutates=is_mutating(func),
            parts=parts,
        )


def op_name(func: Any) -> str:
    """`aten.linear.default`; a higher-order op has only its own name."""
    return str(func) if isinstance(func, torch._ops.OpOverload) else f"higher_order.{func.name()}"


def is_mutating(func: Any) -> bool:
    """Whether the op writes into one of its inputs."""
    return isinstance(func, torch._ops.OpOverload) and bool(func._schema.is_mutable)


def is_view(func: Any) -> bool:
    """Whether the schema promises that the result shares memory with an argument and changes nothing."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    schema = func._schema
    return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)


def is_pointwise(func: Any) -> bool:
    """Whether torch itself tags the op as element-wise."""
    return isinstance(func, torch._ops.OpOverload) and torch.Tag.pointwise in func.tags


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the memory behind a tensor."""
    return tensor.spec.bytes if type(tensor) is Ghost else tensor.untyped_storage().nbytes()


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in an op's result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_tensors(item)


def _argument_name(func: Any, index: int) -> str:
    if isinstance(func, torch._ops.OpOverload):
        arguments = func._schema.arguments
        if index < len(arguments):
            return str(arguments[index].name)
    return f"argument_{index}"


def named_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Every tensor argument in order, with the schema's name for it."""
    named = [(_argument_name(func, i), tensor) for i, value in enumerate(args) for tensor in flat_tensors(value)]
    named += [(name, tensor) for name, value in kwargs.items() for tensor in flat_tensors(value)]
    return named


def plain_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are no tensors, JSON-safe. Views and element-wise ops have none that a cost depends on."""
    if is_view(func) or is_pointwise(func):
        return {}
    plain: dict[str, Any] = {}
    for name, value in [(_argument_name(func, i), v) for i, v in enumerate(args)] + list(kwargs.items()):
        if value is None or isinstance(value, torch.Tensor):
            continue
        if isinstance(value, float) and not math.isfinite(value):  # JSON has no infinity, and masks are filled with it
            plain[name] = str(value)
        elif isinstance(value, _JSON_SCALARS):
            plain[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, _JSON_SCALARS) for item in value):
            plain[name] = list(value)
        elif isinstance(value, torch.dtype):
            plain[name] = dtype_name(value)
    return plain
