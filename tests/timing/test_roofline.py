"""Distinct ops under the roofs, by hand."""

from __future__ import annotations

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.timing.efficiency import op_rooflines, roofline_table
from llm_perf_opt.timing.lower_bound import BoundBy
from tests.costs.small_run import ACTIVATE_BYTES, PROJECT_BYTES, PROJECT_FLOPS, small_run

CARD = Device(
    id="card",
    name="Card",
    vendor="nobody",
    arch="none",
    peak_flops_per_s={"fp32": 256},
    bandwidth_bytes_per_s=512,
    memory_bytes=1000,
)


def test_each_distinct_op_is_held_against_the_roofs() -> None:
    """512 FLOPs at 256 per second take 2 s, 512 bytes at 512 per second 1 s; the run has three such matmuls."""
    assert (PROJECT_FLOPS, PROJECT_BYTES, ACTIVATE_BYTES) == (512, 512, 256)
    matmul, activation = op_rooflines([small_run()], CARD)
    assert (matmul.name, matmul.runs, matmul.shapes) == ("aten.mm.default", 3, "4x8, 8x8")
    assert (matmul.at_roof_s, matmul.intensity, matmul.attainable_flops_per_s) == (6.0, 1.0, 256.0)
    assert matmul.bound_by is BoundBy.COMPUTE
    assert (activation.runs, activation.at_roof_s, activation.intensity) == (4, 2.0, 0.0)
    assert (activation.attainable_flops_per_s, activation.bound_by) == (None, BoundBy.BANDWIDTH)


def test_phases_are_told_apart_and_the_longest_comes_first() -> None:
    ops = op_rooflines([small_run(), small_run(phase="decode")], CARD)
    assert [op.phase for op in ops] == ["prefill", "decode", "prefill", "decode"]
    assert [op.at_roof_s for op in ops] == [6.0, 6.0, 2.0, 2.0]
    assert [row[0] for row in roofline_table(ops[:3]).rows] == ["prefill", "decode", "prefill"]


def test_what_has_no_price_is_not_drawn_at_zero() -> None:
    names = [op.name for op in op_rooflines([small_run(with_unpriced=True)], CARD)]
    assert names == ["aten.mm.default", "aten.relu.default"]
