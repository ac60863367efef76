"""Interpolation on a nearly regular grid, in the logarithms of dimensions and of times.

What is interpolated is the logarithm of measured time over the time of a roofline (`times.py`), which varies
slowly. So holes, head sizes between two measured ones and sizes beyond the grid follow the work of the kernel.

Shapes that were measured as a scattered set, each over a regular grid: heads and head sizes, experts and layers.

A shape that was measured reads its own grid. Any other takes a mix of its nearest neighbours in the logarithms of the
dimensions, with weights that are exact for whatever is linear in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.timing.kernels.times import CODE, Codes, Flags, Floats, TimeOrigin

_ON_LINE = 1e-9  # logarithms closer than this are the same grid line
_REACH = 2  # lines on either side that tell how well an axis interpolates
_LEAST_ERROR = 1e-5  # of squared log time, a third of a percent: below is noise
FAILED = 0.3  # of log time: a row that exceeds a larger kernel's time by more is a failed measurement
MEASURED, INSIDE, OUTSIDE = CODE[TimeOrigin.MEASURED], CODE[TimeOrigin.INTERPOLATED], CODE[TimeOrigin.EXTRAPOLATED]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values on every combination of the axes. `states` says which were measured, and how the others were filled.

    `axes` are logarithms in rising order. `states` are codes of `TimeOrigin`: measured, interpolated between measured
    points, or carried beyond the last measured point. Dimensions in front of the axes list separate grids.
    """

    axes: tuple[Floats, ...]
    values: Floats
    states: Codes


def filled(axes: tuple[Floats, ...], values: Floats) -> Grid:
    """The grid with its holes filled: between measured points by interpolation, beyond the last one by its value.

    A hole between points of several axes takes a mean of their interpolations. An axis weighs more where leaving out
    the known points around shows that interpolation along it is closer.
    """
    front = values.ndim - len(axes)
    is_hole = np.isnan(values)
    states = np.where(is_hole, OUTSIDE, MEASURED).astype(np.uint8)
    if not is_hole.any():
        return Grid(axes, values, states)
    total, weight = np.zeros_like(values), np.zeros_like(values)
    for number, axis in enumerate(axes, start=front):
        between = _between_others(values, axis, number)
        error = _local_mean((between - values) ** 2, front)
        share = np.where(np.isnan(between), 0.0, 1.0 / (error + _LEAST_ERROR) ** 2)
        total += np.where(share > 0, between, 0.0) * share
        weight += share
    between_points = is_hole & (weight > 0)
    result = np.where(between_points, total / np.where(weight > 0, weight, 1.0), values)
    states[between_points] = INSIDE
    for number in range(front, values.ndim):
        result = _carried(result, number)
    return Grid(axes, result, states)


