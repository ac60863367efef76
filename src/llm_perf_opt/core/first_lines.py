"""Words that several answers begin with: which stage has most of something, how one figure became another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from llm_perf_opt.core.units import format_count, format_ratio

_NAMED = 2  # stages


def largest_text(figures: Mapping[str, int | float | None], most: int = _NAMED) -> str:
    """`sam 66 %, prefill 23 %`: the largest parts of their sum; empty where one is not known, or all are nothing."""
    known = {name: value for name, value in figures.items() if value is not None}
    whole = sum(known.values())
    if not whole or len(known) < len(figures):
        return ""
    first = sorted(known, key=lambda name: -known[name])[:most]
    return ", ".join(f"{name} {share_text(known[name] / whole)}" for name in first if known[name])


class _Stage(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def phase(self) -> str: ...


def stage_names(stages: Sequence[_Stage]) -> list[str]:
    """Their names; of a stage that several phases run, with the phase: `vision (decode)`."""
    times = Counter(stage.name for stage in stages)
    return [f"{stage.name} ({stage.phase})" if times[stage.name] > 1 else stage.name for stage in stages]


def share_text(share: float) -> str:
    """`66 %`; what is nearly all or nearly nothing is `over 99 %` and `under 1 %`, so that 100 % is all of it."""
    percent = round(share * 100)
    if percent == 100 and share < 1:
        return "over 99 %"
    return "under 1 %" if percent == 0 and share > 0 else f"{percent} %"


def change_text(before: int | None, after: int | None, shown: Callable[[float], str]) -> str:
    """`1.48 TFLOP in both`, or `1.48 TFLOP -> 1.60 TFLOP (+8.1 %)`."""
    if before is None or after is None:
        return f"{'?' if before is None else shown(before)} -> {'?' if after is None else shown(after)}"
    if before == after:
        return f"{shown(before)} in both"
    change = f" ({'+' if after > before else ''}{format_ratio(after / before - 1)})" if before else ""
    return f"{shown(before)} -> {shown(after)}{change}"


def three_digits(number: float) -> str:
    """`10,400`, `86.1`, `0.106`: three significant digits, without an exponent."""
    return format_count(float(f"{number:.3g}"))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 plan`, `3 plans`."""
    return f"{format_count(count)} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {format_count(more)} more" if more > 0 else "")
