"""What a probe brings back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The work of one forward. `printed` is the tool's own figure, `flops` twice its multiply-adds if it tells them.

    `flops_by_module` has every module that the tool gives a figure of its own, None where it knows no modules.
    """

    printed: float
    unit: str
    flops: int
    flops_by_module: dict[str, int] | None = None
    left_out: list[str] = field(default_factory=list)  # what the tool itself says it did not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One figure that a tool gives besides a count, and what it is a figure of."""

    figure: float
    unit: str
    of: str


Answer = Count | Offer
