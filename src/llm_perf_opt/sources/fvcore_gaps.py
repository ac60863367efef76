"""Where fvcore's figures part from a count of matrix FLOPs: each difference to the last FLOP, with its cause.

The same trace is read a second time with handles that only look at shapes, so fvcore's own figures stay its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.core.source_figures import BlindSpot, Family, family_of
from llm_perf_opt.harness.tensors import tensors_in
from llm_perf_opt.sources.torch_prices import Shape, cause_of_silence, does_matrix_work, flops_of, may_do_matrix_work

_EINSUM, _MATMUL = "aten::einsum", "aten::matmul"
_ROUNDED = "rounded"  # fvcore gives an einsum in four digits
Handle = Callable[[list[Any], list[Any]], int]


@dataclass(slots=True)
class SeenWork:
    """FLOPs of chosen ops by the shapes in a trace, and how often each ran; None where the shapes do not tell."""

    flops: dict[str, int | None] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def handle(self, operator: str) -> Handle:
        """A handle for fvcore that notes the op down and adds nothing to any figure."""

        def look(inputs: list[Any], outputs: list[Any]) -> int:
            is_einsum = operator == _EINSUM
            self._note(operator, _einsum_flops(inputs) if is_einsum else _flops(operator, inputs, outputs))
            return 0

        return look

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran that is not in the trace, so that no handle can look at it."""
        tensors = [*tensors_in(list(args)), *tensors_in(dict(kwargs))]
        if may_do_matrix_work(func, tensors):
            inputs, outputs = ([tuple(tensor.shape) for tensor in group] for group in (tensors, tensors_in(output)))
            self._note(str(func).rpartition(".")[0], flops_of(str(func), inputs, outputs))

    def _note(self, operator: str, flops: int | None) -> None:
        self.calls[operator] += 1
        known = self.flops.setdefault(operator, 0)
        self.flops[operator] = None if known is None or flops is None else known + flops


def watched_operators(figures: Mapping[str, float], unsupported: Mapping[str, int]) -> tuple[str, ...]:
    """Ops worth a second look: the silent ones that multiply, and those that fvcore prices only roughly."""
    silent = [name for name in unsupported if does_matrix_work(name) or not name.startswith("aten::")]
    rough = [f"aten::{name}" for name in figures if f"aten::{name}" in (_EINSUM, _MATMUL)]
    return (*silent, *rough)


def gaps(figures: Mapping[str, int], seen: SeenWork) -> Iterator[BlindSpot]:
    """Blind spots of one traced call; `figures` are FLOPs by fvcore's operator names.

    Of an op that fvcore prices roughly the gap may be negative, which `settled` turns into a name of its own.
    """
    for operator, flops in seen.flops.items():
        counted = figures.get(operator.removeprefix("aten::"))
        calls = seen.calls[operator]
        if counted is None:
            yield BlindSpot(cause=cause_of_silence(operator), operator=operator, calls=calls, flops=flops)
        elif flops is not None and flops != counted:
            cause = _ROUNDED if operator == _EINSUM else "broadcast-uncounted"
            yield BlindSpot(cause=cause, operator=operator, calls=calls, flops=flops - counted)
    for name, flops in figures.items():
        if family_of(name) is Family.OTHER and flops:
            yield BlindSpot(cause="elementwise-counted", operator=name, calls=0, flops=flops)


def settled(spot: BlindSpot) -> BlindSpot:
    """A sum of gaps as the ledger knows it: rounding may have taken FLOPs away or added some."""
    if spot.cause != _ROUNDED or spot.flops is None:
        return spot
    return replace(spot, cause="rounded-down" if spot.flops > 0 else "rounded-up", flops=abs(spot.flops))


def _flops(operator: str, inputs: list[Any], outputs: list[Any]) -> int | None:
    shapes = [_shape(value) for value in _tensors(inputs)]
    return flops_of(operator, [shape for shape in shapes if shape is not None], [_shape(outputs[0]) or ()])


def _tensors(inputs: list[Any]) -> Iterator[Any]:
    """The values of a traced op, those in lists one by one."""
    for value in inputs:
        if value.node().kind() == "prim::ListConstruct":
            yield from value.node().inputs()
        else:
            yield value


def _einsum_flops(inputs: list[Any]) -> int | None:
    """Of two operands: one multiply-add per combination of all indices. None where a dimension is broadcast."""
    equation = str(inputs[0].toIValue()).replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    shapes = [_shape(value) for value in inputs[1].node().inputs()]
    if len(terms) != 2 or "." in equation:
        return None
    size_of: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape or (), strict=True):
            size_of[letter] = max(size, size_of.get(letter, 1))
    return 2 * math.prod(size_of.values())


def _shape(value: Any) -> Shape | None:
    """The sizes of a value in a trace; None for what is no tensor."""
    kind = value.type()
    return tuple(kind.sizes()) if value.isCompleteTensor() else None
