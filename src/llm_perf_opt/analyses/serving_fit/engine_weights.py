"""What the weights take on one device of an engine: the checkpoint's share, and what the engine keeps beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from llm_perf_opt.analyses.serving_fit.engines import Engine, capability_major
from llm_perf_opt.analyses.serving_fit.memory_term import MemoryTerm
from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.records import Parameter
from llm_perf_opt.callgraph.weight_formats import untransposed, weight_format
from llm_perf_opt.hardware import Device

MXFP4 = "mxfp4"
_MXFP4_GROUP = 32
_SCALE_ROWS, _SCALE_COLUMNS = 256, 2  # to which the Hopper layout of Triton's kernels fills the scales up
_HOPPER = 9
_POSITIONS = "max_seq_len_cached"  # what transformers calls the length of a rotary table
_TABLE_VALUE_BYTES = 2


def engine_weights(graph: CallGraph, device: Device, *, engine: Engine, ranks: int = 1) -> tuple[MemoryTerm, ...]:
    """The parts of an engine's weights on one of `ranks` tensor-parallel devices, without those that are empty.

    Matrices and stacks are divided evenly, vectors are whole on every rank. Tied weights count once.
    """
    weights = list(_weights(graph))
    on_hopper = engine.copies_mxfp4_scales and capability_major(device) == _HOPPER
    terms = (
        MemoryTerm(name="weights as stored", bytes=sum(_share(weight, ranks) for weight in weights)),
        MemoryTerm(name="rotary tables", bytes=sum(_rotary_tables(graph).values())),
        MemoryTerm(
            name="swizzled copy of the mxfp4 scales, biases in float32",
            bytes=sum(_mxfp4_copies(weights)) // ranks if on_hopper else 0,
        ),
    )
    return tuple(term for term in terms if term.bytes)


def trained_context(graph: CallGraph) -> int | None:
    """Positions that the longest rotary table holds; None without one."""
    return max((positions for positions, _ in _tables(graph)), default=None)


def _weights(graph: CallGraph) -> Iterator[Parameter]:
    """Every weight once; buffers are tables that the engine makes in its own way."""
    seen: set[int] = set()
    for parameter in graph.parameters:
        if parameter.is_buffer or parameter.storage in seen:
            continue
        if parameter.storage >= 0:
            seen.add(parameter.storage)
        yield parameter


def _share(weight: Parameter, ranks: int) -> int:
    whole = tensor_bytes(weight.meta)
    return whole if len(weight.meta.shape) < 2 else -(-whole // ranks)


def _rotary_tables(graph: CallGraph) -> dict[tuple[int, int], int]:
    """(positions, width) -> bytes: sines and cosines for every position; layers that rotate alike share a table.

    Source: vllm/model_executor/layers/rotary_embedding: `cos_sin_cache` is `[positions, rotary width]`, in the type of
    the model.
    """
    return {(positions, width): positions * width * _TABLE_VALUE_BYTES for positions, width in _tables(graph)}


def _tables(graph: CallGraph) -> Iterator[tuple[int, int]]:
    frequencies = {
        parameter.name.rpartition(".")[0]: parameter.meta.shape[-1]
        for parameter in graph.parameters
        if parameter.is_buffer and parameter.name.endswith("inv_freq") and parameter.meta.shape
    }
    for path, count in frequencies.items():
        positions = graph.constructor_params.get(path, {}).get(_POSITIONS)
        if isinstance(positions, int):
            yield positions, 2 * count


def _mxfp4_copies(weights: list[Parameter]) -> Iterator[int]:
    """Scales once more in the layout of the kernels, filled up to whole tiles, and biases in float32.

    Sources: vllm quantization/mxfp4.py (the scales of the checkpoint stay registered; `w13_bias.to(torch.float32)`) and
    triton_kernels `HopperMXScaleLayout` (rows to a multiple of 256 for 8 warps, groups to a multiple of 2).
    """
    stacks = {weight.name: weight for weight in weights if untransposed(weight.meta.dtype) == MXFP4}
    for weight in stacks.values():
        *stack, rows, columns = weight.meta.shape
        if weight_format(weight.meta.dtype).is_transposed:
            rows, columns = columns, rows
        groups = -(-columns // _MXFP4_GROUP)
        yield math.prod(stack) * _up_to(rows, _SCALE_ROWS) * _up_to(groups, _SCALE_COLUMNS)
    for weight in weights:
        if weight.name.removesuffix("_bias") in stacks and weight.name not in stacks:
            yield 4 * math.prod(weight.meta.shape) - tensor_bytes(weight.meta)


def _up_to(count: int, step: int) -> int:
    return -(-count // step) * step
