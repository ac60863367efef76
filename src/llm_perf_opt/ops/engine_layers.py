"""Fused ops of vLLM around its matmuls: norms, gated activations, rotary embedding, quantised matmuls, experts.

Its kernels write into tensors that they are given: what is written stands among the inputs, and is counted there.
"""

from __future__ import annotations

from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.cost import Formula, OpCost, bytes_of, elements, operand
from llm_perf_opt.ops.kernel_shape import ExpertsShape, MatmulShape
from llm_perf_opt.ops.matmuls import matmul
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind, Op, compute_dtype, launches, reads_all, registered
from llm_perf_opt.ops.vector import pointwise

_GATE_STEPS = 6  # an activation of five steps, and the multiplication by the other half
_ROTATION_STEPS = 3  # of each value: two multiplications and a sum
_QUANTISE_STEPS = 4  # magnitude, maximum, scale, round


def scaled_matmul(kind: OpKind) -> OpCost:
    """`out = (a x b) * scales`, written into its first operand."""
    out, left = operand(kind, 0, "out"), operand(kind, 1, "a")
    return OpCost(
        flops=2 * elements(out) * left.shape[-1],
        vector_flops=2 * elements(out),
        bytes_moved=bytes_of(kind.inputs),
    )


def scaled_matmul_kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One matmul in the type of its operands."""
    out, left, right = operand(kind, 0, "out"), operand(kind, 1, "a"), operand(kind, 2, "b")
    rows, columns, depth = elements(out) // out.shape[-1], out.shape[-1], left.shape[-1]
    return (
        Kernel(
            kind=KernelKind.MATMUL,
            dtype=left.dtype,
            flops=cost.flops,
            skippable_flops=0,
            bytes_moved=cost.bytes_moved,
            rows=rows,
            weights=columns * depth,
            shape=MatmulShape(rows=rows, columns=columns, depth=depth, weight_format=right.dtype),
        ),
    )


def gated(kind: OpKind) -> OpCost:
    """Half of each row activated and multiplied with the other half."""
    result = operand(kind, 0, "result")
    return OpCost(vector_flops=_GATE_STEPS * elements(result), bytes_moved=bytes_of(kind.inputs))


def written_first(steps: int) -> Formula:
    """`steps` on each value of the second operand; the first is written."""

    def price(kind: OpKind) -> OpCost:
        return OpCost(vector_flops=steps * elements(kind.inputs[1]), bytes_moved=bytes_of(kind.inputs))

    return price


def reads_unwritten(kind: OpKind) -> list[int]:
    """All that is given, but nothing of what is written."""
    return [0 if place in kind.output_aliases else tensor_bytes(meta) for place, meta in enumerate(kind.inputs)]


def quantised(kind: OpKind) -> OpCost:
    """Values scaled by groups and rounded; everything is read or written once."""
    return OpCost(vector_flops=_QUANTISE_STEPS * max(map(elements, kind.inputs)), bytes_moved=bytes_of(kind.inputs))


def rotation(kind: OpKind) -> OpCost:
    """Queries and keys turned in place, by as many values of each head as the table of angles is wide."""
    turned = _turned(kind)
    table = operand(kind, len(kind.inputs) - 1, "cos_sin_cache")
    width = min(kind.arguments["head_size"], table.shape[-1])
    values = sum(elements(meta) * width // kind.arguments["head_size"] for meta in turned)
    moved = 2 * bytes_of(turned) * width // kind.arguments["head_size"]
    return OpCost(vector_flops=_ROTATION_STEPS * values, bytes_moved=moved + sum(_angles(kind)))


def _turned(kind: OpKind) -> list[TensorMeta]:
    return [meta for meta, name in zip(kind.inputs, kind.input_names, strict=True) if name in ("query", "key")]


def _angles(kind: OpKind) -> tuple[int, int]:
    """Bytes of positions, and of one row of the table for each."""
    positions, table = operand(kind, 0, "positions"), operand(kind, len(kind.inputs) - 1, "cos_sin_cache")
    rows = positions.shape[-1]
    return tensor_bytes(positions), min(tensor_bytes(table), rows * tensor_bytes(table) // max(1, table.shape[0]))


def rotation_reads(kind: OpKind) -> list[int]:
    """Queries, keys, positions, and the rows of the table that they name."""
    sizes = [tensor_bytes(meta) for meta in kind.inputs]
    sizes[kind.input_names.index("cos_sin_cache")] = _angles(kind)[1]
    return sizes


def routed_experts(kind: OpKind) -> OpCost:
    """Rows times the experts that each is sent to, as far as this rank holds them.

    With E experts of which this rank holds e, and balanced routing, `tokens * chosen * e / E` rows meet the `matmuls`
    matrices `[hidden, inner]` of an expert: gate, up and down, or up and down. Only experts with rows are read.
    """
    facts, hidden = kind.arguments, operand(kind, 0, "hidden")
    tokens, experts, chosen = elements(hidden) // hidden.shape[-1], facts["experts"], facts["chosen"]
    share = tokens * chosen * facts["held"]
    choosing = tokens * experts * (experts - 1).bit_length() if "logits" in kind.input_names else 0
    return OpCost(
        flops=2 * share * facts["matmuls"] * hidden.shape[-1] * facts["inner"] // experts,
        vector_flops=choosing + _GATE_STEPS * share * facts["inner"] // experts,
        bytes_moved=sum(experts_reads(kind)) + bytes_of(kind.outputs),
    )


def experts_reads(kind: OpKind) -> list[int]:
    """Bytes read of each input; of the weights only the experts that get rows."""
    facts = kind.arguments
    return [
        size * facts["groups_used"] // facts["held"] if name == "weights" else size
        for size, name in zip(reads_all(kind), kind.input_names, strict=True)
    ]


def experts_kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One grouped kernel, as tables of measured experts list it."""
    facts, hidden = kind.arguments, operand(kind, 0, "hidden")
    tokens = elements(hidden) // hidden.shape[-1]
    rows = max(1, tokens * facts["chosen"] * facts["held"] // facts["experts"])
    weight = operand(kind, 1, "weights")
    return (
        Kernel(
            kind=KernelKind.MATMUL,
            dtype=compute_dtype(kind),
            flops=cost.flops,
            skippable_flops=0,
            bytes_moved=cost.bytes_moved,
            rows=rows,
            weights=cost.flops // (2 * rows),
            shape=ExpertsShape(
                tokens=tokens,
                hidden=hidden.shape[-1],
                inner=facts["inner"] * facts["tensor_ranks"],
                experts=facts["experts"],
                chosen=facts["chosen"],
                tensor_ranks=facts["tensor_ranks"],
                expert_ranks=facts["expert_ranks"],
                weight_format=weight.dtype,
                is_gated=facts["matmuls"] > 2,
            ),
        ),
    )


_norm = partial(Op, kernels=launches(AccessPattern.NORMALISED))
_activation = partial(Op, kernels=launches(AccessPattern.ACTIVATION), reads=reads_unwritten)
_GATED = "silu_and_mul mul_and_silu gelu_and_mul gelu_tanh_and_mul fatrelu_and_mul silu_and_mul_with_clamp"
_QUANTISED = (
    "per_token_group_fp8_quant static_scaled_fp8_quant dynamic_scaled_fp8_quant dynamic_per_token_scaled_fp8_quant"
)


def _kernel_names(names: str) -> str:
    return " ".join(f"_C.{name}" for name in names.split())


OPS = registered(
    {
        "vllm_ir.rms_norm": _norm(price=pointwise(4)),  # square, add, scale, weight
        "vllm_ir.fused_add_rms_norm": _norm(price=pointwise(5)),  # and the sum with the residual
        _kernel_names(f"{_GATED} swigluoai_and_mul situ_and_mul"): _activation(price=gated),
        _kernel_names("gelu_new gelu_fast gelu_quick gelu_tanh"): _activation(price=written_first(8)),
        _kernel_names("relu_squared"): Op(price=written_first(2), reads=reads_unwritten),
        _kernel_names("rotary_embedding"): Op(price=rotation, reads=rotation_reads),
        _kernel_names(_QUANTISED): Op(price=quantised, reads=reads_unwritten),
        _kernel_names("cutlass_scaled_mm"): Op(
            price=scaled_matmul,
            family=WorkFamily.MATMUL,
            kernels=scaled_matmul_kernels,
            reads=reads_unwritten,
        ),
        "vllm.min_latency_fused_qkv_a_proj": Op(price=matmul(0, "input_", "input"), family=WorkFamily.MATMUL),
        "vllm.fp32_router_gemm_dispatch": Op(price=matmul(0, "x"), family=WorkFamily.MATMUL),
        "vllm_moe.routed_experts": Op(
            price=routed_experts, family=WorkFamily.GROUPED, kernels=experts_kernels, reads=experts_reads
        ),
    }
)
