"""What accounts for a gap between two sources: what one declares to leave out, then arithmetic that fits exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.causes import Cause, CauseTable, Explanation
from llm_perf_opt.core.source_figures import BlindSpot, SourceFigures, WorkFamily, family_of, flops_in


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingCause(Cause):
    """Why two sources count differently.

    `tolerance` is the part of what this cause explains that may stay over; 0 means to the last FLOP. `limit` is the
    part of the larger figure that it may explain at most; None where its size is known by other means.
    """

    tolerance: float = 0.0
    limit: float | None = None


CAUSES = CauseTable(
    CountingCause(name="mac-not-flop", meaning="the source counts multiply-adds and calls them FLOPs: exactly half"),
    CountingCause(name="fused-attention-uncounted", meaning="the source has no formula for a fused attention kernel"),
    CountingCause(
        name="grouped-product-uncounted", meaning="the source has no formula for grouped products of experts"
    ),
    CountingCause(name="causal-half", meaning="the source halves attention under a causal mask", tolerance=0.01),
    CountingCause(name="head-on-all-positions", meaning="one source runs the output head on the last position only"),
    CountingCause(name="routing", meaning="the sources sent tokens to different experts", limit=0.05),
    CountingCause(
        name="stored-format", meaning="one source counts weights or cache in the format in which they are stored"
    ),
    CountingCause(name="op-without-formula", meaning="an op that one source saw and could not price"),
    CountingCause(name="outside-isolated-modules", meaning="work done between the modules that were run by themselves"),
    CountingCause(name="elementwise-counted", meaning="the source adds elementwise work, which is kept apart here"),
    CountingCause(
        name="broadcast-uncounted", meaning="the source reads the batch off the left operand of a product alone"
    ),
    CountingCause(name="router-uncounted", meaning="the source leaves out the products that score experts"),
    CountingCause(
        name="latent-attention-expanded",
        meaning="the source prices a step on latent vectors as if the new token's keys and values were expanded",
    ),
    CountingCause(name="padded-experts", meaning="a kernel pads the matrices of experts, and the source does not"),
    CountingCause(
        name="whole-on-expert-ranks",
        meaning="the source counts dense and shared layers whole on each rank that holds experts of its own",
    ),
    CountingCause(name="rounded-down", meaning="the source gives an einsum in four digits, which is less than it did"),
    CountingCause(name="rounded-up", meaning="the source gives an einsum in four digits, which is more than it did"),
)


_ROUTED = (None, WorkFamily.PRODUCT, WorkFamily.GROUPED)  # where experts do their work
WHOLE_FAMILY = {"fused-attention-uncounted": WorkFamily.ATTENTION, "grouped-product-uncounted": WorkFamily.GROUPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsExplanation(Explanation):
    """A cause and the part of a gap that it accounts for; negative where it makes the gap smaller."""

    flops: int


def explain(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, gap: int, context_tokens: int | None
) -> tuple[FlopsExplanation, ...]:
    """Explanations of why `more` counts `gap` FLOPs more than `less`; empty when none is known.

    `family` None means the stage as a whole. Blind spots come first: the sources declare what they left out or added,
    and each is taken for its whole size, so that one that is too large leaves the rest unexplained. Only a gap
    that none of them touches is compared with the ratios that other conventions produce. What is then left may be the
    doing of experts, if the sources sent tokens to different ones.
    """
    parts = [part for part in _declared(more, less, family) if part.flops]
    parts += _bounded(more, less, family, gap - _flops_of(parts))
    parts = parts or list(_by_convention(more, less, family, gap, context_tokens))
    return (*parts, *_routed(more, less, family, gap - _flops_of(parts)))


def is_of_any_family(spot: BlindSpot) -> bool:
    """Whether the name of the op does not show in which family another source counts its work."""
    return spot.cause == "op-without-formula" and spot.flops is not None


def _flops_of(parts: Sequence[FlopsExplanation]) -> int:
    return sum(part.flops for part in parts)


def _declared(more: SourceFigures, less: SourceFigures, family: WorkFamily | None) -> Iterator[FlopsExplanation]:
    """What either source declares of itself, with the sign that it gives to the gap."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if not spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
                yield _of(spot, (-sign if spot.adds else sign) * spot.flops)


def _bounded(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, left_over: int
) -> Iterator[FlopsExplanation]:
    """What is known by an upper bound takes what is left, and no more than its bound."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
                part = min(max(0, sign * left_over), spot.flops)
                if part:
                    yield _of(spot, sign * part)
                    left_over -= sign * part


def _belongs(spot: BlindSpot, other: SourceFigures, family: WorkFamily | None) -> bool:
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
    return family in (whole, WorkFamily.PRODUCT)


def _of(spot: BlindSpot, flops: int) -> FlopsExplanation:
    return FlopsExplanation(
        cause=spot.cause, flops=flops, detail=f"{spot.operator} x {spot.calls:,}" if spot.calls else spot.operator
    )


def _by_convention(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, gap: int, context_tokens: int | None
) -> Iterator[FlopsExplanation]:
    if more.flops == 2 * (less.flops or 0):
        yield FlopsExplanation(
            cause="mac-not-flop", flops=gap, detail=f"{less.source} is exactly half of {more.source}"
        )
        return
    if family is WorkFamily.ATTENTION and _is_half(more, less):
        half = flops_in(more, WorkFamily.ATTENTION) // 2
        yield FlopsExplanation(
            cause="causal-half", flops=half, detail=f"{less.source} counts half of each score matrix"
        )
        return
    if context_tokens and context_tokens > 1:
        for operator in more.operators:
            if operator.flops and operator.flops * (context_tokens - 1) == gap * context_tokens:
                detail = f"{operator.name} on {context_tokens:,} positions against one"
                yield FlopsExplanation(cause="head-on-all-positions", flops=gap, detail=detail)
                return


def _is_half(more: SourceFigures, less: SourceFigures) -> bool:
    full, half = flops_in(more, WorkFamily.ATTENTION), flops_in(less, WorkFamily.ATTENTION)
    return bool(full) and abs(2 * half - full) <= CAUSES["causal-half"].tolerance * full


def _routed(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, left_over: int
) -> Iterator[FlopsExplanation]:
    """The part of a rest that other experts may account for, where both sources name their routing."""
    if not left_over or family not in _ROUTED or not sent_apart(more, less):
        return
    figure = (more.flops or 0) if family is None else flops_in(more, family)
    part = min(abs(left_over), int((CAUSES["routing"].limit or 0) * figure))
    if part:
        yield FlopsExplanation(cause="routing", flops=part if left_over > 0 else -part, detail=policies(more, less))


def sent_apart(left: SourceFigures, right: SourceFigures) -> bool:
    """Whether both sources had tokens to send to experts, and did so by different policies."""
    return left.routing is not None and right.routing is not None and left.routing != right.routing


def policies(left: SourceFigures, right: SourceFigures) -> str:
    """Who sent the tokens how."""
    return f"{left.source} {left.routing}, {right.source} {right.routing}"
