"""The kernels of one micro batch on one rank: each matmul of a layer forward, for its input and for its weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.costs.necessary.decoder_needs import AttentionLayers
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.step.engine_blocks import EngineExperts
from llm_perf_opt.training.model_shape import ModelShape, is_gated
from llm_perf_opt.training.rank_memory import QUANTISED_BYTES, adapter_numbers
from llm_perf_opt.training.training_run import FULL, QLORA, TrainingRun

_TWO = 2  # bytes of bf16
BF16 = "bfloat16"
_FORMATS = {"bf16": BF16, "fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "nvfp4": "nvfp4"}
COMPUTE = {"bf16": BF16, "fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "nvfp4": "float4_e2m1fn_x2"}
_LOSS_BYTES = {"whole": 40.0, "chunked": 40.0, "fused": 12.0}  # moved for each logit, forward and backward


# Kernel launches of a layer's forward; a backward has twice as many.
_COMPILED_LAUNCHES, _EAGER_LAUNCHES, _ADAPTER_LAUNCHES = 20, 60, 50


class Phase(StrEnum):
    """A part of an optimizer step."""

    FORWARD = "forward"
    RECOMPUTE = "recomputation"
    BACKWARD = "backward"
    LOSS = "head and loss"
    COMMUNICATION = "communication not hidden"
    BUBBLE = "pipeline bubble"
    HOST = "copies from the host's memory"
    OPTIMIZER = "optimizer"
    LAUNCHES = "kernel launches not hidden"


Kernels = Mapping[Kernel, float]  # and how often each runs


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Kernels of one micro batch: of all layers of a mean stage, and of the head, which the last stage has."""

    forward: Kernels
    backward: Kernels
    head: Kernels
    attention: Kernels  # forward kernels, of which a backward takes a multiple
    launches: int  # of all layers, forward and backward together


def micro_batch(shape: ModelShape, run: TrainingRun) -> MicroBatch:
    """What one rank runs for one micro batch, as `run.plan` shares it out."""
    forward: defaultdict[Kernel, float] = defaultdict(float)
    backward: defaultdict[Kernel, float] = defaultdict(float)
    attention: defaultdict[Kernel, float] = defaultdict(float)
    share = 1 / run.plan.pp
    for matmul in shape.layer_matmuls:
        rows, columns, depth = round(run.rank_tokens), *matmul.shared_by(run.plan.tp)
        _add(forward, backward, run, (rows, columns, depth, 1), matmul.layers * share)
    for block in shape.blocks.experts:
        for columns, depth in _expert_sizes(block):
            local = block.experts // run.plan.ep
            rows = round(run.rank_tokens * run.plan.ep / run.plan.tp * block.chosen / block.experts)
            _add(forward, backward, run, (max(1, rows), columns, depth, local), block.layers * share)
    for layer in shape.blocks.attentions:
        attention[_attention(shape, layer, run)] += layer.layers * share
    for kernel, moved in _vector(shape, run):
        forward[kernel] += moved * share
        backward[kernel] += 2 * moved * share
    if run.method.has_adapters:
        _add_adapters(forward, backward, shape, run)
    if run.method.kind == QLORA:
        _add_dequantised(forward, backward, shape, run)
    again = 1.0 if run.recompute == "full" else 0.0
    each = _COMPILED_LAUNCHES if run.compiled else _EAGER_LAUNCHES + _ADAPTER_LAUNCHES * run.method.has_adapters
    launches = round(shape.layers * share * each * (3 + again))
    return MicroBatch(
        forward=forward, backward=backward, head=dict(_head(shape, run)), attention=attention, launches=launches
    )


def _add(
    forward: defaultdict[Kernel, float],
    backward: defaultdict[Kernel, float],
    run: TrainingRun,
    size: tuple[int, int, int, int],
    count: float,
) -> None:
    """A matmul `[rows, depth] x [depth, columns]`, the gradient of its input, and of its weight if that is trained."""
    rows, columns, depth, groups = size
    forward[matmul_kernel(run.precision, rows, columns, depth, groups)] += count
    backward[matmul_kernel(run.precision, rows, depth, columns, groups)] += count
    if run.method.kind == FULL:
        backward[matmul_kernel(run.precision, columns, depth, rows, groups)] += count


def matmul_kernel(precision: str, rows: int, columns: int, depth: int, groups: int = 1) -> Kernel:
    """`groups` matmuls in one launch."""
    name = _FORMATS[precision]
    stored = 1 if precision != "bf16" else _TWO
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=COMPUTE[precision],
        flops=2 * rows * columns * depth * groups,
        skippable_flops=0,
        bytes_moved=groups * (stored * (rows * depth + columns * depth) + _TWO * rows * columns),
        rows=rows,
        weights=columns * depth,
        shape=MatmulShape(rows=rows, columns=columns, depth=depth, count=groups, weight_format=name),
    )


