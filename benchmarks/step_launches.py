"""The launches of a step as two sides list them, our model of a step and vLLM's own code, and what differs by cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, ProductShape, StateShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels

Launch = tuple[str, tuple[int, ...]]  # what is launched, and its sizes
Launches = dict[Launch, tuple[int, int]]  # how often, and the FLOPs of all of them

WHOLE_MIXER: Launch = ("mixer in one op", ())  # of Mamba-1, with its products and reductions
_NORMS, _STATES = ("rms_norm", "layer_norm"), ("mamba", "gdn_attention", "kda_attention", "short_conv")
_ACTIVATIONS = ("_and_mul", "and_silu", "gelu", "relu", "silu")


def launch_of(kernel: Kernel) -> Launch | None:
    """What a kernel is, whoever listed it; None: a vector kernel, which its shape does not tell."""
    shape, collective = kernel.shape, kernel.collective
    if collective is not None:
        return str(collective.kind), (collective.payload_bytes, collective.group.size)
    if isinstance(shape, ProductShape):
        sizes = (shape.rows, shape.columns, shape.depth)
        return ("gemm", sizes) if shape.count == 1 else ("batched gemm", (*sizes, shape.count))
    if isinstance(shape, AttentionShape):
        reach = shape.keys if shape.window is None else min(shape.keys, shape.window)
        step = (shape.sequences, shape.queries, reach, shape.heads)
        if shape.latent_rank is not None:
            return "latent attention", (*step, shape.latent_rank)
        return "attention", (*step, shape.key_heads, shape.width, shape.value_width)
    if isinstance(shape, ExpertsShape):
        inner, rows = shape.inner // shape.tensor_ranks, shape.tokens * shape.chosen // shape.expert_ranks
        matrices = round(kernel.flops / (2 * rows * shape.hidden * inner))
        return "experts", (shape.tokens, shape.chosen, shape.experts, shape.hidden, inner, matrices)
    if isinstance(shape, StateShape):
        return "state", ()
    return ("product of unknown sizes", (kernel.flops,)) if kernel.kind is KernelKind.MATMUL else None


def ours(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Launches:
    """By the model of a step. Norms and activations are the vector kernels that blocks without the rest have."""
    bare = replace(blocks, products=(), attentions=(), experts=(), states=None)
    no_layers = replace(bare, layers=0, reduced=0, layer_norms=0, norms=())
    gates = tuple(replace(one, weight_format="bfloat16") for one in blocks.products)
    found = _summed((launch_of(kernel), count, kernel) for kernel, count in forward_kernels(blocks, forward, plan))
    found["norm", ()] = _vectors(bare, forward, plan), 0
    found["activation", ()] = _vectors(replace(no_layers, products=gates), forward, plan), 0
    return {launch: figures for launch, figures in found.items() if figures[0]}


def _vectors(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> int:
    kernels = forward_kernels(blocks, forward, plan)
    return sum(count for kernel, count in kernels if kernel.kind is KernelKind.VECTOR)


def theirs(graph: CallGraph) -> Launches:
    """By vLLM's code. Its torch ops between kernels are left out: it compiles them into their neighbours."""
    counted = Counter(graph.op_kinds[index] for index in ops_of(graph).kind)
    return _summed(
        (launch_of(kernel) or _named(kind.name), count, kernel)
        for kind, count in counted.items()
        for kernel in kernels_of(kind)
    )


def _named(op: str) -> Launch | None:
    """A vector kernel by the name of its op."""
    if op.split(".")[1] == "mamba_mixer":
        return WHOLE_MIXER
    kinds = {"norm": _NORMS, "state": _STATES, "activation": _ACTIVATIONS}
    is_plain = op.startswith("aten.") and "layer_norm" not in op
    return next(((kind, ()) for kind, words in kinds.items() if any(w in op for w in words) and not is_plain), None)


def _summed(listed: Iterable[tuple[Launch | None, int, Kernel]]) -> Launches:
    """Of attention the FLOPs that a causal mask leaves."""
    found: Launches = {}
    for launch, count, kernel in listed:
        if launch is not None:
            before = found.get(launch, (0, 0))
            found[launch] = before[0] + count, before[1] + count * (kernel.flops - kernel.skippable_flops)
    return found


def listed(launches: Launches) -> list[list[Any]]:
    """As JSON: kind, sizes, count, FLOPs."""
    return [[kind, list(sizes), *figures] for (kind, sizes), figures in sorted(launches.items())]


