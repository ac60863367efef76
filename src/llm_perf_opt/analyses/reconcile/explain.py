"""What accounts for a gap between two sources: what one says it left out, then arithmetic that fits exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.source_figures import BlindSpot, Family, Testimony, family_of, flops_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A named reason.

    `tolerance` is the part of what this cause explains that may stay over; 0 means to the last FLOP. `limit` is the
    part of the larger figure that it may explain at most; None where its size is known by other means.
    """

    name: str
    meaning: str
    tolerance: float = 0.0
    limit: float | None = None


_ALL = (
    Cause(name="mac-not-flop", meaning="the source counts multiply-adds and calls them FLOPs: exactly half"),
    Cause(name="fused-attention-uncounted", meaning="the source has no formula for a fused attention kernel"),
    Cause(name="grouped-product-uncounted", meaning="the source has no formula for grouped products of experts"),
    Cause(name="causal-half", meaning="the source halves attention under a causal mask", tolerance=0.01),
    Cause(name="head-on-all-positions", meaning="one source runs the output head on the last position only"),
    Cause(name="routing", meaning="the sources sent tokens to different experts", limit=0.05),
    Cause(name="stored-format", meaning="one source counts weights or cache in the format in which they are stored"),
    Cause(name="op-without-formula", meaning="an op that one source saw and could not price"),
    Cause(name="outside-isolated-modules", meaning="work done between the modules that were run by themselves"),
    Cause(name="elementwise-counted", meaning="the source adds elementwise work, which is kept apart here"),
    Cause(name="broadcast-uncounted", meaning="the source reads the batch off the left operand of a product alone"),
    Cause(name="rounded-down", meaning="the source gives an einsum in four digits, which is less than it did"),
    Cause(name="rounded-up", meaning="the source gives an einsum in four digits, which is more than it did"),
)
CAUSES = {cause.name: cause for cause in _ALL}


_ROUTED = (None, Family.PRODUCT, Family.GROUPED)  # where experts do their work
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
    that none of them touches is compared with the ratios that other conventions produce. What is then left may be the
    doing of experts, if the sources sent tokens to different ones.
    """
    parts = [part for part in _declared(more, less, family) if part.flops]
    parts += _bounded(more, less, family, gap - _flops_of(parts))
    parts = parts or list(_by_convention(more, less, family, gap, context_tokens))
    return (*parts, *_routed(more, less, family, gap - _flops_of(parts)))


def is_of_any_family(spot: BlindSpot) -> bool:
    """Whether the name of the op does not tell in which family another source counts its work."""
    return spot.cause == "op-without-formula" and spot.flops is not None


def _flops_of(parts: Sequence[Explanation]) -> int:
    return sum(part.flops for part in parts)


def _declared(more: Testimony, less: Testimony, family: Family | None) -> Iterator[Explanation]:
    """What either source says of itself, with the sign that it gives to the gap."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if not spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
                yield _of(spot, (-sign if spot.adds else sign) * spot.flops)


def _bounded(more: Testimony, less: Testimony, family: Family | None, left_over: int) -> Iterator[Explanation]:
    """What is known by an upper bound takes what is left, and no more than its bound."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
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
        return family is family_of(spot.operator)
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
        half = flops_in(more, Family.ATTENTION) // 2
        yield Explanation(cause="causal-half", flops=half, detail=f"{less.source} counts half of each score matrix")
        return
    if context_tokens and context_tokens > 1:
        for operator in more.operators:
            if operator.flops and operator.flops * (context_tokens - 1) == gap * context_tokens:
                detail = f"{operator.name} on {context_tokens:,} positions against one"
                yield Explanation(cause="head-on-all-positions", flops=gap, detail=detail)
                return


def _is_half(more: Testimony, less: Testimony) -> bool:
    full, half = flops_in(more, Family.ATTENTION), flops_in(less, Family.ATTENTION)
    return bool(full) and abs(2 * half - full) <= CAUSES["causal-half"].tolerance * full


def _routed(more: Testimony, less: Testimony, family: Family | None, left_over: int) -> Iterator[Explanation]:
    """The part of a rest that other experts may account for, where both sources tell whom they chose."""
    if not left_over or family not in _ROUTED or not sent_apart(more, less):
        return
    figure = (more.flops or 0) if family is None else flops_in(more, family)
    part = min(abs(left_over), int((CAUSES["routing"].limit or 0) * figure))
    if part:
        yield Explanation(cause="routing", flops=part if left_over > 0 else -part, detail=policies(more, less))


def sent_apart(left: Testimony, right: Testimony) -> bool:
    """Whether both sources had tokens to send to experts, and did so by different policies."""
    return left.routing is not None and right.routing is not None and left.routing != right.routing


def policies(left: Testimony, right: Testimony) -> str:
    """Who sent the tokens how."""
    return f"{left.source} {left.routing}, {right.source} {right.routing}"
