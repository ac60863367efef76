"""Fused ops of vLLM: hand-worked numbers, and torch's count of what they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.kernel_shape import ExpertsShape, MatmulShape
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import bytes_read, kernels_of, price

FP8 = "float8_e4m3fn"


def meta(*shape: int, dtype: str = "bfloat16") -> TensorMeta:
    return TensorMeta(shape, dtype, "cuda:0")


def writing(name: str, *named: tuple[str, TensorMeta], writes: tuple[int, ...] = (0,), **arguments: Any) -> OpKind:
    """A kernel that returns nothing: what it writes is among its inputs."""
    inputs = tuple(one for _, one in named)
    return OpKind(
        name=name,
        inputs=inputs,
        outputs=tuple(inputs[place] for place in writes),
        input_names=tuple(name for name, _ in named),
        output_aliases=writes,
        mutates=True,
        arguments=arguments,
    )


def experts(*, tokens: int, held: int = 8, used: int = 8, matmuls: int = 3, ranks: int = 1) -> OpKind:
    """2 of 8 experts `[hidden 16, inner 32]` for each token."""
    up = 2 if matmuls == 3 else 1
    return OpKind(
        name="vllm_moe.routed_experts.default",
        inputs=(meta(tokens, 16), meta(held, up * 32, 16), meta(held, 16, 32), meta(tokens, 8, dtype="float32")),
        outputs=(meta(tokens, 16),),
        input_names=("hidden", "weights", "weights", "logits"),
        output_aliases=(-1,),
        arguments={
            "experts": 8,
            "held": held,
            "groups_used": used,
            "chosen": 2,
            "inner": 32,
            "matmuls": matmuls,
            "tensor_ranks": 1,
            "expert_ranks": ranks,
        },
    )


def priced(kind: OpKind) -> tuple[int, int]:
    cost = price(kind)
    assert cost is not None
    return cost.flops, cost.bytes_moved


@pytest.mark.parametrize("matmuls", [3, 2])
def test_routed_experts_are_what_torch_counts_for_a_loop_over_them(matmuls: int) -> None:
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        for _ in range(2):  # each token meets two experts, here all tokens the same two
            rows = torch.empty(24, 16)
            inner = rows @ torch.empty(16, 32 * (matmuls - 1))
            inner[:, :32] @ torch.empty(32, 16)
    assert priced(experts(tokens=24, matmuls=matmuls))[0] == counter.get_total_flops()


def test_a_rank_with_a_quarter_of_the_experts_does_a_quarter_and_reads_those_with_rows() -> None:
    whole, part = experts(tokens=24), experts(tokens=24, held=2, used=2, ranks=4)
    assert priced(whole)[0] == 4 * priced(part)[0]
    one = (2 * 32 * 16 + 16 * 32) * 2
    assert priced(part)[1] == 2 * (24 * 16 * 2) + 24 * 8 * 4 + 2 * one
    assert bytes_read(experts(tokens=1, used=2)) == (32, 2 * 64 * 16 * 2, 2 * 16 * 32 * 2, 32)


def test_the_kernel_of_experts_is_as_tables_list_it() -> None:
    (kernel,) = kernels_of(experts(tokens=24, held=2, used=2, ranks=4))
    assert kernel.shape == ExpertsShape(
        tokens=24, hidden=16, inner=32, experts=8, chosen=2, tensor_ranks=1, expert_ranks=4
    )
    assert (kernel.rows, kernel.weights) == (12, 3 * 16 * 32)


def test_a_scaled_matmul_runs_in_the_type_of_its_operands() -> None:
    kind = writing(
        "_C.cutlass_scaled_mm.default",
        ("out", meta(6, 256)),
        ("a", meta(6, 128, dtype=FP8)),
        ("b", meta(128, 256, dtype=FP8)),
        ("a_scales", meta(6, 1, dtype="float32")),
        ("b_scales", meta(1, 2, dtype="float32")),
    )
    assert priced(kind) == (2 * 6 * 256 * 128, 6 * 256 * 2 + 6 * 128 + 128 * 256 + 24 + 8)
    (kernel,) = kernels_of(kind)
    assert (kernel.kind, kernel.dtype) == (KernelKind.MATMUL, FP8)
    assert kernel.shape == MatmulShape(rows=6, columns=256, depth=128, weight_format=FP8)
    assert bytes_read(kind) == (0, 6 * 128, 128 * 256, 24, 8)


def test_a_gated_activation_reads_both_halves_and_writes_one() -> None:
    kind = writing("_C.silu_and_mul.default", ("result", meta(4, 32)), ("input", meta(4, 64)))
    cost = price(kind)
    assert cost is not None
    assert (cost.flops, cost.vector_flops, cost.bytes_moved) == (0, 6 * 4 * 32, (4 * 32 + 4 * 64) * 2)
    assert bytes_read(kind) == (0, 4 * 64 * 2)


def test_rotation_turns_queries_and_keys_in_place_and_reads_a_row_of_angles_for_each() -> None:
    kind = writing(
        "_C.rotary_embedding.default",
        ("positions", meta(5, dtype="int64")),
        ("query", meta(5, 8 * 64)),
        ("key", meta(5, 2 * 64)),
        ("cos_sin_cache", meta(1000, 64)),
        writes=(1, 2),
        head_size=64,
    )
    cost = price(kind)
    assert cost is not None
    assert cost.vector_flops == 3 * 5 * 10 * 64
    assert cost.bytes_moved == 2 * 5 * 10 * 64 * 2 + 5 * 8 + 5 * 64 * 2


@pytest.mark.parametrize(
    ("name", "rows"), [("min_latency_fused_qkv_a_proj", "input_"), ("fp32_router_gemm_dispatch", "x")]
)
def test_a_matmul_that_vllm_hides_is_a_linear_layer(name: str, rows: str) -> None:
    kind = OpKind(
        name=f"vllm.{name}.default",
        inputs=(meta(7, 64), meta(24, 64)),
        outputs=(meta(7, 24),),
        input_names=(rows, "weight"),
        output_aliases=(-1,),
    )
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        torch.nn.functional.linear(torch.empty(7, 64), torch.empty(24, 64))
    assert priced(kind)[0] == counter.get_total_flops()


def test_norms_and_quantisation_move_each_tensor_once() -> None:
    norm = OpKind(
        name="vllm_ir.fused_add_rms_norm.maybe_inplace",
        inputs=(meta(4, 32), meta(4, 32), meta(32)),
        outputs=(meta(4, 32), meta(4, 32)),
        input_names=("x", "x_residual", "weight"),
        output_aliases=(-1, -1),
    )
    assert priced(norm) == (0, 4 * 4 * 32 * 2 + 32 * 2)
    quantised = writing(
        "_C.per_token_group_fp8_quant.default",
        ("input", meta(4, 128)),
        ("output_q", meta(4, 128, dtype=FP8)),
        ("output_s", meta(4, 1, dtype="float32")),
        writes=(1, 2),
    )
    assert priced(quantised) == (0, 4 * 128 * 2 + 4 * 128 + 16)
    assert bytes_read(quantised) == (4 * 128 * 2, 0, 0)
