"""What fvcore leaves out of one traced call, adds to it or rounds, and the handles that complete it.

fvcore has no handle for fused attention, grouped products, recurrent layers and whatever a library registers itself. It
adds norms, gives an einsum in four digits, and reads the batch of a product off its left operand. A handle of ours
prices the op from the shapes in the trace: fvcore calls it as one of its own, so that its totals by module are complete
too. Which figures are made so stays visible: `SourceFigures.completed_flops`, apart from fvcore's own `flops`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.core.source_figures import BlindSpot, WorkFamily, family_of
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.sources.torch_prices import Shape, cause_of_gap, does_matrix_work, flops_of, may_do_matrix_work

_EINSUM, _MATMUL = "aten::einsum", "aten::matmul"
_ROUNDED = "rounded"  # fvcore gives an einsum in four digits
FLOPS_PER_MAC = 2
Handle = Callable[[list[Any], list[Any]], int]


@dataclass(slots=True)
class SeenWork:
    """FLOPs of chosen ops by the shapes in a trace, and how often each ran; None where the shapes do not tell.

    `unrecorded_flops` is the part that is in no trace, so that no handle can add it; None: of unknown size.
    """

    flops: dict[str, int | None] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    unrecorded_flops: int | None = 0

    def handle(self, operator: str) -> Handle:
        """A handle for fvcore that notes the op down and gives its multiply-adds, 0 where they are unknown."""

        def multiply_adds(inputs: list[Any], outputs: list[Any]) -> int:
            is_einsum = operator == _EINSUM
            flops = _einsum_flops(inputs) if is_einsum else _flops(operator, inputs, outputs)
            self._note(operator, flops)
            return 0 if flops is None else flops // FLOPS_PER_MAC

        return multiply_adds

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran that is not in the trace, so that no handle can look at it."""
        tensors = [*tensors_in(list(args)), *tensors_in(dict(kwargs))]
        if may_do_matrix_work(func, tensors):
            inputs, outputs = ([tuple(tensor.shape) for tensor in group] for group in (tensors, tensors_in(output)))
            flops = flops_of(str(func), inputs, outputs)
            self._note(str(func).rpartition(".")[0], flops)
            known = self.unrecorded_flops
            self.unrecorded_flops = None if known is None or flops is None else known + flops

    @property
    def is_known(self) -> bool:
        """Whether every op that was noted has a price."""
        return None not in self.flops.values()

    def _note(self, operator: str, flops: int | None) -> None:
        self.calls[operator] += 1
        known = self.flops.setdefault(operator, 0)
        self.flops[operator] = None if known is None or flops is None else known + flops


def watched_operators(figures: Mapping[str, float], unsupported: Mapping[str, int]) -> tuple[str, ...]:
    """Ops that need a handle of ours: the unsupported ones that multiply, and those that fvcore prices only roughly."""
    uncounted = [name for name in unsupported if does_matrix_work(name) or not name.startswith("aten::")]
    rough = [f"aten::{name}" for name in figures if f"aten::{name}" in (_EINSUM, _MATMUL)]
    return (*uncounted, *rough)


def added_operators(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Ops that fvcore counts although they are no matrix work: norms, pooling, resampling."""
    return tuple(f"aten::{name}" for name, flops in figures.items() if flops and family_of(name) is WorkFamily.OTHER)


def gaps(figures: Mapping[str, int], seen: SeenWork) -> Iterator[BlindSpot]:
    """Blind spots of one traced call; `figures` are FLOPs by fvcore's operator names.

    Of an op that fvcore prices roughly the gap may be negative, which `settled` turns into a name of its own.
    """
    for operator, flops in seen.flops.items():
        counted = figures.get(operator.removeprefix("aten::"))
        calls = seen.calls[operator]
        if counted is None:
            yield BlindSpot(cause=cause_of_gap(operator), operator=operator, calls=calls, flops=flops)
        elif flops is not None and flops != counted:
            cause = _ROUNDED if operator == _EINSUM else "broadcast-uncounted"
            yield BlindSpot(cause=cause, operator=operator, calls=calls, flops=flops - counted)
    for name, flops in figures.items():
        if family_of(name) is WorkFamily.OTHER and flops:
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
