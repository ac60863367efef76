"""Shapes that were measured as a scattered set: exact ones, and mixes of neighbours."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.timing.kernels.grid import INSIDE, MEASURED, OUTSIDE, Configurations, linear_weights

LENGTHS = np.array([1.0, 10.0, 100.0])


def table(heads: list[float], widths: list[float]) -> Configurations:
    """Time is length * heads^0.5, whatever the width; the roofline is length."""
    rows = [(head, width, length) for head in heads for width in widths for length in LENGTHS]
    columns = np.array(rows).T
    log_base = np.log(columns[2])
    return Configurations.of_rows(
        columns[:2], columns[2:], log_base + 0.5 * np.log(columns[0]), log_base, scales=(1.0, 8.0), envelope=None
    )


def test_a_measured_shape_reads_its_own_grid() -> None:
    reading = table([2, 4, 8], [64, 128]).read(([4.0], [128.0]), (np.array([10.0]),))
    assert np.allclose(reading.relative, 0.5 * np.log(4.0))
    assert reading.codes.tolist() == [MEASURED]
    assert reading.is_mixed.tolist() == [False]


def test_a_shape_between_measured_ones_is_mixed_from_its_neighbours() -> None:
    reading = table([2, 4, 8, 16], [64, 128]).read(([6.0], [128.0]), (np.array([30.0]),))
    assert abs(reading.relative[0] - 0.5 * np.log(6.0)) < 0.02
    assert reading.codes.tolist() == [INSIDE]
    assert reading.off_grid.tolist() == [2]  # the shape, and the length


def test_a_shape_beyond_every_measured_one_says_so() -> None:
    reading = table([2, 4, 8], [64, 128]).read(([64.0], [128.0]), (np.array([10.0]),))
    assert reading.codes.tolist() == [OUTSIDE]


def test_many_queries_of_several_shapes_keep_their_order() -> None:
    heads = np.array([8.0, 2.0, 8.0, 4.0])
    reading = table([2, 4, 8], [64]).read((heads, np.full(4, 64.0)), (np.full(4, 10.0),))
    assert np.allclose(reading.relative, 0.5 * np.log(heads))


def test_weights_add_up_to_one_and_favour_the_nearest() -> None:
    weights = linear_weights(np.array([[-0.1, 0.0], [0.2, 0.1], [1.0, -1.0], [-1.0, 1.0]]))
    assert abs(weights.sum() - 1) < 1e-9
    assert weights.argmax() == 0
