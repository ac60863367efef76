"""Interpolation on a grid, by numbers that follow from a power law or from counting."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.timing.kernels.grid import INSIDE, MEASURED, OUTSIDE, filled, gathered, monotone, position

AXES = (np.log(np.array([1.0, 2.0, 4.0, 16.0])), np.log(np.array([8.0, 64.0, 512.0])))


def power_law(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """log of 3 * first^0.5 * second^1.25."""
    return np.log(3.0) + 0.5 * first + 1.25 * second


def plane() -> np.ndarray:
    return power_law(*np.meshgrid(*AXES, indexing="ij"))


def ask(values: np.ndarray, first: list[float], second: list[float]) -> tuple[np.ndarray, list[int], list[int]]:
    grid = filled(AXES, values)
    place = position(grid.axes, (np.log(first), np.log(second)))
    found, states = gathered(grid.values, grid.states, place)
    return found, states.tolist(), place.off_lines.tolist()


def test_a_grid_point_is_measured_and_exact() -> None:
    found, states, off = ask(plane(), [4.0], [64.0])
    assert np.allclose(found, power_law(np.log([4.0]), np.log([64.0])))
    assert (states, off) == ([MEASURED], [0])


def test_a_power_law_is_interpolated_exactly_between_the_lines() -> None:
    found, states, off = ask(plane(), [3.0, 4.0, 11.0], [64.0, 100.0, 300.0])
    assert np.allclose(found, power_law(np.log([3.0, 4.0, 11.0]), np.log([64.0, 100.0, 300.0])))
    assert states == [INSIDE] * 3
    assert off == [1, 1, 2]


def test_beyond_the_grid_the_value_of_its_end_holds() -> None:
    found, states, _ = ask(plane(), [64.0, 0.5], [64.0, 64.0])
    assert np.allclose(found, power_law(np.log([16.0, 1.0]), np.log([64.0, 64.0])))
    assert states == [OUTSIDE, OUTSIDE]


def test_a_hole_between_points_is_interpolated_and_says_so() -> None:
    values = plane()
    values[1, 1] = np.nan
    found, states, _ = ask(values, [2.0], [64.0])
    assert np.allclose(found, power_law(np.log([2.0]), np.log([64.0])))
    assert states == [INSIDE]


def test_a_hole_follows_the_axis_that_interpolates_well() -> None:
    """Along the first axis the values jump; along the second they are straight."""
    axes = (np.log(2.0 ** np.arange(7)), np.log(2.0 ** np.arange(7)))
    jumps = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    values = jumps[:, None] + 0.1 * np.arange(7)[None, :]
    values[3, 3] = np.nan
    assert abs(filled(axes, values).values[3, 3] - 1.3) < 0.01


def test_a_hole_at_the_end_takes_the_last_value_and_counts_as_beyond() -> None:
    values = plane()
    values[2:, 2] = np.nan
    grid = filled(AXES, values)
    assert grid.states[3, 2] == OUTSIDE
    assert np.isfinite(grid.values).all()


def test_grids_in_front_of_the_axes_do_not_mix() -> None:
    both = np.stack([plane(), plane() + 5.0])
    both[1, 1, 1] = np.nan
    grid = filled(AXES, both)
    assert np.allclose(grid.values[1] - grid.values[0], 5.0)


def test_a_failed_measurement_is_lowered_to_the_time_of_the_larger_kernel() -> None:
    times = np.log(np.array([1.0, 9.0, 2.0, 4.0]))
    assert np.allclose(np.exp(monotone(times, (0,), 0.3)), [1.0, 2.0, 2.0, 4.0])


def test_noise_below_the_tolerance_stays() -> None:
    times = np.log(np.array([1.0, 2.1, 2.0, 4.0]))
    assert np.allclose(np.exp(monotone(times, (0,), 0.3)), [1.0, 2.1, 2.0, 4.0])


def test_missing_points_do_not_lower_others() -> None:
    times = np.array([[1.0, np.nan], [3.0, 2.0]])
    assert np.array_equal(monotone(times, (0, 1), 0.0), np.array([[1.0, np.nan], [2.0, 2.0]]), equal_nan=True)