def _neighbours(known: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Along the last axis the place of the last known value up to each point, and of the first from it on."""
    count = known.shape[-1]
    places = np.arange(count)
    before = np.maximum.accumulate(np.where(known, places, -1), axis=-1)
    after = np.flip(np.minimum.accumulate(np.flip(np.where(known, places, count), -1), axis=-1), -1)
    return before, after


def _between_others(values: Floats, axis: Floats, number: int) -> Floats:
    """Linear interpolation between the nearest other known values along one axis; NaN beyond the last of them."""
    moved = np.moveaxis(values, number, -1)
    count = moved.shape[-1]
    before, after = _neighbours(~np.isnan(moved))
    edge = np.ones((*before.shape[:-1], 1), np.intp)
    before = np.concatenate([-edge, before[..., :-1]], axis=-1)
    after = np.concatenate([after[..., 1:], count * edge], axis=-1)
    inside = (before >= 0) & (after < count)
    low, high = np.where(inside, before, 0), np.where(inside, after, 0)
    first, second = np.take_along_axis(moved, low, -1), np.take_along_axis(moved, high, -1)
    gap = axis[high] - axis[low]
    share = (axis - axis[low]) / np.where(gap > 0, gap, 1.0)
    return np.moveaxis(np.where(inside, first + share * (second - first), np.nan), -1, number)


def _local_mean(values: Floats, front: int) -> Floats:
    """Mean of the known values within a few lines on every axis; 0 where none is known."""
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0), known.astype(np.float64)
    for number in range(front, values.ndim):
        total, count = _summed(total, number), _summed(count, number)
    mean: Floats = total / np.maximum(count, 1e-12)
    return mean


def _summed(values: Floats, number: int) -> Floats:
    """The sum over the lines within `_REACH` along one axis."""
    moved = np.moveaxis(values, number, -1)
    ends = [(0, 0)] * (moved.ndim - 1) + [(_REACH + 1, _REACH)]
    running = np.cumsum(np.pad(moved, ends), axis=-1)
    result = running[..., 2 * _REACH + 1 :] - running[..., : -(2 * _REACH + 1)]
    return np.moveaxis(result, -1, number)


def _carried(values: Floats, number: int) -> Floats:
    """Holes at the ends of an axis take the value of the last known point."""
    moved = np.moveaxis(values, number, -1)
    before, after = _neighbours(~np.isnan(moved))
    nearest = np.where(before >= 0, before, np.where(after < moved.shape[-1], after, 0))
    taken = np.take_along_axis(moved, nearest, -1)
    return np.moveaxis(np.where(np.isnan(moved), taken, moved), -1, number)


def monotone(values: Floats, axes: Sequence[int], tolerance: float = 0.0) -> Floats:
    """Times that do not fall when a dimension grows: what exceeds any larger kernel's time is lowered to it.

    Log times; NaN is skipped. A point that exceeds the envelope by at most `tolerance` stays: that is noise, and
    lowering it would make every time too short.
    """
    envelope = np.where(np.isnan(values), np.inf, values)
    for number in axes:
        envelope = np.flip(np.minimum.accumulate(np.flip(envelope, number), axis=number), number)
    return np.where(values - envelope > tolerance, envelope, values)


@dataclass(frozen=True, slots=True)
class Position:
    """Where queries lie among the lines of a grid: the line below, the share of the way up, off the lines, outside."""

    below: tuple[NDArray[np.intp], ...]
    share: tuple[Floats, ...]
    off_lines: Codes  # how many axes a query lies between lines of
    is_outside: NDArray[np.bool_]


def position(axes: Sequence[Floats], queries: Sequence[Floats]) -> Position:
    """Locate logarithms of dimensions. Beyond an end the value of the end holds."""
    below, share = [], []
    off_lines = np.zeros(len(queries[0]), np.uint8)
    is_outside = np.zeros(len(queries[0]), np.bool_)
    for axis, query in zip(axes, queries, strict=True):
        inside = np.clip(query, axis[0], axis[-1])
        is_outside |= np.abs(query - inside) > _ON_LINE
        place = np.clip(np.searchsorted(axis, inside + _ON_LINE, side="right") - 1, 0, max(len(axis) - 2, 0))
        gap = axis[np.minimum(place + 1, len(axis) - 1)] - axis[place]
        part = (inside - axis[place]) / np.where(gap > 0, gap, 1.0)
        part = np.where(part < _ON_LINE, 0.0, np.where(part > 1 - _ON_LINE, 1.0, part))
        off_lines += ((part > 0) & (part < 1)).astype(np.uint8)
        below.append(place)
        share.append(part)
    return Position(tuple(below), tuple(share), off_lines, is_outside)


def gathered(
    values: Floats, states: Codes, place: Position, first: NDArray[np.intp] | None = None
) -> tuple[Floats, Codes]:
    """Values at positions, and the worst state of the corners they rest on.

    With `first` the arrays have one more dimension in front, and it says which entry of that each query reads.
    """
    result = np.zeros(len(place.off_lines))
    worst = np.where(place.is_outside, OUTSIDE, np.where(place.off_lines > 0, INSIDE, MEASURED)).astype(np.uint8)
    for corner in product((0, 1), repeat=len(place.below)):
        weight = np.ones(len(result))
        index: list[NDArray[np.intp]] = [] if first is None else [first]
        for step, below, share, size in zip(
            corner, place.below, place.share, values.shape[-len(corner) :], strict=True
        ):
            weight = weight * (share if step else 1.0 - share)
            index.append(np.minimum(below + step, size - 1))
        used = weight > 0
        result += np.where(used, weight * values[tuple(index)], 0.0)
        worst = np.where(used, np.maximum(worst, states[tuple(index)]), worst)
    return result, worst.astype(np.uint8)


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
        of_shapes = [self._of_shape(shape) for shape in distinct]
        values, states = np.stack([value for value, _, _ in of_shapes]), np.stack([state for _, state, _ in of_shapes])
        place = position(self.grid.axes, [np.log(axis) for axis in axes])
        first = which.reshape(-1)
        relative, codes = gathered(values, states, place, first)
        is_mixed = np.array([mixed for _, _, mixed in of_shapes])[first]
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