def _expert_sizes(block: EngineExperts) -> Iterator[tuple[int, int]]:
    yield (2 if block.is_gated else 1) * block.inner, block.hidden
    yield block.hidden, block.inner


def _attention(shape: ModelShape, layer: AttentionLayers, run: TrainingRun) -> Kernel:
    """The forward of one layer. With context parallel a rank has the queries of its tokens and all keys."""
    heads = max(1, layer.heads // run.plan.tp)
    keys = max(1, shape.blocks.key_heads(layer) // run.plan.tp) if layer.latent is None else heads
    queries = round(run.sequence / run.plan.cp)
    pairs = layer.span.pairs(run.sequence, run.sequence) / run.plan.cp
    widths = layer.qk_width + layer.v_width
    whole = 2 * run.micro_batch * heads * queries * run.sequence * widths
    needed = round(2 * run.micro_batch * heads * pairs * widths)
    moved = _TWO * run.micro_batch * (heads * queries * widths + keys * run.sequence * widths)
    return Kernel(
        kind=KernelKind.ATTENTION,
        dtype=BF16,
        flops=whole,
        skippable_flops=max(0, whole - needed),
        bytes_moved=moved,
        sequences=run.micro_batch,
        queries=queries,
        shape=AttentionShape(
            sequences=run.micro_batch,
            queries=run.sequence,
            keys=run.sequence,
            heads=heads,
            key_heads=keys,
            width=layer.qk_width,
            value_width=layer.v_width,
            is_causal=True,
            window=layer.span.window,
        )
        if run.plan.cp == 1 and layer.qk_width == layer.v_width
        else None,
    )


def vector_kernel(moved: float) -> Kernel:
    """Work that is bound by the bytes it moves."""
    return Kernel(kind=KernelKind.VECTOR, dtype=BF16, flops=0, skippable_flops=0, bytes_moved=round(moved))


def _vector(shape: ModelShape, run: TrainingRun) -> Iterator[tuple[Kernel, float]]:
    """Norms, rotary embedding, activation functions, residual sums and the way of tokens to experts, by their bytes."""
    tokens = run.rank_tokens / run.plan.tp
    columns = sum(m.columns * m.layers for m in shape.layer_matmuls) / max(1, shape.layers)
    eager = 80 * shape.hidden + 6 * columns + (4 * columns if is_gated(shape.blocks) else 0)
    fused = 20 * shape.hidden + 3 * columns
    yield vector_kernel(tokens * (fused if run.compiled else eager)), shape.layers
    for block in shape.blocks.experts:
        each = block.chosen * (8 * block.hidden + (6 if run.compiled else 14) * block.inner)
        yield vector_kernel(tokens * each), block.layers


def _add_adapters(
    forward: defaultdict[Kernel, float], backward: defaultdict[Kernel, float], shape: ModelShape, run: TrainingRun
) -> None:
    """Thin matmuls, priced as what they move: the input of every layer is read again, its result written again."""
    rank, rows = run.method.rank, round(run.rank_tokens)
    if not adapter_numbers(shape, run):
        return
    for matmul in shape.layer_matmuls:
        columns, depth = matmul.shared_by(run.plan.tp)
        count = matmul.layers / run.plan.pp
        for kernel in (
            matmul_kernel("bf16", rows, rank, depth),
            matmul_kernel("bf16", rows, columns, rank),
            vector_kernel(3 * _TWO * rows * columns),
        ):
            forward[kernel] += count
            backward[kernel] += 2 * count


def _add_dequantised(
    forward: defaultdict[Kernel, float], backward: defaultdict[Kernel, float], shape: ModelShape, run: TrainingRun
) -> None:
    """Every 4-bit matrix becomes one of 16 bits before it is multiplied with, forward and backward."""
    for matmul in shape.layer_matmuls:
        columns, depth = matmul.shared_by(run.plan.tp)
        kernel = vector_kernel(columns * depth * (_TWO + QUANTISED_BYTES))
        forward[kernel] += matmul.layers / run.plan.pp
        backward[kernel] += matmul.layers / run.plan.pp


def _head(shape: ModelShape, run: TrainingRun) -> Iterator[tuple[Kernel, float]]:
    """The matmul onto the vocabulary, its two backwards, and the loss."""
    head = shape.head
    if head is None:
        return
    rows, columns, depth = round(run.rank_tokens), max(1, head.columns // run.plan.tp), head.depth
    yield matmul_kernel("bf16", rows, columns, depth), 1
    yield matmul_kernel("bf16", rows, depth, columns), 1
    if run.method.kind == FULL:
        yield matmul_kernel("bf16", columns, depth, rows), 1
    yield vector_kernel(rows * columns * _LOSS_BYTES[run.loss]), 1