def read(rows: Iterable[Any]) -> Launches:
    return {(kind, tuple(sizes)): (count, flops) for kind, sizes, count, flops in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Launches of one list that are not in the other, with their cause; `flops` are ours without vLLM's."""

    cause: str
    ours: Mapping[Launch, int]
    vllm: Mapping[Launch, int]
    flops: int


def differences(mine: Launches, vllm: Launches, tp: int) -> list[Difference]:
    """What is left when equal launches are taken away, by cause; the last cause takes what no other explains."""
    each = {one: flops // count for listed in (mine, vllm) for one, (count, flops) in listed.items()}
    counts = [Counter({one: count for one, (count, _) in listed.items()}) for listed in (mine, vllm)]
    left, right = counts[0] - counts[1], counts[1] - counts[0]
    found = []
    for cause, alike, holds in CAUSES:
        groups: dict[Any, tuple[Counter[Launch], Counter[Launch]]] = {}
        for place, side in enumerate((left, right)):
            for one, count in side.items():
                if (key := alike(*one)) is not None:
                    groups.setdefault(key, (Counter(), Counter()))[place][one] = count
        for more, fewer in groups.values():
            if holds(more, fewer, tp):
                flops = [sum(each[one] * count for one, count in side.items()) for side in (more, fewer)]
                found.append(Difference(cause=cause, ours=more, vllm=fewer, flops=flops[0] - flops[1]))
                left, right = left - more, right - fewer
    return found


Side = Counter[Launch]


def _columns(side: Side) -> int:
    return sum(sizes[1] * count for (_, sizes), count in side.items())


def _macs(side: Side) -> int:
    return sum(math.prod(sizes) * count for (_, sizes), count in side.items())


def _one_input(kind: str, sizes: tuple[int, ...]) -> Any:
    return (sizes[0], sizes[2]) if kind == "gemm" else None


def _kind(*kinds: str) -> Callable[[str, tuple[int, ...]], Any]:
    return lambda kind, sizes: kind if kind in kinds else None


CAUSES: tuple[tuple[str, Callable[..., Any], Callable[[Side, Side, int], bool]], ...] = (
    (
        "one input: joined here, several GEMMs in vLLM",
        _one_input,
        lambda more, fewer, tp: _columns(more) == _columns(fewer) and more.total() < fewer.total(),
    ),
    (
        "one input: joined in vLLM, several GEMMs here",
        _one_input,
        lambda more, fewer, tp: _columns(more) == _columns(fewer) and more.total() > fewer.total(),
    ),
    (
        "vocabulary padded to a multiple of 64",
        _one_input,
        lambda more, fewer, tp: more.total() == fewer.total() == 1 and 0 < _columns(fewer) - _columns(more) < 64,
    ),
    (
        "replicated in vLLM, split here",
        _one_input,
        lambda more, fewer, tp: more.total() == fewer.total() and _columns(fewer) == tp * _columns(more),
    ),
    (
        "split in vLLM, replicated here",
        _one_input,
        lambda more, fewer, tp: more.total() == fewer.total() and tp * _columns(fewer) == _columns(more),
    ),
    (
        "latent vectors: two batched GEMMs in place of the expansion",
        lambda kind, sizes: "" if "gemm" in kind else None,
        lambda more, fewer, tp: _macs(more) == _macs(fewer) > 0,
    ),
    (
        "experts in mxfp4: vLLM pads hidden and inner size",
        lambda kind, sizes: sizes[:3] if kind == "experts" else None,
        lambda more, fewer, tp: more.total() == fewer.total() and _macs(more) < _macs(fewer),
    ),
    (
        "experts in mxfp4: vLLM reduces padded rows",
        _kind("all-reduce"),
        lambda more, fewer, tp: more.total() == fewer.total() and min(fewer)[1] > max(more)[1],
    ),
    (
        "Mamba-1: vLLM's mixer is one op, which its trace does not open",
        lambda kind, sizes: "" if kind in ("gemm", "all-reduce", "state", WHOLE_MIXER[0]) else None,
        lambda more, fewer, tp: WHOLE_MIXER in fewer,
    ),
    (
        "norms without a weight are not seen here",
        _kind("norm"),
        lambda more, fewer, tp: fewer.total() > 0,
    ),
    (
        "activation in torch ops, or inside an op of a mixer",
        _kind("activation"),
        lambda more, fewer, tp: more.total() > 0,
    ),
    ("not explained", lambda kind, sizes: kind, lambda more, fewer, tp: True),
)
