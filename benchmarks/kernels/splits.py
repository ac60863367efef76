"""What is left out of a table: whole shapes, whole lines of the grid, and its far end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.subjects import Subject

_SHARE = 0.1  # of the shapes
_EVERY = 3  # one line of so many
_FAR = 0.8  # of an axis: lines beyond are its far end


@dataclass(frozen=True, slots=True)
class Split:
    """Rows that are left out, and those of them that are asked for."""

    kind: str
    left_out: NDArray[np.bool_]
    asked: NDArray[np.bool_]


def shapes_left_out(subject: Subject, seed: int) -> Split | None:
    """A tenth of the shapes, with every row they have. None: too few shapes to leave one out."""
    table = np.stack([subject.columns[name] for name in subject.shape], axis=1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    random = np.random.default_rng(seed)
    count = max(1, round(_SHARE * len(distinct)))
    if len(distinct) < 4:
        return None
    chosen = np.zeros(len(distinct), np.bool_)
    chosen[random.choice(len(distinct), count, replace=False)] = True
    left_out = chosen[which.reshape(-1)]
    return Split("shapes", left_out, left_out)


def lines_left_out(subject: Subject, seed: int) -> Iterator[Split]:
    """Whole lines of one axis, of the last two and of all; asked for are the rows on as many left-out lines."""
    off = {name: _on_chosen_line(subject.columns[name], seed) for name in subject.lines}
    several = [subject.lines[-count:] for count in range(2, len(subject.lines) + 1)]
    for names in (*((name,) for name in subject.lines), *several):
        on_lines = np.stack([off[name] for name in names])
        if (asked := on_lines.all(axis=0)).any():
            yield Split(f"{len(names)} lines", on_lines.any(axis=0), asked)


def far_end_left_out(subject: Subject) -> Iterator[Split]:
    """The largest values of one axis."""
    for name in subject.lines:
        levels = np.unique(subject.columns[name])
        far = subject.columns[name] > levels[int(_FAR * (len(levels) - 1))]
        if far.any() and not far.all():
            yield Split("far end", far, far)


def _on_chosen_line(column: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Whether each row lies on one of the inner lines that a seed chooses; never two next to each other."""
    levels = np.unique(column)
    chosen = levels[1 + seed % _EVERY : -1 : _EVERY]
    return np.isin(column, chosen)
