"""Attention of an engine that keeps keys and values in pages: vLLM's ops, which say their heads and lengths themselves.

All sequences of a step are of one length: `new_tokens` queries each, behind `cached_tokens` in the cache. As for any
attention, a causal mask does not reduce the count; a window does, since older keys are not even kept.

Latent attention has two forms. A step of one token stays in the latent space: queries are taken there, each meets one
shared vector of `rank + rotary` per token, and the result is taken back. A step of several tokens expands the latent
vectors of the whole context to keys and values first. Sizes: h heads, r latent rank, p plain, o rotary and v value
width, B sequences, n new tokens, k keys.

    one token:   2Bh (p r + (2r + o) k + r v)
    several:     2B (k r h (p + v) + h (p + o + v) n k)
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.attention import SOFTMAX_STEPS
from llm_perf_opt.ops.cost import OpCost, bytes_of, elements
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind, Op, OpRole, compute_dtype, registered

_SCORE_STEPS = SOFTMAX_STEPS + 1  # and the scale
CACHE = "kv_cache"  # the name of the input that holds keys and values of all tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The batch of an op, and the keys that each of its queries can meet."""

    sequences: int
    queries: int
    before: int
    window: int | None

    @property
    def keys(self) -> int:
        """Tokens that the kernel of one sequence looks at."""
        reach = self.before + self.queries
        return reach if self.window is None else min(reach, self.window)

    @property
    def visible_pairs(self) -> int:
        """Pairs of one head and sequence that a causal mask and the window leave."""
        last = self.before + self.queries
        if self.window is None:
            return self.queries * (self.before + 1 + last) // 2
        growing = min(max(self.window - self.before, 0), self.queries)
        return growing * (2 * self.before + growing + 1) // 2 + (self.queries - growing) * self.window


def _step(kind: OpKind) -> _Step:
    facts = kind.arguments
    return _Step(
        sequences=facts["sequences"],
        queries=facts["new_tokens"],
        before=facts["cached_tokens"],
        window=facts.get("window"),
    )


def _named(kind: OpKind, name: str) -> list[TensorMeta]:
    return [meta for meta, given in zip(kind.inputs, kind.input_names, strict=True) if given == name]


def _cache_format(kind: OpKind) -> str:
    caches = _named(kind, CACHE)
    return caches[0].dtype if caches else kind.inputs[1].dtype


def _values_bytes(kind: OpKind, values: int) -> int:
    """What this many values take in the type of the cache."""
    return tensor_bytes(TensorMeta((values,), _cache_format(kind), ""))


def attention_kernels(kind: OpKind, _: OpCost | None = None) -> tuple[Kernel, ...]:
    """One fused kernel on the pages: queries in, results out, every key and value of the context read once."""
    facts, step = kind.arguments, _step(kind)
    heads, key_heads = facts["heads"], facts["key_heads"]
    width, value_width = facts["width"], facts["value_width"]
    pairs = step.sequences * step.queries * step.keys
    flops_per_pair = 2 * heads * (width + value_width)
    cached = _values_bytes(kind, step.sequences * step.keys * key_heads * (width + value_width))
    visible = step.sequences * step.visible_pairs if facts.get("is_causal", True) else pairs
    return (
        Kernel(
            kind=KernelKind.ATTENTION,
            dtype=compute_dtype(kind),
            flops=flops_per_pair * pairs,
            skippable_flops=flops_per_pair * max(0, pairs - visible),
            bytes_moved=tensor_bytes(kind.inputs[0]) + tensor_bytes(kind.outputs[0]) + cached,
            sequences=step.sequences,
            queries=step.queries,
            shape=AttentionShape(
                sequences=step.sequences,
                queries=step.queries,
                keys=step.before + step.queries,
                heads=heads,
                key_heads=key_heads,
                width=width,
                value_width=value_width,
                is_causal=bool(facts.get("is_causal", True)),
                window=step.window,
                cache_format=_cache_format(kind),
            ),
        ),
    )


def attention(kind: OpKind) -> OpCost:
    """Scores and weighted sum over every pair of query and kept key."""
    step = _step(kind)
    return _sum_of(attention_kernels(kind), step.sequences * step.queries * step.keys * kind.arguments["heads"])


def latent_attention(kind: OpKind) -> OpCost:
    """By the form that the number of new tokens asks for."""
    step = _step(kind)
    return _sum_of(latent_kernels(kind), step.sequences * step.queries * step.keys * kind.arguments["heads"])


def latent_kernels(kind: OpKind, _: OpCost | None = None) -> tuple[Kernel, ...]:
    """Attention, and the matmuls that take queries, keys and values into the latent space or out of it."""
    return _absorbed(kind) if kind.arguments["new_tokens"] == 1 else _expanded(kind)


def _absorbed(kind: OpKind) -> tuple[Kernel, ...]:
    facts, step = kind.arguments, _step(kind)
    heads, rank = facts["heads"], facts["latent_rank"]
    plain, rotary, value = facts["plain_width"], facts["rotary_width"], facts["value_width"]
    rows, latent = step.sequences, rank + rotary
    item = _item_bytes(kind.inputs[0])
    attention_bytes = rows * heads * (latent + rank) * item + _values_bytes(kind, rows * step.keys * latent)
    return (
        _matmul(kind, rows, columns=rank, depth=plain, count=heads),
        Kernel(
            kind=KernelKind.ATTENTION,
            dtype=compute_dtype(kind),
            flops=2 * rows * heads * (latent + rank) * step.keys,
            skippable_flops=0,
            bytes_moved=attention_bytes,
            sequences=rows,
            queries=1,
            shape=_latent_shape(kind, width=latent, value_width=rank, key_heads=1),
        ),
        _matmul(kind, rows, columns=value, depth=rank, count=heads),
    )


