"""The known reasons why two sources disagree, and how much each may explain and leave over."""

from __future__ import annotations

from dataclasses import dataclass


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
