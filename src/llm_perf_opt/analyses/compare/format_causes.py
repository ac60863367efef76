"""The same weights or cache stored in another format: another type in the same shapes, and other bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from llm_perf_opt.analyses.compare.difference import Aspect, Claim, Difference, Observed, Pair, Weights
from llm_perf_opt.analyses.compare.side import Tensor
from llm_perf_opt.core.tensor_formats import is_weight_format, untransposed

Types = dict[tuple[str, str], None]  # (left, right), each once, in order
Stored = Mapping[str, tuple[object, object]]  # header field -> both sides


def stored_format(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Weights of the same shapes of which a side stores some in a format, and what a cache of another type changes.

    Bytes moved elsewhere follow where the headers name another format and the FLOPs agree.
    """
    section = "deployment."
    stored = {
        name.removeprefix(section): sides for name, sides in pair.changed_fields().items() if name.startswith(section)
    }
    for difference in differences:
        if detail := _detail(difference, stored):
            yield Claim(difference=difference, detail=detail)


def _detail(difference: Difference, stored: Stored) -> str:
    if difference.aspect is Aspect.WEIGHTS:
        return _text("weights", _weight_types(difference, stored))
    if difference.aspect in (Aspect.INPUTS, Aspect.OUTPUTS):
        return _handed_text(difference, stored.get("cache"))
    if difference.aspect is Aspect.BYTES and difference.flops_change == 0:
        return ", ".join(f"{name} {_side(left)} -> {_side(right)}" for name, (left, right) in _formats(stored))
    return ""


def _weight_types(difference: Difference, stored: Stored) -> Types:
    if not (isinstance(difference.left, tuple) and isinstance(difference.right, tuple)):
        return {}
    left, right = cast("Weights", difference.left), cast("Weights", difference.right)
    if [name for name, _ in left] != [name for name, _ in right]:
        return {}
    types = _changed_types([(mine, theirs) for (_, mine), (_, theirs) in zip(left, right, strict=True)])
    are_stored = all(any(map(is_weight_format, sides)) for sides in types)
    return types if are_stored or "weights" in stored else {}


def _handed_text(difference: Difference, cache: tuple[object, object] | None) -> str:
    """Tensors that a module is handed or gives back: weights, and the cache where a header gives its type."""
    left, right = (_flat(observed) for observed in difference.observed)
    if len(left) != len(right):
        return ""
    types = _changed_types(list(zip(left, right, strict=True)))
    weights: Types = {sides: None for sides in types if any(map(is_weight_format, sides))}
    cached: Types = {sides: None for sides in types if sides not in weights and _is_told(sides, cache)}
    if len(weights) + len(cached) < len(types):
        return ""
    return ", ".join(filter(None, (_text("weights", weights), _text("cache", cached))))


def _is_told(types: tuple[str, str], cache: tuple[object, object] | None) -> bool:
    return cache is not None and all(said in (None, seen) for said, seen in zip(cache, types, strict=True))


def _changed_types(pairs: Sequence[tuple[Tensor, Tensor]]) -> Types:
    """The types that differ; nothing where a shape differs too."""
    if any(left[0] != right[0] for left, right in pairs):
        return {}
    return {(untransposed(left[1]), untransposed(right[1])): None for left, right in pairs if left[1] != right[1]}


def _flat(observed: Observed) -> list[Tensor]:
    return [tensor for tensors, _ in observed for tensor in tensors]


def _formats(stored: Stored) -> Iterator[tuple[str, tuple[object, object]]]:
    return ((name, sides) for name, sides in stored.items() if name in ("weights", "cache"))


def _side(value: object) -> str:
    return "as traced" if value is None else str(value)


def _text(what: str, types: Types) -> str:
    return ", ".join(f"{what} {left} -> {right}" for left, right in types)
