"""Shapes that were measured as a scattered set, each over a regular grid: heads and head sizes, experts and layers.

A shape that was measured reads its own grid. Any other takes a mix of its nearest neighbours in the logarithms of the
dimensions, with weights that are exact for whatever is linear in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.timing.kernels.grid import INSIDE, OUTSIDE, Grid, filled, gathered, monotone, position
from llm_perf_opt.timing.kernels.times import Codes, Flags, Floats

_SAME = 1e-9
_NEIGHBOURS = 8
_RIDGE = 0.05  # of the squared distances: how far weights may lean on a trend that few neighbours show


@dataclass(frozen=True, slots=True)
class Reading:
    """What a set of shapes says of queries: log of time over roofline, state, dimensions off the grid, mixed shapes."""

    relative: Floats
    codes: Codes
    off_grid: Codes
    is_mixed: Flags


@dataclass(frozen=True, slots=True)
class Configurations:
    """`shapes` are logarithms times `scales`, one row for each measured shape; `grid` has one grid for each.

    A dimension with a larger scale counts for more in what is near: kernels differ more by head size than by heads.
    """

    shapes: Floats
    grid: Grid
    scales: Floats
    _mixed: dict[bytes, tuple[Floats, Codes]] = field(default_factory=dict)

    @classmethod
    def of_rows(
        cls,
        shapes: Sequence[NDArray[np.int64] | Floats],
        axes: Sequence[NDArray[np.int64] | Floats],
        log_seconds: Floats,
        log_roofline: Floats,
        *,
        scales: Sequence[float],
        envelope: float | None,
    ) -> Configurations:
        """The set of rows. `envelope`: see `monotone`, along every axis; None leaves the times as they are."""
        table = np.stack([np.asarray(column, np.float64) for column in shapes], axis=1)
        distinct, which = np.unique(table, axis=0, return_inverse=True)
        levels = [np.unique(np.asarray(axis, np.float64), return_inverse=True) for axis in axes]
        size = (len(distinct), *(len(level) for level, _ in levels))
        times, base = np.full(size, np.nan), np.full(size, np.nan)
        place = (which.reshape(-1), *(index for _, index in levels))
        times[place], base[place] = log_seconds, log_roofline
        if envelope is not None:
            times = monotone(times, range(1, times.ndim), envelope)
        weights = np.asarray(scales, np.float64)
        return cls(
            np.log(distinct) * weights, filled(tuple(np.log(level) for level, _ in levels), times - base), weights
        )

    def read(self, shapes: Sequence[Floats], axes: Sequence[Floats]) -> Reading:
        """Queries as plain dimensions."""
        queries = np.log(np.stack(shapes, axis=1)) * self.scales
        distinct, which = np.unique(queries, axis=0, return_inverse=True)
        found = [self._of_shape(shape) for shape in distinct]
        values, states = np.stack([one for one, _, _ in found]), np.stack([one for _, one, _ in found])
        place = position(self.grid.axes, [np.log(axis) for axis in axes])
        first = which.reshape(-1)
        relative, codes = gathered(values, states, place, first)
        is_mixed = np.array([mixed for _, _, mixed in found])[first]
        return Reading(relative, codes, (place.off_lines + is_mixed).astype(np.uint8), is_mixed)

    def _of_shape(self, shape: Floats) -> tuple[Floats, Codes, bool]:
        distances = np.abs(self.shapes - shape).max(axis=1)
        nearest = int(distances.argmin())
        if distances[nearest] < _SAME:
            return self.grid.values[nearest], self.grid.states[nearest], False
        key = shape.tobytes()
        if key not in self._mixed:
            self._mixed[key] = self._mix(shape)
        return *self._mixed[key], True

    def _mix(self, shape: Floats) -> tuple[Floats, Codes]:
        offsets = self.shapes - shape
        order = np.argsort((offsets**2).sum(axis=1), kind="stable")[:_NEIGHBOURS]
        weights = linear_weights(offsets[order])
        values = np.tensordot(weights, self.grid.values[order], axes=1)
        is_inside = (self.shapes.min(axis=0) - _SAME <= shape).all() and (
            shape <= self.shapes.max(axis=0) + _SAME
        ).all()
        used = self.grid.states[order][np.abs(weights) > _SAME]
        worst = np.maximum(used.min(axis=0), INSIDE if is_inside else OUTSIDE).astype(np.uint8)
        return values, worst


def linear_weights(offsets: Floats) -> Floats:
    """Weights of neighbours at these offsets: near ones count most, and a linear trend through them is followed.

    A weighted least-squares plane through the neighbours, read at offset 0. The ridge keeps the weights small where the
    neighbours do not span a direction.
    """
    squared = (offsets**2).sum(axis=1)
    near = 1.0 / (squared + 1e-6)
    design = np.concatenate([np.ones((len(offsets), 1)), offsets], axis=1)
    ridge = np.diag([0.0, *([_RIDGE * float((near * squared).sum())] * offsets.shape[1])])
    normal = (design * near[:, None]).T @ design + ridge
    weights: Floats = np.linalg.solve(normal, (design * near[:, None]).T)[0]
    return weights
