"""One label for many module paths: `model.layers.[1-11].mlp.experts.[0-63]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_NUMBERED = re.compile(r"(?P<prefix>(?:.*_)?)\d+")  # `7` and `expert_7`; the digits of `fc1` are part of a name
_SHORTEST_RUN = 3  # in a list with gaps, fewer than this in a row are written one by one


def label_of(paths: Sequence[str], most_runs: int | None = None) -> str:
    """The components that all paths share, and in brackets those in which they differ.

    Where two components differ, not every combination need be there. Of more than `most_runs` runs of numbers those in
    the middle are left out.
    """
    if len(paths) == 1:
        return paths[0]
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        return ".".join(_component(column, most_runs) for column in zip(*split, strict=True))
    shared = 0
    while all(len(parts) > shared and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    rest = dict.fromkeys(".".join(parts[shared:]) or "(itself)" for parts in split)
    return ".".join([*split[0][:shared], f"[{','.join(rest)}]"])


def path_pattern(path: str) -> str:
    """The path with its numbers left out; paths of one pattern differ in numbers alone."""
    prefixes = ((part, numbered_name(part)) for part in path.split("."))
    return ".".join(part if prefix is None else f"{prefix}*" for part, prefix in prefixes)


def numbered_name(part: str) -> str | None:
    """What is before the number of a numbered sibling, which may be nothing; None for any other name."""
    match = _NUMBERED.fullmatch(part)
    return None if match is None else match["prefix"]


def _component(names: Iterable[str], most_runs: int | None) -> str:
    """`layers`, `[0-11]`, `[0,2,5]`, `[0-3,5]`, `expert_[0-7]` or `[first,second]`."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    (prefix, *others) = {numbered_name(name) for name in distinct}
    if prefix is None or others:
        return f"[{','.join(distinct)}]"
    runs = list(_runs(sorted({int(name.removeprefix(prefix)) for name in distinct})))
    if most_runs is not None and len(runs) > most_runs:
        runs[most_runs - 1 : -1] = ["..."]
    return f"{prefix}[{','.join(runs)}]"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            run = numbers[start:at]
            is_range = len(run) >= _SHORTEST_RUN or len(run) == len(numbers) > 1
            yield from [f"{run[0]}-{run[-1]}"] if is_range else map(str, run)
            start = at
