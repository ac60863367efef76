"""Points as callers give them: columns of whole numbers, checked before anything is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.sweeps.function.columns import Column, Points
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.program import NoRule


def as_points(given: Mapping[str, Any], domain: Region) -> Points:
    """Numbers, lists and arrays as columns of one length; a single number stands for all points."""
    if given.keys() != domain.keys():
        raise UsageError(
            f"The points have {', '.join(given) or 'no variables'}.",
            why=f"the function is one of {', '.join(domain)}",
            fix="give a number or a list for each of these",
        )
    columns = {name: np.asarray(values) for name, values in given.items()}
    is_whole = all(np.issubdtype(column.dtype, np.integer) and column.ndim <= 1 for column in columns.values())
    lengths = {len(column) for column in columns.values() if column.ndim}
    if not is_whole or len(lengths) > 1:
        raise UsageError(
            "The points are no columns of whole numbers.",
            why="every variable has one whole number for each point, or one for all of them",
            fix="give lists of one length",
        )
    size = lengths.pop() if lengths else 1
    return {name: np.broadcast_to(column.astype(np.int64), (size,)) for name, column in columns.items()}


def first_outside(function: PhaseFunction, points: Points) -> Point | None:
    """The first point that no cell holds."""
    outside: Column = np.flatnonzero(function.cell_of_points(points) < 0)
    return {name: int(column[outside[0]]) for name, column in points.items()} if len(outside) else None


@contextmanager
def sizes_in_range() -> Iterator[None]:
    """A point at which a size is beyond 64 bits, or a loop cannot run as often as it would have to, is refused."""
    try:
        yield
    except NoRule as refusal:
        raise PerfOptError(
            "The program cannot run at such a point.", why=str(refusal), fix="trace the point by itself"
        ) from refusal
    except ArithmeticError as error:
        raise PerfOptError(
            "A size at such a point is beyond 64 bits.",
            why=str(error) or type(error).__name__,
            fix="ask at a smaller batch or context",
        ) from error
