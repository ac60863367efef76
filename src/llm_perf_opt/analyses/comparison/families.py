"""Many module paths as one label: `model.layers.[1-11].mlp.experts.[0-63].gate_proj`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBERED = re.compile(r"(?P<prefix>(?:.*_)?)\d+")  # `7` and `expert_7`; the digits of `fc1` are part of a name
_MOST_RUNS = 4


def numbered_name(part: str) -> str | None:
    """What is before the number of a numbered sibling, which may be nothing; None for any other name."""
    match = _NUMBERED.fullmatch(part)
    return None if match is None else match["prefix"]


def family_of(path: str) -> str:
    """The path with its numbers left out; paths of one family differ in numbers alone."""
    prefixes = ((part, numbered_name(part)) for part in path.split("."))
    return ".".join(part if prefix is None else f"{prefix}*" for part, prefix in prefixes)


def family_label(paths: Sequence[str]) -> str:
    """One label for paths of one family. Where two numbers vary, not every combination need be there."""
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(_part_label(dict.fromkeys(parts)) for parts in columns) or "(root)"


def _part_label(parts: Iterable[str]) -> str:
    first, *others = parts
    prefix = numbered_name(first)
    if not others or prefix is None:
        return first
    return f"{prefix}[{_ranges(sorted(int(part.removeprefix(prefix)) for part in (first, *others)))}]"


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    if len(told) > _MOST_RUNS:
        told = [*told[: _MOST_RUNS - 1], "...", told[-1]]
    return ",".join(told)
