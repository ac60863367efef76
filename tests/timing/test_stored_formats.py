"""The type in which a matmul of stored weights runs, and the rate of a device that has engines for it or has none."""

from __future__ import annotations

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import OpKind
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.priors import efficiency_priors
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.stage_needs import matmul_type
from llm_perf_opt.ops.cost import bytes_in_and_out
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.datasheet_rates import kernel_time
from llm_perf_opt.timing.lower_bound import fastest_peak
from llm_perf_opt.tracing.deployed_traces import redeployed
from tests.costs.made_kinds import kind, tensor

ROWS, INPUTS, OUTPUTS = 4096, 8192, 8192


def matmul(weight: str) -> OpKind:
    return kind(
        "aten.linear.default",
        {"input": tensor(ROWS, INPUTS, dtype="bfloat16"), "weight": tensor(OUTPUTS, INPUTS, dtype=weight)},
        tensor(ROWS, OUTPUTS, dtype="bfloat16"),
        output_aliases=(-1,),
    )


def kernel(weight: str) -> Kernel:
    (only,) = kernels_of(matmul(weight))
    return only


@pytest.mark.parametrize(
    ("weight", "runs_in"),
    [
        ("bfloat16", "bfloat16"),
        ("int4-g128", "bfloat16"),
        ("nf4-g64-double", "bfloat16"),
        ("int8-channel", "bfloat16"),
        ("int8-channel-a8", "int8"),
        ("fp8-block128", "float8_e4m3fn"),
        ("mxfp4", "float4_e2m1fn_x2"),
        ("nvfp4", "float4_e2m1fn_x2"),
        ("nvfp4-a16", "bfloat16"),
    ],
)
def test_a_matmul_runs_in_the_type_of_the_format(weight: str, runs_in: str) -> None:
    assert kernel(weight).dtype == runs_in


def test_the_bytes_are_those_of_the_stored_weight() -> None:
    """Activations in and out are 2 x 4096 x 8192 x 2 bytes; the weight is 4.25 bits a value instead of 16."""
    around = 2 * ROWS * INPUTS * 2
    assert bytes_in_and_out(matmul("bfloat16")) == around + 2 * INPUTS * OUTPUTS
    assert kernel("mxfp4").bytes_moved == around + INPUTS * OUTPUTS * 17 // 32


@pytest.mark.parametrize(
    ("device", "weight", "peak"),
    [
        ("h100-sxm", "fp8", "fp8"),
        ("a100-sxm-80g", "fp8", "fp16"),
        ("a100-sxm-80g", "int8-channel-a8", "int8"),
        ("b200-sxm", "nvfp4", "fp4"),
        ("a100-sxm-80g", "nvfp4", "fp16"),
        ("b200-sxm", "int4-g128", "bf16"),
    ],
)
def test_a_device_counts_with_its_own_engines_or_with_sixteen_bits(device: str, weight: str, peak: str) -> None:
    found = find_device(device)
    assert fastest_peak(kernel(weight).dtype, found) == found.peak_flops_per_s[peak]


@pytest.mark.parametrize("weight", ["fp8", "mxfp4", "nvfp4"])
def test_without_engines_for_it_a_matmul_is_no_faster_than_in_sixteen_bits(weight: str) -> None:
    """A large matmul is bound by its FLOPs, so the slow end of the band is that of 16 bits."""
    device, priors = find_device("a100-sxm-80g"), efficiency_priors()
    wide, narrow = (kernel_time(kernel(name), device, priors).band for name in ("bfloat16", weight))
    assert narrow.high == pytest.approx(wide.high)


def test_with_engines_for_it_a_matmul_takes_half_the_time() -> None:
    device, priors = find_device("h100-sxm"), efficiency_priors()
    wide, narrow = (kernel_time(kernel(name), device, priors).band for name in ("bfloat16", "fp8"))
    assert narrow.high == pytest.approx(wide.high / 2, rel=0.1)


class WeightFirst(torch.nn.Module):
    """`weight @ x`, as the scan of a Mamba layer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        return self.inner.weight @ columns


@pytest.mark.parametrize("weights", ["int4-g128", "nf4", "fp8"])
def test_a_matmul_runs_in_the_type_of_its_activation_wherever_the_weight_stands(weights: str) -> None:
    run = lpo.trace(WeightFirst(), args=(torch.zeros(256, 4, dtype=torch.bfloat16),))
    (graph,) = redeployed(run.graphs, Deployment(weights=weights))
    (matmul,) = anatomy_of(graph).matmuls
    assert matmul.weight.meta.dtype.startswith(weights)
    assert matmul_type(matmul) == ("float8_e4m3fn" if weights == "fp8" else "bfloat16")
    fastest_peak(matmul_type(matmul), find_device("a100-sxm-80g"))
