"""Which trace is held against which: phases of one name, or two files whatever their phases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LonePhase:
    """A phase that only one run has; `cause` is None unless the other run was asked to leave it out."""

    phase: str
    side: str
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Pairs of traces, in the order of the left run, and the phases without a partner."""

    pairs: tuple[tuple[CallGraph, CallGraph], ...]
    lone: tuple[LonePhase, ...]


def match_phases(left: Sequence[CallGraph], right: Sequence[CallGraph], wanted: Collection[str] = ()) -> Matched:
    """Match two runs phase by phase; one trace on each side is a pair even if their phases differ."""
    if len(left) == len(right) == 1 and not wanted:
        return Matched(pairs=((left[0], right[0]),), lone=())
    mine, theirs = ({graph.phase: graph for graph in graphs} for graphs in (left, right))
    _require_phases(wanted, {**mine, **theirs})
    phases = [phase for phase in {**mine, **theirs} if not wanted or phase in wanted]
    lone = [
        LonePhase(phase=phase, side=side, cause=_cause(phase, here, other))
        for side, here, other in (("A", mine, theirs), ("B", theirs, mine))
        for phase in phases
        if phase in here and phase not in other
    ]
    pairs = tuple((mine[phase], theirs[phase]) for phase in phases if phase in mine and phase in theirs)
    if not pairs:
        raise UsageError(
            "The two runs have no phase in common.",
            why=f"A has {', '.join(mine)}; B has {', '.join(theirs)}",
            fix="name two files to compare traces of different phases",
        )
    return Matched(pairs=pairs, lone=tuple(lone))


def _cause(phase: str, here: Mapping[str, CallGraph], other: Mapping[str, CallGraph]) -> str | None:
    steps = here[phase].runtime.get("decode_steps")
    asked = {graph.workload.get("decode_steps") for graph in other.values()}
    return "decode length" if steps and asked == {0} else None


def _require_phases(wanted: Collection[str], known: Collection[str]) -> None:
    for phase in wanted:
        if phase not in known:
            raise UsageError(
                f"Neither run has a phase {phase!r}.",
                why=f"phases there: {', '.join(known)}",
                fix="name one of these, or leave --phase out",
            )
