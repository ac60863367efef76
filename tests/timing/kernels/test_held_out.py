"""A sample of the held-out errors: shapes are left out of a table, and the rest answers for them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kernels.held_out import CHECK, judged, shapes_left_out, spreads
from benchmarks.kernels.subjects import Subject, subjects
from llm_perf_opt.timing.kernels.kernel_tables import Family
from tests.timing.kernels.measured_tables import needs_tables

LIMITS = {Family.MATMULS: 0.04, Family.ATTENTION: 0.08}


@needs_tables
@pytest.mark.parametrize(("system", "family"), [("a100_sxm", Family.MATMULS), ("b60", Family.ATTENTION)])
def test_left_out_shapes_are_met_within_the_limit_and_far_better_than_by_a_roofline(
    system: str, family: Family
) -> None:
    found = []
    for subject in subjects((system,), (family,)):
        split = shapes_left_out(subject, CHECK)
        assert split is not None
        assert not set(_shapes(subject, split.left_out)) & set(_shapes(subject, ~split.left_out))
        found.append(judged(subject, split, CHECK))
    error = float(np.median(np.concatenate([one.errors for one in found])))
    roofline = float(np.median(np.concatenate([one.roofline_errors for one in found])))
    assert error <= LIMITS[family]
    assert roofline > 5 * error


def _shapes(subject: Subject, keep: np.ndarray) -> list[tuple[int, ...]]:
    return list(zip(*(subject.columns[name][keep].tolist() for name in subject.shape), strict=True))


@needs_tables
def test_quantiles_hold_the_middle_eighty_percent_of_the_rows_they_were_taken_from() -> None:
    subject = next(subjects(("a100_sxm",), (Family.MATMULS,)))
    split = shapes_left_out(subject, 0)
    assert split is not None
    one = judged(subject, split, 0)
    (spread,) = [found for found in spreads([one]) if found.system == "a100_sxm" and found.rows > 100]
    inside = (spread.low <= one.ratios) & (one.ratios <= spread.high)
    assert inside.mean() == pytest.approx(0.8, abs=0.02)
