"""The collectives that a plan forces on every engine, for the lower bound of any engine that runs the plan.

They are a reduction where the ranks of a block hold partial sums, the gathering of fully sharded weights, and what one
pipeline stage hands to the next. The others have ways around them: a replicated table needs no reduction after the
look-up, the best token of each shard replaces its logits, sums that are added up later need one reduction together,
and tokens may choose experts on their own rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, forward_of_ops, ops_of, stage_names, stage_of_calls
from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.costs.collectives import collectives_by_call
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.timing.collective_time import collective_time

_NANO = 1e-9
_REDUCTIONS = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER})
_HAND_OVERS = frozenset({CollectiveKind.SEND, CollectiveKind.RECV})
_BLOCK = re.compile(r"(?:.*?\.)?\d+(?:\.[^.]+)?")  # `model.layers.3.mlp` of `model.layers.3.mlp.experts`


def least_collectives(graph: CallGraph) -> dict[str, Counter[Collective]]:
    """Stage -> the collectives of this rank that no engine with its plan can do without, and how often."""
    plan, by_call = plan_in(graph.deployment), collectives_by_call(graph)
    least: dict[str, Counter[Collective]] = {}
    if plan is None or not by_call:
        return least
    stages, stage_of = stage_names(graph), stage_of_calls(graph)
    calls, forwards = calls_of(graph), forward_of_ops(graph)
    experts = anatomy_of(graph).experts if ops_of(graph).input_storages else ()
    spread = {_block_of(block.path) for block in experts if block.ranks > 1}
    sums: dict[tuple[str, int, str], Collective] = {}
    for call, collectives in by_call.items():
        stage = graph.phase if call < 0 else stages[stage_of[call]]
        path = "" if call < 0 else graph.paths[calls.path[call]]
        for collective, count in collectives.items():
            if collective.kind in _HAND_OVERS or is_of_weights(collective, plan):
                least.setdefault(stage, Counter())[collective] += count
            elif collective.kind in _REDUCTIONS and (block := _block_of(path)) and block not in spread:
                key = (stage, forwards[calls.first_op[call]], block)
                sums[key] = max(sums.get(key, collective), collective, key=lambda candidate: candidate.payload_bytes)
    for (stage, _, _), collective in sums.items():
        least.setdefault(stage, Counter())[collective] += 1
    return least


def _block_of(path: str) -> str:
    """The part of a layer that a module belongs to; empty: it is in no layer."""
    found = _BLOCK.match(path)
    return found[0] if found else ""


def is_of_weights(collective: Collective, plan: ParallelPlan) -> bool:
    """Whether it gathers fully sharded weights, by its axis or, where that is not recorded, by its ranks."""
    if collective.kind is not CollectiveKind.ALL_GATHER or plan.fsdp == 1:
        return False
    if collective.axis is not None:
        return collective.axis == "fsdp"
    return collective.group.size == plan.fsdp and collective.group.stride == plan.tp


def communication_s(collectives: Mapping[Collective, int], cluster: Cluster) -> float:
    """The least time on the links, all of them one after the other; a link that is not known adds nothing."""
    return sum((collective_time(sent, cluster).bound_ns or 0) * _NANO * count for sent, count in collectives.items())
