"""What a full recording says by itself of every kernel, to hold a join against: its op with shapes, and its module.

The op comes from the id that the profiler noted at the launch, the module from Python's stack. Modules are named there
by class and number of the instance (`Linear_12`), in the order of their first call, which a trace has too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph import CallGraph, OpKind
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.recordings.recording import HostOp, Recording
from llm_perf_opt.measurements.join.attribution import JoinedRecording, JoinedWork
from llm_perf_opt.ops.cost import packet_of

ALIKE = ({"aten.matmul", "aten.bmm"},)  # one matmul under two names


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of the kernel time: attributed; of that to ops; of the attributed, to the recorded op and module."""

    attributed: float
    to_ops: float
    right: float


def score(full: Recording, graph: CallGraph, joined: JoinedRecording) -> Score:
    """`full` holds what the profiler saw, `joined` may have been made without it."""
    names = _numbered(graph)
    spent: Counter[str] = Counter()
    for work, found in zip(full.work, joined.work, strict=True):
        if found.evidence is None:
            continue
        chain = full.chain_of(work)
        is_right = _same_module(graph, names, found, chain) and (not found.ops or _same_op(graph, found, chain))
        spent["attributed"] += found.duration_ns
        spent["to ops"] += found.duration_ns if found.ops else 0
        spent["right"] += found.duration_ns if is_right else 0
    return Score(
        attributed=spent["attributed"] / full.device_ns,
        to_ops=spent["to ops"] / full.device_ns,
        right=spent["right"] / spent["attributed"],
    )


def _numbered(graph: CallGraph) -> dict[str, str]:
    """Path -> class and number of the instance among those of its class, in the order of their first call."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row in calls_of(graph).path:
        path = graph.paths[row]
        if path not in names:
            of_class = graph.module_types[path]
            names[path] = f"{of_class}_{counts[of_class]}"
            counts[of_class] += 1
    return names


def _same_module(graph: CallGraph, names: dict[str, str], found: JoinedWork, chain: Sequence[HostOp]) -> bool:
    """Versions of a library differ in some classes: those that both have must agree, the innermost among them."""
    recorded = chain[-1].modules if chain else ()
    calls, call, mine = calls_of(graph), found.call, list[str]()
    while call >= 0:
        mine.append(names[graph.paths[calls.path[call]]])
        call = calls.parent[call]
    known = {_class(name) for name in names.values()}
    innermost = next((name for name in reversed(recorded) if _class(name) in known), None)
    shared = {_class(name) for name in recorded} & {_class(name) for name in mine}
    return bool(shared) and innermost in mine and all(name in recorded for name in mine if _class(name) in shared)


def _class(name: str) -> str:
    return name.rpartition("_")[0]


def _same_op(graph: CallGraph, found: JoinedWork, chain: Sequence[HostOp]) -> bool:
    kinds = [graph.op_kinds[ops_of(graph).kind[row]] for row in found.ops]
    return any(_is(kind, chain) for kind in kinds)


def _is(kind: OpKind, chain: Sequence[HostOp]) -> bool:
    name = packet_of(kind.name).rstrip("_")
    recorded = {op.name.replace("::", ".").rstrip("_") for op in chain}
    same_name = name in recorded or any(name in pair and pair & recorded for pair in ALIKE)
    sizes = _sizes(meta.shape for meta in kind.inputs)
    return same_name and any(_sizes(op.input_shapes or ()) == sizes for op in chain)


def _sizes(shapes: Iterable[Sequence[int]]) -> list[int]:
    return sorted(size for shape in shapes if (size := math.prod(shape)) > 1)
