"""A decode step by hand: a cache of zeros, two layers of three experts each, one table to look into."""

from __future__ import annotations

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from tests.costs.made_kinds import kind, tensor

LAYERS, EXPERTS = 2, 3
X = tensor(4, 8, dtype="bfloat16")
WEIGHT, TABLE, CACHE = tensor(8, 8, dtype="bfloat16"), tensor(100, 8, dtype="bfloat16"), tensor(50, 8, dtype="bfloat16")
IDS = tensor(4, dtype="int64")
X_BYTES, WEIGHT_BYTES, CACHE_BYTES, TABLE_BYTES = 64, 128, 800, 1600
FILL = kind("aten.zeros.default", {}, CACHE, output_aliases=(-1,))
LOOK_UP = kind("aten.embedding.default", {"weight": TABLE, "indices": IDS}, X, output_aliases=(-1,))
LINEAR = kind("aten.linear.default", {"input": X, "weight": WEIGHT}, X, output_aliases=(-1,))
SILU = kind("aten.silu.default", {"self": X}, X, output_aliases=(-1,))
READ = kind("aten.cat.default", {"tensors": CACHE}, CACHE, output_aliases=(-1,))


def made_decode(steps: int = 1) -> CallGraph:
    """Each layer reads the cache and then calls its experts, all of them on the output of the layer before.

    The model returns what each of them made, so that all of it is used.
    """
    run = CallGraphBuilder()
    run.module("", "Model", ("layers",), {})
    run.module("layers", "ModuleList", tuple(f"layers.{layer}" for layer in range(LAYERS)), {})
    tokens = iter(range(1000, 100_000))
    weights = {}
    run.parameter("table", TABLE, 1, TABLE_BYTES, is_buffer=False)
    for layer in range(LAYERS):
        experts = f"layers.{layer}.experts"
        run.module(f"layers.{layer}", "Layer", (experts,), {})
        run.module(experts, "ModuleList", tuple(f"{experts}.{expert}" for expert in range(EXPERTS)), {})
        for expert in range(EXPERTS):
            path = f"{experts}.{expert}"
            run.module(path, "Expert", (f"{path}.up",), {})
            run.module(f"{path}.up", "Linear", (), {})
            weights[path] = token = 10 + layer * EXPERTS + expert
            run.parameter(f"{path}.up.weight", WEIGHT, token, WEIGHT_BYTES, is_buffer=False)

    def op(op_kind: object, inputs: list[int], size_bytes: int) -> int:
        token = next(tokens)
        run.allocate(token, size_bytes)
        run.op(op_kind, inputs, [token])  # type: ignore[arg-type]
        return token

    run.allocate(5, 32, "input")
    cache = op(FILL, [], CACHE_BYTES)
    for _ in range(steps):
        run.enter("", [(IDS, 5)])
        state, returned = op(LOOK_UP, [1, 5], X_BYTES), []
        for layer in range(LAYERS):
            run.enter(f"layers.{layer}", [(X, state)])
            returned.append((CACHE, op(READ, [cache], CACHE_BYTES)))
            given = state
            for expert in range(EXPERTS):
                path = f"layers.{layer}.experts.{expert}"
                run.enter(path, [(X, given)])
                run.enter(f"{path}.up", [(X, given)])
                state = op(LINEAR, [given, weights[path]], X_BYTES)
                run.leave([(X, state)])
                state = op(SILU, [state], X_BYTES)
                returned.append((X, state))
                run.leave([(X, state)])
            run.leave([(X, state)])
        run.leave([(X, state), *returned])
    return run.finish(
        model="made",
        phase="decode",
        tracer="hand",
        workload={},
        stages=[],
        runtime={"decode_steps": steps},
        library_versions={},
    )
