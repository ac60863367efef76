"""Columns of kernels take what each of them takes by itself, to the last digit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution, kernel_time
from llm_perf_opt.timing.kernel_rates import KernelTime, by_bytes, from_memory
from llm_perf_opt.timing.kernels.times import TimeOrigin
from llm_perf_opt.timing.sheet_columns import BOUNDS, KernelColumns, sheet_times
from llm_perf_opt.timing.step.kernel_columns import ForwardKernels
from tests.timing.test_datasheet_rates import matmul, vector

SIZES = [(rows, weights) for rows in (1, 7, 300, 20_000) for weights in (10**6, 3 * 10**7, 2 * 10**8)]
MATMULS = [
    matmul(rows, weights, bytes_moved=2 * weights + 100 * rows, avoidable_bytes=100 * rows) for rows, weights in SIZES
]
ATTENTIONS = [
    Kernel(
        kind=KernelKind.ATTENTION,
        dtype="bfloat16",
        flops=4 * sequences * queries * 9000 * 4096,
        skippable_flops=sequences * queries * 1000,
        bytes_moved=sequences * 9000 * 2048 + 17,
        avoidable_bytes=17,
        sequences=sequences,
        queries=queries,
    )
    for sequences, queries in itertools.product((1, 3, 40, 500), (1, 9000))
]


def _experts(rows: int) -> Kernel:
    shape = ExpertsShape(
        tokens=rows,
        hidden=64,
        inner=32,
        experts=8,
        chosen=2,
        tensor_ranks=1,
        expert_ranks=1,
        weight_format="bfloat16",
        is_gated=True,
        are_rows_sent=False,
    )
    kernel = matmul(rows, 10**6, bytes_moved=8 * 10**6)
    return Kernel(**{name: getattr(kernel, name) for name in kernel.__slots__} | {"shape": shape})


@pytest.mark.parametrize("device", ["h100-sxm", "l4", "mi300x"])
@pytest.mark.parametrize("kernels", [MATMULS, ATTENTIONS, [vector(10**9, 10**8), vector(12)]])
def test_low_high_and_bottleneck_are_those_of_each_kernel(device: str, kernels: list[Kernel]) -> None:
    rates = DataSheetRates(find_device(device), Execution.FUSED)
    alone = [kernel_time(kernel, rates.device, rates.priors) for kernel in kernels]
    low, high, limits = sheet_times(KernelColumns.of(kernels), rates)
    assert low.tolist() == [time.band.low for time in alone]
    assert high.tolist() == [time.band.high for time in alone]
    assert [BOUNDS[place] for place in limits] == [time.bound_by for time in alone]


@pytest.mark.parametrize("device", ["h100-sxm", "l4", "mi300x"])
def test_a_step_by_data_sheet_takes_what_its_kernels_take_one_by_one(device: str) -> None:
    rates = DataSheetRates(find_device(device), Execution.FUSED)
    kernels = [*MATMULS, vector(10**9, 10**8), *ATTENTIONS, _experts(3), vector(12), _experts(900)]
    each = ForwardKernels([[(kernel, 1) for kernel in kernels]]).by_data_sheet(rates)

    def expected(kernel: Kernel) -> float:
        if kernel.kind is KernelKind.VECTOR:
            return by_bytes(kernel, rates.device).seconds
        band = kernel_time(kernel, rates.device, rates.priors).band.expected_in_the_middle()
        time = KernelTime(TimeOrigin.ROOFLINE, band)
        return from_memory(kernel, time, rates.device, rates.best_bandwidth_share).seconds

    assert each.seconds.tolist() == [expected(kernel) for kernel in kernels]


def test_a_collective_takes_what_the_links_take_and_is_unknown_where_no_link_is() -> None:
    all_reduce = Collective(kind=CollectiveKind.ALL_REDUCE, payload_bytes=10**6, group=group_of(range(4)))
    kernel = Kernel(
        kind=KernelKind.COMMUNICATION,
        dtype="bfloat16",
        flops=0,
        skippable_flops=0,
        bytes_moved=10**6,
        collective=all_reduce,
    )
    cluster = parse_cluster("4x h100-sxm")
    linked = DataSheetRates(cluster.device, Execution.FUSED, cluster=cluster)
    alone = DataSheetRates(cluster.device, Execution.FUSED)
    (time,) = linked.duration(kernel) or ()
    forwards = ForwardKernels([[(kernel, 2)]])
    assert forwards.by_data_sheet(linked).seconds.tolist() == [time.band.middle]
    assert np.isnan(forwards.by_data_sheet(alone).seconds).all()


def test_amounts_add_up_for_each_forward_and_number() -> None:
    kernels = ForwardKernels([[(vector(1), 2), (vector(2), 3)], [], [(vector(3), 5)]])
    assert kernels.sums(kernels.counts, np.array([0, 1, 0]), 2) == [[2.0, 3.0], [0.0, 0.0], [5.0, 0.0]]
