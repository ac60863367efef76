"""Where in the model each rung is: the time that a fusion saves, by module, and a picture coloured by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from llm_perf_opt.advice.ladder import FUSED_RUNGS, Ladder
from llm_perf_opt.advice.setup import Setup, has_looped_experts
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.timing.engine_kernels import fused_run
from llm_perf_opt.timing.fusions import Fusion

NOTHING = "nothing that a fusion saves"
Savings = Mapping[str, Mapping[str, float]]  # module path -> rung -> nanoseconds in it and in all that it calls
_NANO = 1e-9


def saved_by_module(setup: Setup, graph: CallGraph, ladder: Ladder) -> Savings:
    """The rungs of fusions in one run of a phase, each shared by the ops that its rules replace; empty on an engine."""
    if setup.is_engine:
        return {}
    times: Counter[tuple[str, str]] = Counter()  # stage and rung -> its time
    for stage in (stage for stage in ladder.stages if stage.phase == graph.phase):
        times.update({(stage.stage, rung.name): rung.time_ns for rung in stage.rungs if rung.name in FUSED_RUNGS})
    saved: dict[str, Counter[str]] = {}
    for rung, rules in _granted(setup, graph):
        for name, paths in _paths(graph, setup.rules, rules).items():
            each = times[name, rung] / paths.total()
            for path, count in paths.items():
                for module in _with_callers(path):
                    saved.setdefault(module, Counter())[rung] += each * count  # type: ignore[assignment]
    return {path: rungs for path, rungs in saved.items() if sum(rungs.values())}


def _granted(setup: Setup, graph: CallGraph) -> Iterator[tuple[str, frozenset[Fusion]]]:
    is_loop = has_looped_experts(graph)
    for rung, rules in FUSED_RUNGS.items():
        more = frozenset() if is_loop or Fusion.VECTOR not in rules else frozenset({Fusion.EXPERTS})
        yield rung, (rules | more) - setup.rules


def _paths(graph: CallGraph, before: frozenset[Fusion], rules: frozenset[Fusion]) -> dict[str, Counter[str]]:
    """Stage -> module path -> how many of its ops these rules replace."""
    ops, calls = ops_of(graph), calls_of(graph)
    found: dict[str, Counter[str]] = {}
    for use in (use for use in fused_run(graph, before | rules).rules if use.rule in rules):
        found.setdefault(use.stage, Counter()).update(
            graph.paths[calls.path[ops.call[row]]] for row in use.rows if ops.call[row] >= 0
        )
    return {stage: paths for stage, paths in found.items() if paths}


def _with_callers(path: str) -> Iterator[str]:
    """The module and all above it; the root has an empty path."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def coloured(view: GraphView, savings: Savings) -> GraphView:
    """The picture with the rung that takes most of a box in place of its stage; the legend tells how much in all."""
    whole: Counter[str] = Counter()
    for root in view.roots:
        whole.update(_of(root.members or (root.path,), savings))
    names = {rung: f"{rung} ({format_seconds(time * _NANO)})" for rung, time in whole.most_common()}
    return replace(
        view,
        title=f"{view.title}: what can be saved",
        roots=tuple(_recoloured(root, savings, names) for root in view.roots),
        stages=(*names.values(), NOTHING),
    )


def _recoloured(box: Box, savings: Savings, names: Mapping[str, str]) -> Box:
    found = _of(box.members or (box.path,), savings)
    stage = names[found.most_common(1)[0][0]] if found else NOTHING
    children = tuple(_recoloured(child, savings, names) for child in box.children)
    return replace(box, stage=stage, children=children)


def _of(members: Iterable[str], savings: Savings) -> Counter[str]:
    rungs: Counter[str] = Counter()
    for member in members:
        rungs.update(savings.get(member, {}))
    return rungs
