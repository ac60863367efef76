"""A decode by hand: each step takes a cache of two layers, reads it, and hands on one that is a token longer."""

from __future__ import annotations

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from tests.costs.made_kinds import kind, tensor

HEADS, WIDTH = 2, 8
LAYERS = 2


def cached(tokens: int, batch: int = 1) -> TensorMeta:
    return tensor(batch, HEADS, tokens, WIDTH)


def cached_bytes(tokens: int, batch: int = 1) -> int:
    return 4 * batch * HEADS * tokens * WIDTH


def made_decode(
    *, tokens: int = 5, steps: int = 1, batch: int = 1, phase: str = "decode", given: bool = False
) -> CallGraph:
    """With the cache a step takes token ids and an image; the image is never read, and indices leave as they came.

    The first cache is filled by ops of the run, as older traces have it, or was there before.
    """
    run = CallGraphBuilder()
    run.module("", "Model", (), {})
    numbers = iter(range(100, 10_000))
    ids, image, logits = tensor(batch, 1, dtype="int64"), tensor(batch, 3, 4, 4), tensor(batch, 1, 30)
    look_up = kind("aten.embedding.default", {"weight": tensor(30, 8), "indices": ids}, logits, output_aliases=(-1,))
    held = []
    for _ in range(2 * LAYERS):
        held.append(next(numbers))
        if given:
            run.given(held[-1], cached_bytes(tokens, batch))
        else:
            run.allocate(held[-1], cached_bytes(tokens, batch))
            run.op(_zeros(cached(tokens, batch)), [], held[-1:])
    for step in range(steps):
        before, after = cached(tokens + step, batch), cached(tokens + step + 1, batch)
        run.enter("", [(ids, 1), *((before, token) for token in held), (image, 2)])
        run.allocate(output := next(numbers), 4 * batch * 30)
        run.op(look_up, [3, 1], [output])
        grown = []
        for token in held:
            grown.append(next(numbers))
            run.allocate(grown[-1], cached_bytes(tokens + step + 1, batch))
            run.op(kind("aten.cat.default", {"tensors": before}, after, output_aliases=(-1,)), [token], grown[-1:])
        run.leave([(logits, output), (ids, 1), *((after, token) for token in grown)])
        for token in (output, *held):
            run.free(token)
        held = grown
    return run.finish(
        model="made",
        phase=phase,
        tracer="hand",
        workload={"batch": batch},
        stages=[],
        runtime={},
        library_versions={},
    )


def _zeros(meta: TensorMeta) -> OpKind:
    return kind("aten.zeros.default", {}, meta, output_aliases=(-1,))
