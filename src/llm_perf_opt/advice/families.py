"""Which modules a rule replaced work in, as people say it: `for 12 model.layers.[0-11].self_attn`."""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, label_of, ops_of, path_pattern
from llm_perf_opt.timing.engine_kernels import RuleUse
from llm_perf_opt.timing.fusions import Fusion

_SHOWN, _MOST_RUNS = 1, 2


def families_of(graph: CallGraph, uses: Iterable[RuleUse], rules: frozenset[Fusion]) -> dict[str, str]:
    """Stage -> the families of modules in which these rules replaced ops, the one with most ops first."""
    ops, calls = ops_of(graph), calls_of(graph)
    rows: dict[str, dict[str, dict[str, int]]] = {}  # stage -> pattern -> path -> ops
    for use in (use for use in uses if use.rule in rules):
        patterns = rows.setdefault(use.stage, {})
        for row in use.rows:
            call = ops.call[row]
            path = graph.paths[calls.path[call]] if call >= 0 else ""
            counts = patterns.setdefault(path_pattern(path), {})
            counts[path] = counts.get(path, 0) + 1
    return {stage: _text(patterns) for stage, patterns in rows.items()}


def _text(patterns: dict[str, dict[str, int]]) -> str:
    largest = sorted(patterns.values(), key=lambda paths: -sum(paths.values()))
    named = [f"for {len(paths)} {label_of(list(paths), _MOST_RUNS) or '(the model)'}" for paths in largest[:_SHOWN]]
    more = len(largest) - _SHOWN
    return ", ".join([*named, *([f"{more} more"] if more > 0 else [])])
