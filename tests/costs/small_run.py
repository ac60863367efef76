"""A run small enough to add up by hand: an encoder called twice, a decoder, one helper that both of them share."""

from __future__ import annotations

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from tests.costs.made_kinds import kind, tensor

X = tensor(4, 8)
PROJECT = kind("aten.mm.default", {"self": X, "mat2": tensor(8, 8)}, X, output_aliases=(-1,))
ACTIVATE = kind("aten.relu.default", {"self": X}, X, output_aliases=(-1,))
VIEW = kind("aten.transpose.int", {"self": X}, tensor(8, 4), output_aliases=(0,))
FUSED = kind("vendor.fused.default", {"x": X, "w": tensor(8, 8)}, X, output_aliases=(-1,))

PROJECT_FLOPS = 2 * 4 * 8 * 8
PROJECT_BYTES = 4 * (32 + 64 + 32)
ACTIVATE_BYTES = 4 * 64
X_BYTES = 4 * 32

MODULES = {
    "": ("encoder", "decoder", "norm"),
    "encoder": (),
    "decoder": (),
    "norm": (),
}
WEIGHTS = {"encoder.weight": 1, "decoder.weight": 2, "head.weight": 2, "norm.weight": 3}  # the head is tied


def small_run(*, phase: str = "prefill", with_unpriced: bool = False) -> CallGraph:
    """Calls: root -> encoder (-> norm) twice, -> decoder (-> norm). Each encoder projects, each norm activates."""
    run = CallGraphBuilder()
    for path, children in MODULES.items():
        run.module(path, "Module", children, {})
    for name, token in WEIGHTS.items():
        run.parameter(name, tensor(8, 8), token, 256, is_buffer=False)
    run.parameter("encoder.table", tensor(8, 8), 4, 256, is_buffer=True)
    run.allocate(10, X_BYTES, "input")
    tokens = iter(range(20, 100))

    def op(op_kind: OpKind, *inputs: int) -> int:
        token = inputs[0] if op_kind is VIEW else next(tokens)
        if op_kind is not VIEW:
            run.allocate(token, X_BYTES)
        run.op(op_kind, inputs, [token])
        return token

    def norm(token: int) -> int:
        run.enter("norm", [(X, token)])
        activated = op(ACTIVATE, token)
        run.leave([(X, activated)])
        run.free(token)
        return activated

    run.enter("", [(X, 10)])
    state = 10
    for _ in range(2):
        run.enter("encoder", [(X, state)])
        state = norm(op(PROJECT, state, 1))
        run.leave([(X, state)])
    op(VIEW, state)
    run.enter("decoder", [(X, state)])
    state = norm(op(FUSED if with_unpriced else PROJECT, state, 2))
    run.leave([(X, state)])
    run.leave([(X, state)])
    op(ACTIVATE, state)
    return finished(run, phase)


def finished(run: CallGraphBuilder, phase: str) -> CallGraph:
    """The graph of a run by hand, with the encoder as a stage of its own."""
    return run.finish(
        model="small",
        phase=phase,
        tracer="hand",
        workload={},
        stages=[("vision", ("encoder",))],
        runtime={},
        library_versions={},
    )
