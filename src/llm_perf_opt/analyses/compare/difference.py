"""What differs between two traces, one fact at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from llm_perf_opt.analyses.causes import Explained
from llm_perf_opt.analyses.compare.side import OwnOps, Side, Tensor, Tensors

ALL = "(all modules)"  # where a whole table is missing on one side

Observed = tuple[tuple[Tensors, int], ...]
Weights = tuple[tuple[str, Tensor], ...]
Value = str | int | Observed | Weights | OwnOps | None  # None: not there, or not known


class Aspect(StrEnum):
    """What was looked at. The three of cost are one fact per module: the first of them that differs."""

    MODULE = "module"  # its being there at all
    CLASS = "class"
    WEIGHTS = "weights"
    CALLS = "calls"
    EDGE = "caller"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    OPS = "ops"
    FLOPS = "FLOPs"
    BYTES = "bytes"


COST_ASPECTS = frozenset({Aspect.OPS, Aspect.FLOPS, Aspect.BYTES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that the two sides do not share. `caller` is set for edges alone."""

    aspect: Aspect
    path: str
    left: Value
    right: Value
    caller: str | None = None

    @property
    def observed(self) -> tuple[Observed, Observed]:
        """Both sides, where this is about tensors that went in or came out."""
        assert self.aspect in {Aspect.INPUTS, Aspect.OUTPUTS}
        return cast("Observed", self.left), cast("Observed", self.right)

    @property
    def counts(self) -> tuple[int, int]:
        """Both sides, where this is about how often."""
        assert self.aspect in {Aspect.CALLS, Aspect.EDGE}
        return cast("int", self.left), cast("int", self.right)

    @property
    def more_ops(self) -> Counter[str]:
        """Op -> how often it ran more on the right, where this is about ops and both sides know their names."""
        more: Counter[str] = Counter()
        if isinstance(self.left, OwnOps) and isinstance(self.right, OwnOps):
            more.update(dict(self.right.names))
            more.subtract(dict(self.left.names))
        return more

    @property
    def flops_change(self) -> int:
        """What the right side has more, of the ops run directly in the module; 0 unless this is about cost."""
        return _flops(self.right) - _flops(self.left)

    @property
    def bytes_change(self) -> int:
        """As `flops_change`, in bytes moved."""
        return _bytes(self.right) - _bytes(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A cause's word for one difference; `detail` names what in the two traces proves it."""

    difference: Difference
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Explained):
    """A difference and what explains it."""

    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two sides of a comparison, as every cause gets them."""

    left: Side
    right: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, left first."""
        return self.left, self.right

    def changed_fields(self) -> dict[str, tuple[object, object]]:
        """Header fields that differ; None where a side has no value."""
        left, right = self.left.header, self.right.header
        names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
        return {name: (left.get(name), right.get(name)) for name in names}

    def contradicting_fields(self, section: str = "") -> dict[str, tuple[object, object]]:
        """Header fields that both sides have, with different values; of one section (`workload.`) without its name."""
        return {
            name.removeprefix(section): values
            for name, values in self.changed_fields().items()
            if name.startswith(section) and not any(value is None or value == "" for value in values)
        }


def _flops(value: Value) -> int:
    return value.flops if isinstance(value, OwnOps) else 0


def _bytes(value: Value) -> int:
    return value.bytes_moved if isinstance(value, OwnOps) else 0
