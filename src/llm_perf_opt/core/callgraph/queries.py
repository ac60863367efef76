"""What analyses ask of a call graph, answered over whole columns: a million ops in well under a second."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import wraps
from inspect import signature
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, OpKind, Parameter, TensorMeta
from llm_perf_opt.core.errors import PerfOptError

_NUMBERED = re.compile(r"(?P<prefix>(?:.*_)?)\d+")  # `7` and `expert_7`; the digits of `fc1` are part of a name
_SHORTEST_RUN = 3  # in a list with gaps, fewer than this in a row are written one by one


# What is found out once for a trace while several questions are asked of it, and forgotten after the last.
#
# The anatomy of a trace, its necessary work and its memory hold for every device. Inside `shared_work` they are
# computed once; outside of it nothing is kept, so that no trace outlives those who use it.

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")
_KEPT: ContextVar[dict[Hashable, tuple[Any, Any]] | None] = ContextVar("kept of traces", default=None)


@contextmanager
def shared_work() -> Iterator[None]:
    """Keep what functions marked `found_once` return; a scope inside another one shares its results."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def found_once(function: Callable[_Asked, _Found]) -> Callable[_Asked, _Found]:
    """The function, called once for each trace inside `shared_work`. Nobody changes what it returns.

    Its first argument is a trace or the phases of one, and is known by identity; the others are hashable.
    """
    asked = signature(function)

    @wraps(function)
    def once(*args: _Asked.args, **options: _Asked.kwargs) -> _Found:
        answers = _KEPT.get()
        if answers is None:
            return function(*args, **options)
        given = asked.bind(*args, **options)
        given.apply_defaults()  # what is told and what is left to the default are one question
        first, *others = given.arguments.values()
        key = (function, id(first), *others)
        if key not in answers:
            answers[key] = first, function(*args, **options)  # the argument too, so that its identity stays its own
        answer: _Found = answers[key][1]
        return answer

    return once


