"""What an op costs, and the bytes and elements of its tensors from which every formula starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """The price of one op.

    `flops` counts matrix work only (matmuls, convolutions, attention), one multiply-add as two, and is the number that
    totals, other sources and published figures mean. `vector_flops` is elementwise and reduction work by simple counts
    per element; it is reported apart and never added in. `bytes_moved` is inputs read plus outputs written.
    """

    flops: int = 0
    vector_flops: int = 0
    bytes_moved: int = 0

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(
            flops=self.flops + other.flops,
            vector_flops=self.vector_flops + other.vector_flops,
            bytes_moved=self.bytes_moved + other.bytes_moved,
        )

    def times(self, count: int) -> OpCost:
        """The cost of running the op `count` times."""
        return OpCost(
            flops=self.flops * count, vector_flops=self.vector_flops * count, bytes_moved=self.bytes_moved * count
        )


FREE = OpCost()

Formula = Callable[[OpKind], OpCost | None]  # None: not known from what the record holds


@lru_cache(maxsize=8192)
def packet_of(name: str) -> str:
    """The name under which an op is registered: overloads and in-place forms share their plain form's.

    `aten.add` for `aten.add_.Tensor`; a higher-order op keeps its bare name, a dunder its underscores.
    """
    namespace, dot, rest = name.removeprefix("higher_order.").partition(".")
    packet = rest.partition(".")[0]
    if packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    return f"{namespace}{dot}{packet}"


def elements(meta: TensorMeta) -> int:
    """How many values the shape holds; an expanded tensor counts as if each were stored."""
    return math.prod(meta.shape)


def elements_of(metas: Iterable[TensorMeta]) -> int:
    """How many values all the shapes hold together."""
    return sum(math.prod(meta.shape) for meta in metas)


def bytes_of(metas: Iterable[TensorMeta]) -> int:
    """What reading or writing all of them moves."""
    return sum(map(tensor_bytes, metas))


def bytes_in_and_out(kind: OpKind) -> int:
    """Every input read once and every output written once."""
    return bytes_of(kind.inputs) + bytes_of(kind.outputs)


def operand(kind: OpKind, position: int, *names: str) -> TensorMeta:
    """The first input with one of these schema names, or the one at `position` where a tracer gives no names."""
    for name in names:
        if name in kind.input_names:
            return kind.inputs[kind.input_names.index(name)]
    return kind.inputs[position]
