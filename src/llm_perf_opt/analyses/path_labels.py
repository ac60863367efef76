"""One label for many module paths: `model.layers.[1-11].mlp.experts.[0-63]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SHORTEST_RUN = 3  # in a list with gaps, fewer than this in a row are written one by one


def label_of(paths: Sequence[str]) -> str:
    """The components that all paths share, and in brackets those in which they differ."""
    if len(paths) == 1:
        return paths[0]
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        return ".".join(_component(column) for column in zip(*split, strict=True))
    shared = 0
    while all(len(parts) > shared and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    rest = [".".join(parts[shared:]) or "(itself)" for parts in split]
    return ".".join([*split[0][:shared], bracket(rest)])


def _component(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return distinct[0] if len(distinct) == 1 else bracket(distinct)


def bracket(names: Iterable[str]) -> str:
    """`[0-11]`, `[0,2,5]`, `[0-3,5]` or `[first,second]`."""
    distinct = list(dict.fromkeys(names))
    if not all(name.isdecimal() for name in distinct):
        return f"[{','.join(distinct)}]"
    numbers = sorted({int(name) for name in distinct})
    if numbers[-1] - numbers[0] == len(numbers) - 1 and len(numbers) > 1:
        return f"[{numbers[0]}-{numbers[-1]}]"
    return f"[{','.join(_runs(numbers))}]"


def _runs(numbers: list[int]) -> Iterable[str]:
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            run = numbers[start:at]
            yield from [f"{run[0]}-{run[-1]}"] if len(run) >= _SHORTEST_RUN else map(str, run)
            start = at


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
