"""What accounts for a gap between two sources: what one of them says it left out, then arithmetic that fits exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.testimony import BlindSpot, Family, Testimony, family_of, flops_in

_ADDS = frozenset({"elementwise-counted", "rounded-up"})  # causes that make a source count more, not less
_BOUNDS = frozenset({"op-without-formula"})  # causes whose figure is an upper bound
WHOLE_FAMILY = {
    "fused-attention-uncounted": Family.ATTENTION,
    "grouped-product-uncounted": Family.GROUPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A cause and the part of a gap that it accounts for; negative where it makes the gap smaller."""

    cause: str
    flops: int
    detail: str


def explain(
    more: Testimony, less: Testimony, family: Family | None, gap: int, context_tokens: int | None
) -> tuple[Explanation, ...]:
    """Explanations of why `more` counts `gap` FLOPs more than `less`; empty when none is known.

    `family` None means the stage as a whole. Blind spots come first: the sources themselves say what they left out or
    added, and each is taken for its whole size, so that one that is too large leaves the rest unexplained. Only a gap
    that none of them touches is compared with the ratios that other conventions produce.
    """
    parts = [part for part in _declared(more, less, family) if part.flops]
    left_over = gap - sum(part.flops for part in parts)
    parts += _bounded(more, less, family, left_over)
    return tuple(parts) or tuple(_by_convention(more, less, family, gap, context_tokens))


def _declared(more: Testimony, less: Testimony, family: Family | None) -> Iterator[Explanation]:
    """What either source says of itself, with the sign that it gives to the gap."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if spot.cause not in _BOUNDS and spot.flops is not None and _belongs(spot, other, family):
                yield _of(spot, (-sign if spot.cause in _ADDS else sign) * spot.flops)


def _bounded(more: Testimony, less: Testimony, family: Family | None, left_over: int) -> Iterator[Explanation]:
    """What is known by an upper bound takes what is left, and no more than its bound."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if spot.cause in _BOUNDS and spot.flops is not None and _belongs(spot, other, family):
                part = min(max(0, sign * left_over), spot.flops)
                if part:
                    yield _of(spot, sign * part)
                    left_over -= sign * part


def _belongs(spot: BlindSpot, other: Testimony, family: Family | None) -> bool:
    """Whether the blind spot shows in this family when compared with `other`.

    Fused ops are a family of their own, unless the other source lists them as the plain products they stand for.
    """
    if family is None:
        return True
    whole = WHOLE_FAMILY.get(spot.cause)
    if whole is None:
        return family is family_of(spot.operator) or spot.cause in _BOUNDS
    if flops_in(other, whole) or any(theirs.cause == spot.cause for theirs in other.blind_spots):
        return family is whole
    return family in (whole, Family.PRODUCT)


def _of(spot: BlindSpot, flops: int) -> Explanation:
    return Explanation(
        cause=spot.cause, flops=flops, detail=f"{spot.operator} x {spot.calls:,}" if spot.calls else spot.operator
    )


def _by_convention(
    more: Testimony, less: Testimony, family: Family | None, gap: int, context_tokens: int | None
) -> Iterator[Explanation]:
    if more.flops == 2 * (less.flops or 0):
        yield Explanation(cause="mac-not-flop", flops=gap, detail=f"{less.source} is exactly half of {more.source}")
        return
    if family is Family.ATTENTION and _is_half(more, less):
        yield Explanation(cause="causal-half", flops=gap, detail=f"{less.source} counts half of each score matrix")
        return
    if context_tokens and context_tokens > 1:
        for operator in more.operators:
            if operator.flops and operator.flops * (context_tokens - 1) == gap * context_tokens:
                detail = f"{operator.name} on {context_tokens:,} positions against one"
                yield Explanation(cause="head-on-all-positions", flops=gap, detail=detail)
                return


def _is_half(more: Testimony, less: Testimony) -> bool:
    full, half = flops_in(more, Family.ATTENTION), flops_in(less, Family.ATTENTION)
    return bool(full) and abs(2 * half - full) <= 0.01 * full