def _expanded(kind: OpKind) -> tuple[Kernel, ...]:
    facts, step = kind.arguments, _step(kind)
    heads, rank = facts["heads"], facts["latent_rank"]
    plain, rotary, value = facts["plain_width"], facts["rotary_width"], facts["value_width"]
    pairs = step.sequences * step.queries * step.keys
    flops_per_pair = 2 * heads * (plain + rotary + value)
    expanded = step.sequences * step.keys * heads * (plain + rotary + value) * _item_bytes(kind.inputs[0])
    return (
        _matmul(kind, step.sequences * step.keys, columns=heads * (plain + value), depth=rank, count=1),
        Kernel(
            kind=KernelKind.ATTENTION,
            dtype=compute_dtype(kind),
            flops=flops_per_pair * pairs,
            skippable_flops=flops_per_pair * (pairs - step.sequences * step.visible_pairs),
            bytes_moved=tensor_bytes(kind.inputs[0]) + tensor_bytes(kind.outputs[0]) + expanded,
            sequences=step.sequences,
            queries=step.queries,
            shape=_latent_shape(kind, width=plain + rotary, value_width=value, key_heads=heads),
        ),
    )


def _latent_shape(kind: OpKind, *, width: int, value_width: int, key_heads: int) -> AttentionShape:
    step = _step(kind)
    return AttentionShape(
        sequences=step.sequences,
        queries=step.queries,
        keys=step.before + step.queries,
        heads=kind.arguments["heads"],
        key_heads=key_heads,
        width=width,
        value_width=value_width,
        is_causal=True,
        latent_rank=kind.arguments["latent_rank"],
        cache_format=_cache_format(kind),
    )


def _matmul(kind: OpKind, rows: int, *, columns: int, depth: int, count: int) -> Kernel:
    """A matmul with the weight that expands latent vectors, or with the part of it that belongs to each head."""
    weights = columns * depth * count
    projection = _named(kind, "kv_b_proj")
    share = bytes_of(projection) * weights // max(1, elements(projection[0])) if projection else 0
    moved = rows * count * (columns + depth) * _item_bytes(kind.inputs[0]) + share
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=compute_dtype(kind),
        flops=2 * rows * weights,
        skippable_flops=0,
        bytes_moved=moved,
        rows=rows,
        weights=weights,
        shape=MatmulShape(
            rows=rows,
            columns=columns,
            depth=depth,
            count=count,
            weight_format=projection[0].dtype if projection else compute_dtype(kind),
        ),
    )


def _item_bytes(meta: TensorMeta) -> int:
    return tensor_bytes(TensorMeta((1,), meta.dtype, ""))


def _sum_of(kernels: tuple[Kernel, ...], scores: int) -> OpCost:
    return OpCost(
        flops=sum(kernel.flops for kernel in kernels),
        vector_flops=_SCORE_STEPS * scores,
        bytes_moved=sum(kernel.bytes_moved for kernel in kernels),
    )


def cache_update(kind: OpKind) -> OpCost:
    """New keys and values read, and written to the cache in its own type."""
    new = [meta for meta, name in zip(kind.inputs, kind.input_names, strict=True) if name != CACHE]
    return OpCost(bytes_moved=bytes_of(new) + _values_bytes(kind, sum(map(elements, new))))


def attention_reads(kind: OpKind) -> list[int]:
    """Queries and the kept part of the cache; new keys and values are read where the cache holds them."""
    step, facts = _step(kind), kind.arguments
    if "latent_rank" in facts:
        per_key = facts["latent_rank"] + facts["rotary_width"]
    else:
        per_key = facts["key_heads"] * (facts["width"] + facts["value_width"])
    cached = _values_bytes(kind, step.sequences * step.keys * per_key)
    read = {kind.input_names[0]: None, "kv_b_proj": None, CACHE: cached}
    sizes = []
    for meta, name in zip(kind.inputs, kind.input_names, strict=True):
        size = read.get(name, 0)
        sizes.append(tensor_bytes(meta) if size is None else size)
    return sizes


def update_reads(kind: OpKind) -> list[int]:
    """All that is new, and nothing of the cache."""
    return [
        0 if name == CACHE else tensor_bytes(meta) for meta, name in zip(kind.inputs, kind.input_names, strict=True)
    ]


OPS = registered(
    {
        "vllm.unified_attention_with_output": Op(
            price=attention, family=WorkFamily.ATTENTION, kernels=attention_kernels, reads=attention_reads
        ),
        "vllm.unified_mla_attention_with_output": Op(
            price=latent_attention, family=WorkFamily.ATTENTION, kernels=latent_kernels, reads=attention_reads
        ),
        "vllm.unified_kv_cache_update vllm.unified_mla_kv_cache_update": Op(
            price=cache_update, reads=update_reads, role=OpRole.APPEND
        ),
    }
)
