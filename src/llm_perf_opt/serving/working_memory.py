"""Working memory of a server: the most that a step of chunked prefill and sampling holds besides weights and cache.

Attention and elementwise work are taken as fused, and matmuls of one input as one matmul, as serving engines run
them. So a moment is the results of one matmul and what is made of them for the next, next to the residual stream.

vLLM sizes its cache after a profile run: a forward over a whole chunk, then sampling for as many sequences as it may
run, with top-k and top-p. The peak of live tensors is the larger of the two moments. Each term is a tensor that can be
named in the engine's source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, ops_of
from llm_perf_opt.core.callgraph.stored_findings import kept_in_store
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, anatomy_of
from llm_perf_opt.serving.engines import (
    BatchLimits,
    MemoryTerm,
    SamplerKind,
    ServingEngine,
    cublas_workspace_bytes,
    total_bytes,
)
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineExperts, engine_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardWidths:
    """Values per token on one device.

    `between_matmuls` is the widest pair of a matmul's results and the next matmul's input: in a gated MLP gate, up
    and the activated values. `routed` are the two buffers of all experts that one token takes.
    """

    hidden: int
    vocabulary: int
    between_matmuls: int
    routed: int = 0
    value_bytes: int = 2


@found_once
@kept_in_store("widths of a forward", ForwardWidths)
def forward_widths(graph: CallGraph, *, plan: ParallelPlan, is_last: bool = True) -> ForwardWidths | None:
    """The widths of a decoder on one rank of a plan, from its step `graph`; None where it has no matmul with a weight.

    Matmuls of one input are one matmul, and each is shared as an engine shares it. Only the last stage
    of a pipeline has a head.
    """
    anatomy, blocks = anatomy_of(graph), engine_blocks(graph)
    if not blocks.matmuls:
        return None
    heads = [matmul.columns for matmul in blocks.matmuls if matmul.part is DecoderPart.HEAD]
    layers = [matmul for matmul in blocks.matmuls if matmul.part is not DecoderPart.HEAD and not matmul.is_expansion]
    parts = [layer.shared_by(plan.tp) for layer in layers]
    pairs = [columns + into for (columns, _), (_, into) in pairwise([*parts, (0, blocks.hidden)])]
    return ForwardWidths(
        hidden=blocks.hidden,
        vocabulary=max(heads, default=0) if is_last else 0,
        between_matmuls=max(pairs, default=0),
        routed=max(_routed(blocks.experts, plan.stage_ranks // plan.ep), default=0),
        value_bytes=_value_bytes(graph, anatomy),
    )


def _routed(experts: Sequence[EngineExperts], ranks: int) -> Iterator[int]:
    """For each chosen expert gate and up in one buffer, activated values in the other, none below the hidden width.

    The same buffers hold the experts' inputs and results. Source: `workspace_shapes` of vLLM's Triton experts.
    """
    for block in experts:
        activated = -(-block.inner // ranks)
        projected = 2 * activated if block.is_gated else activated
        yield block.chosen * (max(projected, block.hidden) + max(activated, block.hidden))


def _value_bytes(graph: CallGraph, anatomy: Anatomy) -> int:
    last = graph.op_kinds[ops_of(graph).kind[anatomy.matmuls[-1].row]].outputs[0]
    return tensor_bytes(replace(last, shape=(1,)))


SAMPLING, FORWARD = "sampling", "forward"
_FLOAT_BYTES = 4
_RESIDUAL_COPIES = 3  # the input of a compiled piece, the residual before it and after it: inputs live until it returns
_FULL_SORT_ROWS = 128  # with fewer rows PyTorch sorts all of them at once, with more memory
# Bytes for each logit, tensor by tensor, without the logits themselves and their copy in float32.
_SEGMENTED_SORT = (4, 8, 8, 12)  # values, indices, indices to begin with, CUB's third buffers of keys and indices
_FULL_SORT = (4, 8, 8, 8, 4, 12)  # values, indices, two arrays of (row, index), keys, CUB's third buffers
_TWO_FLOATS = (4, 4)  # FlashInfer: masked logits, probabilities; Triton: probabilities, exponential noise


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderItem:
    """The largest image (or sound) that one request may bring: what it costs in tokens, embeddings and pixels."""

    tokens: int  # that it takes of the prompt, separators included
    embeddings: int  # rows that the encoder hands to the decoder
    input_bytes: int  # of its pixels, as the encoder takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemory:
    """What is alive together at the widest moment of one step."""

    moment: str  # "sampling" or "forward"
    terms: tuple[MemoryTerm, ...]

    @property
    def bytes(self) -> int:
        """The terms added up."""
        return total_bytes(self.terms)


def working_memory(
    widths: ForwardWidths,
    *,
    engine: ServingEngine,
    limits: BatchLimits,
    device: Device,
    encoder: EncoderItem | None = None,
) -> WorkingMemory:
    """The wider of the two moments of a profile run; what both of them hold is counted in either."""
    held = tuple(_held(widths, engine, limits, device, encoder))
    sampling = (*held, *_sampling(widths, engine, limits, device))
    forward = (*held, *_forward(widths, engine, limits))
    if total_bytes(sampling) >= total_bytes(forward):
        return WorkingMemory(moment=SAMPLING, terms=sampling)
    return WorkingMemory(moment=FORWARD, terms=forward)


def _held(
    widths: ForwardWidths, engine: ServingEngine, limits: BatchLimits, device: Device, encoder: EncoderItem | None
) -> Iterator[MemoryTerm]:
    """What lives through the forward and the sampling."""
    yield MemoryTerm(name="cuBLAS workspace", bytes=cublas_workspace_bytes(device))
    if encoder is not None:
        yield MemoryTerm(name="encoder inputs and outputs", bytes=_encoder_bytes(widths, engine, limits, encoder))
    if widths.routed and engine.keeps_expert_workspace:
        yield _expert_buffers(widths, limits)


def _expert_buffers(widths: ForwardWidths, limits: BatchLimits) -> MemoryTerm:
    return MemoryTerm(
        name="buffers of the routed experts", bytes=limits.chunk_tokens * widths.routed * widths.value_bytes
    )


def _sampling(
    widths: ForwardWidths, engine: ServingEngine, limits: BatchLimits, device: Device
) -> Iterator[MemoryTerm]:
    rows, vocabulary = limits.sampled_rows, widths.vocabulary
    if not vocabulary:  # a stage of a pipeline before the last
        return
    hidden = (limits.chunk_tokens + 2 * rows) * widths.hidden * widths.value_bytes
    yield MemoryTerm(name="hidden states of the chunk and of the sampled rows, twice", bytes=hidden)
    yield MemoryTerm(name="logits", bytes=rows * vocabulary * widths.value_bytes)
    if widths.value_bytes != _FLOAT_BYTES:
        yield MemoryTerm(name="logits in float32", bytes=rows * vocabulary * _FLOAT_BYTES)
    yield MemoryTerm(
        name=f"top-k and top-p: {engine.sampler}",
        bytes=rows * vocabulary * sum(_sampler_tensors(engine, rows)),
    )
    if engine.sampler is SamplerKind.TRITON:
        programs = _sampler_programs(device, rows)
        yield MemoryTerm(
            name="a row of logits for each program of the sampler",
            bytes=programs * vocabulary * _FLOAT_BYTES,
        )


def _sampler_tensors(engine: ServingEngine, rows: int) -> tuple[int, ...]:
    if engine.sampler is not SamplerKind.SORT:
        return _TWO_FLOATS
    return _FULL_SORT if rows < _FULL_SORT_ROWS else _SEGMENTED_SORT


def _sampler_programs(device: Device, rows: int) -> int:
    """One for each compute unit, or the power of two that covers the rows; with unknown units as many as rows."""
    units = device.facts.get("compute_units")
    if not isinstance(units, int):
        return rows
    return min(1 << (min(units, rows) - 1).bit_length(), units)


def _forward(widths: ForwardWidths, engine: ServingEngine, limits: BatchLimits) -> Iterator[MemoryTerm]:
    per_value = limits.chunk_tokens * widths.value_bytes
    yield MemoryTerm(
        name="residual stream: before, after, and the result of attention",
        bytes=_RESIDUAL_COPIES * widths.hidden * per_value,
    )
    if widths.routed > widths.between_matmuls and not engine.keeps_expert_workspace:
        yield _expert_buffers(widths, limits)
    else:
        yield MemoryTerm(name="results of a matmul and input of the next", bytes=widths.between_matmuls * per_value)


def _encoder_bytes(widths: ForwardWidths, engine: ServingEngine, limits: BatchLimits, item: EncoderItem) -> int:
    """As many of the largest items as a chunk holds: inputs, outputs, and the outputs once more, filled up to a chunk.

    Source: vllm/v1/worker/utils.py (`MultiModalBudget`) and `profile_run` of vllm/v1/worker/gpu_model_runner.py.
    """
    budget = max(limits.chunk_tokens, item.tokens)
    items = max(1, budget // item.tokens)
    row_bytes = widths.hidden * widths.value_bytes
    padded = budget if engine.pads_encoder_outputs and item.embeddings < budget else 0
    return items * (item.input_bytes + (item.embeddings + padded) * row_bytes)
