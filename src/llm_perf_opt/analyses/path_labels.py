"""One name for many paths: `model.layers.[1-11].mlp.experts.[0-63]`."""

from __future__ import annotations

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
