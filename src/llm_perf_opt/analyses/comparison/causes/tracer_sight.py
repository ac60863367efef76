"""Two tracers saw different things in one run: tables that one cannot fill, and containers that never run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import ALL, Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.comparison.side import Side

_WITHOUT_FORWARD = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_BLIND_TO = {
    Aspect.MODULE: "the module tree",
    Aspect.WEIGHTS: "weights",
    Aspect.INPUTS: "input tensors",
    Aspect.OUTPUTS: "output tensors",
}


@CAUSES.add("tracer cannot see ops")
def tracer_cannot_see_ops(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One side has no ops, or does not know what they cost: FLOPs and bytes are unknown there, not zero."""
    for difference in differences:
        if difference.path == ALL and difference.aspect is Aspect.OPS:
            blind = _blind_side(pair, difference)
            detail = "counted, their cost unknown" if blind.op_counts else "none seen"
            yield Claim(difference=difference, detail=f"{detail}, by the tracer {blind.graph.tracer!r}")


@CAUSES.add("tracer cannot see")
def tracer_cannot_see(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Another whole table is missing on one side."""
    for difference in differences:
        if difference.path == ALL:
            tracer = _blind_side(pair, difference).graph.tracer
            yield Claim(difference=difference, detail=f"{_BLIND_TO[difference.aspect]}, by the tracer {tracer!r}")


def _blind_side(pair: Pair, difference: Difference) -> Side:
    return pair.left if difference.left == "unknown" else pair.right


@CAUSES.add("container")
def container(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """A class that has no forward cannot have run: one side lists it because of its children.

    What its children lose in edges from the container they gain in edges from the container's own caller.
    """
    for difference in differences:
        for listing in pair.sides:
            if _is_listed_container(listing, difference.path) and difference.aspect in {Aspect.CALLS, Aspect.EDGE}:
                yield Claim(difference=difference, detail=_class_of(listing, difference.path))
            elif difference.aspect is Aspect.EDGE and _came_through_container(listing, difference):
                yield Claim(difference=difference, detail="its children have another caller")


def _class_of(side: Side, path: str) -> str:
    return (side.classes or {}).get(path, "")


def _is_listed_container(side: Side, path: str) -> bool:
    return _class_of(side, path) in _WITHOUT_FORWARD and side.calls.get(path, 0) > 0


def _came_through_container(side: Side, difference: Difference) -> bool:
    """On this side the module was called by a container, which the edge leads from or passes by."""
    through = [caller for caller in side.callers.get(difference.path, {}) if _is_listed_container(side, caller)]
    past = {grand for caller in through for grand in side.callers.get(caller, {})}
    return difference.caller in {*through, *past}
