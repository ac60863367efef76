"""One side of a difference in a few words."""

from __future__ import annotations

from typing import cast

from llm_perf_opt.analyses.comparison.difference import Aspect, Difference, Value, Weights
from llm_perf_opt.analyses.comparison.side import OwnOps, Tensor
from llm_perf_opt.units import format_bytes, format_count, format_flops

_MOST_SETS = 2
_MOST_TENSORS = 2
_MOST_OPS = 3


def value_texts(difference: Difference) -> tuple[str, str]:
    """Left and right; of long lists only what differs, and only its beginning."""
    left, right = difference.left, difference.right
    if difference.aspect in {Aspect.INPUTS, Aspect.OUTPUTS} and isinstance(left, tuple):
        return _observed_text(difference, 0), _observed_text(difference, 1)
    if isinstance(left, OwnOps) and isinstance(right, OwnOps):
        return _own_text(difference.aspect, left, right), _own_text(difference.aspect, right, left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return _weights_text(cast("Weights", left)), _weights_text(cast("Weights", right))
    return _plain_text(difference, left), _plain_text(difference, right)


def _plain_text(difference: Difference, value: Value) -> str:
    if isinstance(value, int):
        by = f" by {difference.caller or '(root)'}" if difference.aspect is Aspect.EDGE else ""
        what = "op" if difference.aspect is Aspect.OPS else "call"
        return f"{format_count(value)} {what}{'s' if value != 1 else ''}{by}"
    return "-" if value is None else str(value)


def _weights_text(weights: Weights) -> str:
    return _listed([f"{name} {_tensor_text(tensor)}" for name, tensor in weights], _MOST_TENSORS) or "-"


def _observed_text(difference: Difference, side: int) -> str:
    mine, theirs = dict(difference.observed[side]), dict(difference.observed[1 - side])
    own = {tensors: calls for tensors, calls in mine.items() if theirs.get(tensors) != calls}
    sets = [
        f"{calls} x ({_listed([_tensor_text(tensor) for tensor in tensors], _MOST_TENSORS)})"
        for tensors, calls in own.items()
    ]
    return _listed(sets, _MOST_SETS) or "-"


def _tensor_text(tensor: Tensor) -> str:
    shape, dtype = tensor
    return f"{dtype}[{','.join(map(str, shape))}]"


def _own_text(aspect: Aspect, mine: OwnOps, theirs: OwnOps) -> str:
    if aspect is Aspect.FLOPS:
        return format_flops(mine.flops)
    if aspect is Aspect.BYTES:
        return format_bytes(mine.bytes_moved)
    other = dict(theirs.names)
    differing = [f"{_short_name(name)} {format_count(count)}" for name, count in mine.names if other.get(name) != count]
    return _listed(differing, _MOST_OPS) or "-"


def _short_name(name: str) -> str:
    return name.removeprefix("aten.").removesuffix(".default")


def _listed(parts: list[str], most: int) -> str:
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f", +{more}" if more > 0 else "")
