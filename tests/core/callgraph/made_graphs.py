"""Small graphs made with the builder, each with something that is easy to count wrong."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind, TensorMeta


def finished(builder: CallGraphBuilder, **header: Any) -> CallGraph:
    """The graph, under a header in which every field says something."""
    full: dict[str, Any] = {
        "model": "toy",
        "phase": "prefill",
        "tracer": "weightless",
        "workload": {"batch": 1, "crops": (2, 3)},
        "stages": [("tower", ("vision",)), ("head", ("head", "vision.proj"))],
        "runtime": {"images": 1, "decode_steps": 0},
        "library_versions": {"torch": "2.13.0"},
        "notes": ("made by hand",),
    }
    return builder.finish(**full | header)


def matmul(builder: CallGraphBuilder, rows: int, arguments: Mapping[str, Any] | None = None) -> OpKind:
    """[rows, 4] x [4, 4]: a new object at every call, as a tracer without a cache would make it."""
    x, w = builder.meta((rows, 4), "bfloat16", "cuda"), builder.meta((4, 4), "bfloat16", "cuda")
    return OpKind(
        name="aten.mm.default",
        inputs=(x, w),
        outputs=(x,),
        arguments=arguments or {},
        input_names=("self", "mat2"),
        output_aliases=(-1,),
    )


def declare_toy(builder: CallGraphBuilder) -> None:
    """A root with a vision tower whose projection the head shares, and a container that is never called."""
    builder.module("", "Toy", ("vision", "head", "blocks"), {"hidden_size": 4})
    builder.module("vision", "Tower", ("vision.proj",), {})
    builder.module("vision.proj", "Linear", (), {"in_features": 4, "out_features": 4})
    builder.module("head", "Head", ("vision.proj",), {})
    builder.module("blocks", "ModuleList", ("blocks.0",), {})
    builder.module("blocks.0", "Block", (), {})
    weight = builder.meta((4, 4), "bfloat16", "cuda")
    builder.parameter("vision.proj.weight", weight, 1, 32, is_buffer=False)
    builder.parameter("head.tied", weight, 1, 32, is_buffer=False)
    builder.parameter("mask", builder.meta((2,), "bool", "cuda"), 2, 2, is_buffer=True)


def run_toy(builder: CallGraphBuilder) -> None:
    """Tower and head call the shared projection, one block calls itself, one op runs outside any module.

    Ops: 0 outside; 1 in vision.proj under vision; 2 (a view) in vision; 3 in vision.proj under head; 4 in blocks.0
    under blocks.0. Storages by token: 1 weight, 2 mask, 10 input, 11-13 activations, 99 never allocated.
    """
    x = builder.meta((2, 4), "bfloat16", "cuda")
    view = OpKind(name="aten.view.default", inputs=(x,), outputs=(x,), output_aliases=(0,))
    part = OpKind(name="aten.mul.Tensor", inputs=(x,), outputs=(x,), arguments={"other": float("-inf")})
    gelu = replace(view, name="aten.gelu_.default", mutates=True, parts=(part,))
    builder.allocate(10, 16, "input")
    builder.allocate(11, 16)
    builder.op(matmul(builder, 2), (10, 99), (11,))
    builder.enter("", [(x, 11)])
    builder.enter("vision", [(x, 11)])
    builder.enter("vision.proj", [(x, 11)])
    builder.allocate(12, 16)
    builder.op(matmul(builder, 2), (11, 1), (12,))
    builder.leave([(x, 12)])
    builder.free(11)
    builder.op(view, (12,), (12,))
    builder.leave([(x, 12), (x, 12)])
    builder.enter("head", [(x, 12)])
    builder.enter("vision.proj", [(x, 12)])
    builder.allocate(13, 16)
    builder.op(matmul(builder, 2), (12, 1), (13,))
    builder.leave([(x, 13)])
    builder.leave([(x, 13)])
    builder.free(12)
    builder.enter("blocks.0", [(x, 13)])
    builder.enter("blocks.0", ())
    builder.answer("topk", "balanced", "moe.py:12 in route")
    builder.answer("topk", "balanced", "moe.py:12 in route")
    builder.op(gelu, (13,), (13,))
    builder.leave(())
    builder.leave([(x, 13)])
    builder.leave([(x, 13)])


def toy_graph(**header: Any) -> CallGraph:
    builder = CallGraphBuilder()
    declare_toy(builder)
    run_toy(builder)
    return finished(builder, **header)


def changed(graph: CallGraph, table: str, **columns: list[int]) -> CallGraph:
    """The graph with columns of `ops`, `calls` or `storages` replaced."""
    arrays = {name: array("q", values) for name, values in columns.items()}
    return replace(graph, **{table: replace(getattr(graph, table), **arrays)})


def meta(*shape: int, dtype: str = "bfloat16") -> TensorMeta:
    return TensorMeta(shape, dtype, "cuda")