def label_of(paths: Sequence[str], most_runs: int | None = None) -> str:
    """The components that all paths share, and in brackets those in which they differ.

    Where two components differ, not every combination need be there. Of more than `most_runs` runs of numbers those in
    the middle are left out.
    """
    if len(paths) == 1:
        return paths[0]
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        return ".".join(_component(column, most_runs) for column in zip(*split, strict=True))
    shared = 0
    while all(len(parts) > shared and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    rest = dict.fromkeys(".".join(parts[shared:]) or "(itself)" for parts in split)
    return ".".join([*split[0][:shared], f"[{','.join(rest)}]"])


def path_pattern(path: str) -> str:
    """The path with its numbers left out; paths of one pattern differ in numbers alone."""
    prefixes = ((part, numbered_name(part)) for part in path.split("."))
    return ".".join(part if prefix is None else f"{prefix}*" for part, prefix in prefixes)


def numbered_name(part: str) -> str | None:
    """What is before the number of a numbered sibling, which may be nothing; None for any other name."""
    match = _NUMBERED.fullmatch(part)
    return None if match is None else match["prefix"]


def _component(names: Iterable[str], most_runs: int | None) -> str:
    """`layers`, `[0-11]`, `[0,2,5]`, `[0-3,5]`, `expert_[0-7]` or `[first,second]`."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    (prefix, *others) = {numbered_name(name) for name in distinct}
    if prefix is None or others:
        return f"[{','.join(distinct)}]"
    runs = list(_runs(sorted({int(name.removeprefix(prefix)) for name in distinct})))
    if most_runs is not None and len(runs) > most_runs:
        runs[most_runs - 1 : -1] = ["..."]
    return f"{prefix}[{','.join(runs)}]"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            run = numbers[start:at]
            is_range = len(run) >= _SHORTEST_RUN or len(run) == len(numbers) > 1
            yield from [f"{run[0]}-{run[-1]}"] if is_range else map(str, run)
            start = at


T = TypeVar("T")


def calls_of(graph: CallGraph) -> CallColumns:
    """The call columns, or an error that says the file has none: an analysis that needs them cannot guess."""
    if graph.calls is None:
        raise _without("module calls")
    return graph.calls


def ops_of(graph: CallGraph) -> OpColumns:
    """The op columns, or an error that says the file has none."""
    if graph.ops is None:
        raise _without("ops")
    return graph.ops


def _without(what: str) -> PerfOptError:
    return PerfOptError(
        f"The trace holds no {what}.",
        why="its tracer does not record them, or only totals were saved",
        fix="trace again with the weightless tracer; only graph and compare can work with totals alone",
    )


def ops_in_call(graph: CallGraph, call: int) -> range:
    """Rows of every op that ran inside the call, its children's included."""
    calls = calls_of(graph)
    return range(calls.first_op[call], calls.end_op[call])


def call_tensors(graph: CallGraph, call: int, side: str) -> Iterator[tuple[TensorMeta, int]]:
    """The tensors that went into a call (`side` "input") or came out of it ("output"), and their storages' rows."""
    calls = calls_of(graph)
    counts, metas, storages = (
        (calls.input_count, calls.input_metas, calls.input_storages)
        if side == "input"
        else (calls.output_count, calls.output_metas, calls.output_storages)
    )
    start = sum(counts[:call])
    rows = slice(start, start + counts[call])
    return zip((graph.tensor_metas[row] for row in metas[rows]), storages[rows], strict=True)


def ops_in_module(graph: CallGraph, path: str) -> list[range]:
    """Rows of every op that ran inside calls of the module; a call inside another call of it is not listed again."""
    calls = calls_of(graph)
    if path not in graph.paths:
        return []
    row, end, ranges = graph.paths.index(path), 0, []
    for call, path_row in enumerate(calls.path):
        if path_row == row and calls.end_op[call] > end:
            ranges.append(ops_in_call(graph, call))
            end = calls.end_op[call]
    return ranges


def forward_of_ops(graph: CallGraph) -> array[int]:
    """Per op, the number of the outermost module call it ran in or after, from 1; 0 before the first."""
    calls = graph.calls
    begins = set() if calls is None else {calls.first_op[i] for i, parent in enumerate(calls.parent) if parent < 0}
    return array("q", accumulate(int(row in begins) for row in range(len(ops_of(graph).kind))))


def count_kinds(graph: CallGraph, rows: range | None = None) -> dict[OpKind, int]:
    """How often each kind ran, among `rows` or all ops: the short way to any sum over ops."""
    column = ops_of(graph).kind
    chosen = column if rows is None else column[rows.start : rows.stop : rows.step]
    return {graph.op_kinds[row]: count for row, count in Counter(chosen).items()}


def stage_names(graph: CallGraph) -> tuple[str, ...]:
    """The stages in order, the phase last: it is the stage of whatever no stage claims."""
    names = dict.fromkeys(name for name, _ in graph.stages)
    return (*(name for name in names if name != graph.phase), graph.phase)


@found_once
def stage_of_calls(graph: CallGraph) -> array[int]:
    """Per call, an index into `stage_names`.

    A stage claims a module below one of its paths, the longest path winning; a module that no stage claims belongs to
    the stage of the call that made it, so that a shared helper counts where it was used.
    """
    calls, names = calls_of(graph), stage_names(graph)
    claims = {path: names.index(name) for name, paths in graph.stages for path in paths}
    claimed = [deepest_claim(path, claims) for path in graph.paths]
    unclaimed = names.index(graph.phase)
    stages = array("q")
    for path_row, parent in zip(calls.path, calls.parent, strict=True):
        own = claimed[path_row]
        stages.append(own if own is not None else stages[parent] if parent >= 0 else unclaimed)
    return stages


def deepest_claim(path: str, claims: Mapping[str, T]) -> T | None:
    """What the module itself or the nearest module above it is claimed by."""
    while path not in claims:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return claims[path]


@found_once
def stage_of_ops(graph: CallGraph) -> array[int]:
    """Per op, an index into `stage_names`; ops outside any module belong to the phase."""
    names = stage_names(graph)
    # The last entry is what index -1, "outside any call", arrives at.
    by_call = [*stage_of_calls(graph), names.index(graph.phase)]
    return array("q", map(by_call.__getitem__, ops_of(graph).call))


def count_kinds_by_stage(graph: CallGraph) -> dict[str, dict[OpKind, int]]:
    """Stage -> how often each kind ran in it. Stages are disjoint and together hold every op once."""
    names = stage_names(graph)
    by_stage: dict[str, dict[OpKind, int]] = {name: {} for name in names}
    for (stage, row), count in Counter(zip(stage_of_ops(graph), ops_of(graph).kind, strict=True)).items():
        by_stage[names[stage]][graph.op_kinds[row]] = count
    return by_stage


@found_once
def tensor_offsets(graph: CallGraph) -> tuple[array[int], array[int]]:
    """Where each op's entries begin in `input_storages` and `output_storages`, with one more entry: where they end."""
    kinds = ops_of(graph).kind
    inputs = [len(kind.inputs) for kind in graph.op_kinds]
    outputs = [len(kind.outputs) for kind in graph.op_kinds]
    return (
        array("q", accumulate(map(inputs.__getitem__, kinds), initial=0)),
        array("q", accumulate(map(outputs.__getitem__, kinds), initial=0)),
    )


def events_of(graph: CallGraph) -> tuple[tuple[str, str], ...]:
    """`("enter" | "exit", path)` in the order in which it happened, read off the nesting of the calls."""
    calls = calls_of(graph)
    events: list[tuple[str, str]] = []
    stack: list[int] = []
    for call, parent in enumerate(calls.parent):
        while stack and stack[-1] != parent:
            events.append(("exit", graph.paths[calls.path[stack.pop()]]))
        events.append(("enter", graph.paths[calls.path[call]]))
        stack.append(call)
    events.extend(("exit", graph.paths[calls.path[call]]) for call in reversed(stack))
    return tuple(events)


# Which parameters are matrices that a quantised checkpoint may convert, and what each of them does in the model.
#
# Told from the classes and names of modules and from the shapes, so that it holds for any model and for a saved trace.
# Embeddings, norms, convolutions, biases and positions are none of them.

_LINEAR = re.compile(r"Linear|^Conv1D$")  # transformers' Conv1D is a linear layer with a transposed weight
_EXPERTS = re.compile(r"Expert")
_ROUTER = re.compile(r"(Router|Gate)$")
_ROUTER_NAMES = frozenset({"gate", "router", "shared_expert_gate"})
_HEAD_NAMES = frozenset({"lm_head", "embed_out"})


class Role(StrEnum):
    """What a weight matrix is for; formats treat them differently."""

    LINEAR = "matrix"
    EXPERTS = "expert stack"  # all experts of a layer in one tensor; in a checkpoint each of them is a linear layer
    ROUTER = "router"
    HEAD = "output head"


def weight_matrices(graph: CallGraph) -> dict[str, Role]:
    """Parameter name -> role, in the order of the parameters; empty where the trace tells no classes of modules."""
    heads = frozenset(_heads(graph))
    return {
        parameter.name: Role.HEAD if parameter.name in heads else role
        for parameter in graph.parameters
        if (role := _role(parameter, graph)) is not None
    }


def module_of(parameter_name: str) -> str:
    """The path of the module that owns a parameter."""
    return parameter_name.rpartition(".")[0]


def _role(parameter: Parameter, graph: CallGraph) -> Role | None:
    path, _, name = parameter.name.rpartition(".")
    class_name, dimensions = graph.module_types.get(path), len(parameter.meta.shape)
    if class_name is None or parameter.is_buffer or dimensions < 2 or "bias" in name:
        return None
    names = path.split(".")
    if _ROUTER.search(class_name) or names[-1] in _ROUTER_NAMES or "router" in names:
        return Role.ROUTER
    if _EXPERTS.search(class_name):
        return Role.EXPERTS
    return Role.LINEAR if _LINEAR.search(class_name) and name == "weight" and dimensions == 2 else None


def _heads(graph: CallGraph) -> Iterator[str]:
    """Linear layers that turn hidden states into scores of tokens: tied to an embedding, named so, or of its shape."""
    embeddings = [
        parameter
        for parameter in graph.parameters
        if "Embedding" in graph.module_types.get(module_of(parameter.name), "") and len(parameter.meta.shape) == 2
    ]
    tied = {parameter.storage for parameter in embeddings if parameter.storage >= 0}
    vocabulary = max((parameter.meta.shape for parameter in embeddings), key=math.prod, default=None)
    for parameter in graph.parameters:
        names, shape = module_of(parameter.name).split("."), parameter.meta.shape
        is_in_a_layer = any(name.isdigit() for name in names)
        has_its_shape = shape == vocabulary and not is_in_a_layer
        is_inside_one = not _HEAD_NAMES.isdisjoint(names) and vocabulary is not None and shape[:1] == vocabulary[:1]
        if parameter.storage in tied or names[-1] in _HEAD_NAMES or has_its_shape or is_inside_one:
            yield parameter.name
