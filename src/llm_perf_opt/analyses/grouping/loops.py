"""How a group repeats within one call of its caller: over its instances, and over the uses of one instance."""

from __future__ import annotations

from llm_perf_opt.analyses.grouping.call_tree import OUTSIDE, CallTree
from llm_perf_opt.analyses.grouping.data_flow import DataFlow, Knowledge
from llm_perf_opt.analyses.grouping.groups import Group
from llm_perf_opt.document import Loop, LoopKind


def loops_of(group: Group, tree: CallTree, flow: DataFlow) -> tuple[Loop, ...]:
    """The loop over instances first. Where a trace cannot tell how instances depend on each other, there is none."""
    uses = _uses(group, tree)
    return (*_over_instances(group, uses), *_over_calls(group, tree, flow, uses))


def are_uses_in_series(group: Group, tree: CallTree, flow: DataFlow) -> bool:
    """Whether some instance is used several times by one caller, each use being fed by an earlier one."""
    used = {(tree.caller_path(row), tree.path[row]) for row in group.rows}
    return any(flow.inflow(caller, path).is_in_series for caller, path in used)


Uses = dict[int, dict[int, tuple[int, int]]]  # caller's row -> path -> least and most uses in one call of the caller


def _uses(group: Group, tree: CallTree) -> Uses:
    counts: dict[int, dict[int, int]] = {}
    for row in group.rows:
        by_path = counts.setdefault(tree.parent[row], {})
        by_path[tree.path[row]] = by_path.get(tree.path[row], 0) + tree.weight[row]
    return {
        caller: {path: _per_call(count, tree.weight[caller] if caller >= 0 else 1) for path, count in by_path.items()}
        for caller, by_path in counts.items()
    }


def _per_call(count: int, caller_calls: int) -> tuple[int, int]:
    """Where only totals are known, the uses in one call of the caller lie around their mean."""
    return max(1, count // caller_calls), -(-count // caller_calls)


def _over_instances(group: Group, uses: Uses) -> list[Loop]:
    counts = [len(by_path) for by_path in uses.values()]
    most, least = max(counts), min(counts)
    if group.kind is None or (most == 1 and group.declared == 1):
        return []
    return [
        Loop(
            kind=group.kind,
            count=most,
            least=least if least < most else None,
            of=group.declared if least < group.declared else None,
        )
    ]


def _over_calls(group: Group, tree: CallTree, flow: DataFlow, uses: Uses) -> list[Loop]:
    """Several uses of one instance by one caller; forwards of the whole model in turn, if nobody called it."""
    most = max(high for by_path in uses.values() for _, high in by_path.values())
    least = min(low for by_path in uses.values() for low, _ in by_path.values())
    kind = LoopKind.PARFOR
    if OUTSIDE in uses:
        if flow.knowledge is Knowledge.NONE:
            return []
        if are_uses_in_series(group, tree, flow):
            kind = LoopKind.FOR
    return [Loop(kind=kind, count=most, least=least if least < most else None, over="calls")] if most > 1 else []
