"""A small mixture of experts by hand, in which weights are read as they are, transposed, through a view, and copied."""

from __future__ import annotations

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, TensorMeta
from tests.costs.made_kinds import kind

HIDDEN, WIDTH, EXPERTS, VOCABULARY, ROWS = 64, 96, 4, 200, 2


def half(*shape: int) -> TensorMeta:
    return TensorMeta(shape, "bfloat16", "cuda")


WEIGHTS = {
    "embed.weight": ("Embedding", (VOCABULARY, HIDDEN)),
    "layers.0.q.weight": ("Linear", (HIDDEN, HIDDEN)),
    "layers.1.q.weight": ("Linear", (HIDDEN, HIDDEN)),
    "layers.0.up.weight": ("Linear", (WIDTH, HIDDEN)),
    "layers.0.mlp.gate.weight": ("TopKRouter", (EXPERTS, HIDDEN)),
    "layers.0.mlp.experts.gate_up_proj": ("Experts", (EXPERTS, HIDDEN, WIDTH)),  # inputs first, as gpt-oss has it
    "layers.0.mlp.experts.down_proj": ("Experts", (EXPERTS, HIDDEN, WIDTH)),  # outputs first
    "lm_head.weight": ("Linear", (VOCABULARY, HIDDEN)),
}
TOKENS = {name: 1 + place for place, name in enumerate(WEIGHTS)}


def mixture(phase: str = "prefill") -> CallGraph:
    """Every weight takes part in one op; the second linear layer is cast first, so that its matmul reads a copy."""
    run = CallGraphBuilder()
    run.module("", "Model", ("embed", "layers", "lm_head"), {})
    run.module("embed", "Embedding", (), {})
    run.module("lm_head", "Linear", (), {})
    run.module("layers", "ModuleList", ("layers.0", "layers.1"), {})
    run.module("layers.0", "Layer", ("layers.0.q", "layers.0.up", "layers.0.mlp"), {})
    run.module("layers.0.q", "Linear", (), {})
    run.module("layers.0.up", "Linear", (), {})
    run.module("layers.0.mlp", "Moe", ("layers.0.mlp.gate", "layers.0.mlp.experts"), {})
    run.module("layers.0.mlp.gate", "TopKRouter", (), {})
    run.module("layers.0.mlp.experts", "Experts", (), {})
    run.module("layers.1", "Layer", ("layers.1.q",), {})
    run.module("layers.1.q", "Linear", (), {})
    for name, (_, shape) in WEIGHTS.items():
        meta = half(*shape)
        size_bytes = 2
        for side in shape:
            size_bytes *= side
        run.parameter(name, meta, TOKENS[name], size_bytes, is_buffer=False)
    x, wide = half(ROWS, HIDDEN), half(ROWS, WIDTH)
    run.given(90, 2 * ROWS * HIDDEN)
    run.enter("", [(x, 90), (half(*WEIGHTS["layers.0.q.weight"][1]), TOKENS["layers.0.q.weight"])])
    _linear(run, "layers.0.q.weight", 91)
    _linear(run, "layers.0.up.weight", 92)
    _linear(run, "layers.0.mlp.gate.weight", 93)
    stack = half(EXPERTS, HIDDEN, WIDTH)
    run.allocate(94, 2 * ROWS * WIDTH)
    run.op(
        kind("aten._grouped_mm.default", {"self": x, "mat2": stack}, wide, output_aliases=(-1,)),
        (90, TOKENS["layers.0.mlp.experts.gate_up_proj"]),
        (94,),
    )
    turned = half(EXPERTS, WIDTH, HIDDEN)
    down = TOKENS["layers.0.mlp.experts.down_proj"]
    run.op(kind("aten.transpose.int", {"self": stack}, turned, output_aliases=(0,)), (down,), (down,))
    run.allocate(95, 2 * ROWS * HIDDEN)
    run.op(kind("aten._grouped_mm.default", {"self": wide, "mat2": turned}, x, output_aliases=(-1,)), (94, down), (95,))
    square = half(HIDDEN, HIDDEN)
    run.allocate(96, 2 * HIDDEN * HIDDEN)
    run.op(
        kind("aten.clone.default", {"self": square}, square, output_aliases=(-1,)),
        (TOKENS["layers.1.q.weight"],),
        (96,),
    )
    run.allocate(97, 2 * ROWS * HIDDEN)
    run.op(kind("aten.linear.default", {"input": x, "weight": square}, x, output_aliases=(-1,)), (95, 96), (97,))
    _linear(run, "lm_head.weight", 98)
    run.leave([(half(ROWS, VOCABULARY), 98)])
    return run.finish(
        model="mixture",
        phase=phase,
        tracer="hand",
        workload={"batch": 1},
        stages=[],
        runtime={},
        library_versions={},
    )


def _linear(run: CallGraphBuilder, name: str, output: int) -> None:
    shape = WEIGHTS[name][1]
    out = half(ROWS, shape[0])
    run.allocate(output, 2 * ROWS * shape[0])
    run.op(
        kind(
            "aten.linear.default",
            {"input": half(ROWS, HIDDEN), "weight": half(*shape)},
            out,
            output_aliases=(-1,),
        ),
        (90, TOKENS[name]),
        (output,),
    )


def stored(graph: CallGraph) -> dict[str, str]:
    """Parameter name -> dtype."""
    return {parameter.name: parameter.meta.dtype for parameter in graph.parameters}


def storage_bytes(graph: CallGraph, name: str) -> int:
    assert graph.storages is not None
    return next(graph.storages.bytes[parameter.storage] for parameter in graph.parameters if parameter.name == name)


def operand_dtypes(graph: CallGraph) -> list[tuple[str, ...]]:
    """Per op, the dtypes of its inputs."""
    assert graph.ops is not None
    return [tuple(meta.dtype for meta in graph.op_kinds[row].inputs) for row in graph.ops.kind]
