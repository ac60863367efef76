"""A model and a tracer that stand in for the real ones, so that the command is tested without torch."""

from __future__ import annotations

from functools import partial

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.protocols import ModelAdapter, PartialTrace, Sight
from llm_perf_opt.core.source_figures import BlindSpot, Method, SourceFigures
from llm_perf_opt.core.target import ExpectedCalls, Stage, Target, stated
from llm_perf_opt.core.workload import Workload
from tests.cli.options import StandInWorkload

ROWS = 3  # the one matmul of a phase is (ROWS, 4) times (4, 5): 2 * 3 * 4 * 5 = 120 FLOPs
FLOPS = 120
THREE_HEADS = ExpectedCalls(what="heads", formula="3 heads x 1 forward", calls=3, paths="head")


class StandInAdapter:
    """Two phases, unless no token is decoded; `mode=odd` adds an op that nobody can price.

    `mode=broken` raises in every phase after the matmul, `mode=broken-decode` in the decode alone. `mode=miscounted`
    states more calls than there are.
    """

    title = "a stand-in"
    workload_type = StandInWorkload

    def targets(self, asked: Workload) -> tuple[Target, ...]:
        workload = StandInWorkload.of(asked)
        phases = ("prefill", "decode") if workload.decode_steps else ("prefill",)
        return tuple(
            Target(
                model="stand-in",
                phase=phase,
                workload={"mode": workload.mode},
                build=lambda: None,
                invoke=lambda built: None,
                stages=(Stage(name="head", paths=("head",)),),
                runtime=stated([THREE_HEADS] if workload.mode == "miscounted" else []),
            )
            for phase in phases
        )


class StandInTracer:
    """Prints, as some models do, and records one matmul in the module `head`."""

    sees = frozenset({Sight.MODULES, Sight.OPS})
    takes = frozenset({"routing", "device"})

    def __init__(self, routing: str = "balanced", device: str = "cuda") -> None:
        self.routing, self.device = routing, device

    def trace(self, target: Target) -> CallGraph:
        print("a model prints from its forward")
        builder = CallGraphBuilder()
        left, weight, out = (builder.meta(shape, "float32", self.device) for shape in ((ROWS, 4), (4, 5), (ROWS, 5)))
        builder.module("", "StandIn", ("head",), {})
        builder.module("head", "Head", (), {"out_features": 5})
        builder.parameter("head.weight", weight, 1, 80, is_buffer=False)
        builder.allocate(2, 48, "input")
        builder.enter("", [(left, 2)])
        builder.enter("head", [(left, 2)])
        builder.allocate(3, 60)
        builder.op(
            OpKind(name="aten.mm.default", inputs=(left, weight), outputs=(out,), output_aliases=(-1,)), (2, 1), (3,)
        )
        if target.workload["mode"] == "odd":
            builder.allocate(4, 60)
            builder.op(OpKind(name="odd.scan.default", inputs=(out,), outputs=(out,), output_aliases=(-1,)), (3,), (4,))
        finish = partial(
            builder.finish,
            model=target.model,
            phase=target.phase,
            tracer=f"stand-in, {self.routing}",
            workload=target.workload,
            stages=[(stage.name, stage.paths) for stage in target.stages],
            runtime=target.runtime,
            library_versions={},
        )
        if target.workload["mode"] in ("broken", f"broken-{target.phase}"):
            raise PartialTrace(finish(stopped_in="head"), RuntimeError(f"no {target.phase} today"))
        builder.leave([(out, 3)])
        builder.leave([(out, 3)])
        return finish()


class WrongSource:
    """Agrees with nobody."""

    runs_model = False

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        return (SourceFigures(source="wrong", phase="prefill", stage="head", method=Method.ISOLATED, flops=FLOPS + 7),)


class VagueSource:
    """Has a figure for the prefill, and none for the decode."""

    runs_model = False

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        return tuple(
            SourceFigures(source="vague", phase=phase, stage=phase, method=Method.ISOLATED, flops=flops)
            for phase, flops in (("prefill", FLOPS), ("decode", None))
        )


class PartialSource:
    """Counts the prefill in full and leaves a kernel of the decode out, of which it knows the size."""

    runs_model = False

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        spot = BlindSpot(cause="fused-attention-uncounted", operator="odd.attend", calls=2, flops=20)
        return tuple(
            SourceFigures(
                source="partial", phase=phase, stage=phase, method=Method.ISOLATED, flops=flops, blind_spots=spots
            )
            for phase, flops, spots in (("prefill", FLOPS, ()), ("decode", FLOPS - 20, (spot,)))
        )
