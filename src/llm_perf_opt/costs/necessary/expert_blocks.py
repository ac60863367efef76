"""Routed experts of a run: how many there are, how many each token takes, and what one of them weighs.

A router is a `topk` over as many scores as there are experts. Its experts are found by that number: stacks of matrices
as long, or as many sibling modules. How the code runs them (one grouped matmul, a loop, all of them on every token)
does not matter here.

A rank that holds a part of the experts gets rows of the tokens of all ranks that share them. Its figures are what is
expected of any one rank, so the figures of all ranks add up to the model's; the rank with the most has another figure.
Where a plan leaves all experts on every rank, the ranks repeat each other's work: necessary of each is its share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of
from llm_perf_opt.core.callgraph.records import OpKind, Parameter
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.needed_positions import NeededPositions
from llm_perf_opt.costs.parameters import gathered_weights
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.ops.grouped_experts import expected_distinct, groups_used
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_family, op_role

UNIFORM, BALANCED, FEWEST, AS_TRACED = "uniform", "balanced", "fewest", "as traced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBlock:
    """The routed experts of one layer in one forward."""

    path: str
    experts: int  # on this rank
    chosen: int  # by each token, of the experts of all ranks
    tokens: int  # of this rank, and their result is needed
    made_tokens: int  # of this rank, that were routed
    matrix_elements_each: int  # of one expert's matrices
    bytes_each: int  # of one expert as stored, biases and scales included; of copies on several ranks the share of one
    touched: int  # experts that got rows in the trace
    flops: int  # as written
    dtype: str
    rows: tuple[int, ...]  # of its matmuls
    is_tail: bool
    storages: frozenset[int]  # of every weight of all its experts
    ranks: int = 1  # that share the experts
    ranks_alike: int = 1  # that hold the same tokens as this one, itself included
    copies: int = 1  # ranks that hold all experts and the same tokens, and so do the same

    @property
    def row(self) -> int:
        """The op at which it begins."""
        return self.rows[0]

    @property
    def necessary_flops(self) -> int:
        """The share of one rank, where several do the same."""
        return self.needed_flops // self.copies

    @property
    def needed_flops(self) -> int:
        """Each needed token meets the experts it chose; of a rank, what is expected."""
        return 2 * self.tokens * self.chosen * self.matrix_elements_each // self.ranks_alike

    @property
    def chosen_flops(self) -> int:
        """Every token that was routed meets the experts it chose, needed or not; of a rank, what is expected."""
        return 2 * self.made_tokens * self.chosen * self.matrix_elements_each // self.ranks_alike

    @property
    def whole_row_flops(self) -> int:
        """The same with whole rows: a trace gives a rank 2 rows where 1.25 are expected."""
        return 2 * -(-self.made_tokens * self.chosen // self.ranks_alike) * self.matrix_elements_each

    def distinct(self, policy: str, tokens: int | None = None) -> float:
        """How many experts of this rank have to be read."""
        new_tokens = self.tokens if tokens is None else tokens
        return distinct_experts(
            policy, self.experts, self.chosen, new_tokens, self.touched, ranks=self.ranks, ranks_alike=self.ranks_alike
        )


def distinct_experts(
    policy: str, experts: int, chosen: int, tokens: int, touched: int, *, ranks: int = 1, ranks_alike: int = 1
) -> float:
    """Distinct experts on a rank: expected under uniform routing, the most, the fewest, or as traced.

    `ranks` with `experts` each share them, and `ranks_alike` of them hold the same `tokens`. The fewest on one rank
    are none where the others hold enough for a token to choose. A token that part of the ranks hold counts in part.
    """
    if not tokens:
        return 0.0
    if policy == FEWEST:
        return float(max(0, chosen - (ranks - 1) * experts))
    if policy not in (UNIFORM, BALANCED, "one"):
        return float(min(touched, experts))
    tokens_in_all, part = divmod(tokens * ranks, ranks_alike)
    distinct = _distinct_of_all(policy, experts * ranks, chosen, tokens_in_all)
    if part:
        more = _distinct_of_all(policy, experts * ranks, chosen, tokens_in_all + 1)
        distinct += part / ranks_alike * (more - distinct)
    return distinct / ranks


def _distinct_of_all(policy: str, experts: int, chosen: int, tokens: int) -> float:
    if policy == UNIFORM:
        return expected_distinct(experts, chosen, tokens)
    return float(min(experts, chosen * (tokens if policy == BALANCED else min(tokens, 1))))


def is_replicated(graph: CallGraph, path: str) -> bool:
    """Whether every rank of a plan holds the parameters below `path` as a single device would."""
    replicated, stem = replicated_in(graph.deployment), layer_pattern(f"{path}.")
    return replicated is not None and any(name.startswith(stem) for name in replicated)


@dataclass(slots=True)
class _Found:
    """What is gathered of a block while its ops pass by."""

    experts: int
    chosen: int
    tokens: int
    made_tokens: int
    dtype: str
    is_tail: bool
    ranks: int
    ranks_alike: int
    rows: list[int] = field(default_factory=list)
    flops: int = 0
    touched: int = 0
    members: set[int] = field(default_factory=set)  # numbers of the expert modules that ran


class ExpertFinder:
    """Sees the ops of a run in order: `router` remembers a choice, `claim` says whether a matmul is an expert's."""

    def __init__(self, graph: CallGraph, positions: NeededPositions) -> None:
        self._graph = graph
        self._positions = positions
        self._plan = plan_in(graph.deployment) or ParallelPlan()
        self._gathered = {weight.name: weight for weight in gathered_weights(graph).values()}
        self._routers: dict[int, tuple[int, int, str]] = {}  # experts -> chosen, tokens, path of the router
        self._found: dict[tuple[int, str], _Found] = {}
        self._loop_uses: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)

    def router(self, kind: OpKind, call: int) -> None:
        """A choice of k among n scores, if it is one; an engine's op of all experts chooses itself, and says so."""
        if op_family(kind.name) is WorkFamily.GROUPED and "chosen" in kind.arguments:
            facts, hidden = kind.arguments, kind.inputs[0]
            tokens = elements(hidden) // max(hidden.shape[-1], 1)
            self._routers[facts["experts"]] = (facts["chosen"], tokens, self._path(call))
            return
        if op_role(kind) is not OpRole.CHOICE or not kind.inputs or not kind.outputs:
            return
        scores, picked = kind.inputs[0].shape, kind.outputs[0].shape
        dim = kind.arguments.get("dim", -1)
        if not scores or not isinstance(dim, int) or not -len(scores) <= dim < len(scores):
            return
        chosen = picked[dim] if len(picked) == len(scores) else 1
        tokens = math.prod(scores) // max(scores[dim], 1)
        self._routers[scores[dim]] = (chosen, tokens, self._path(call))

    def claim(self, row: int, forward: int, kind: OpKind, flops: int, weight: Parameter) -> bool:
        """Whether a matmul with `weight` belongs to routed experts; if so it is counted there."""
        owner = self._stack_owner(weight) or self._member_owner(weight)
        if owner is None or op_family(kind.name) is WorkFamily.CONVOLUTION:  # its kernels have three dimensions too
            return False
        path, experts, member = owner
        key = (forward, path)
        block = self._found.get(key)
        if block is None:
            block = self._found[key] = self._begun(row, kind, experts)
        block.flops += flops
        block.rows.append(row)
        if member is not None:
            block.members.add(member)
            block.touched = len(block.members)
        elif op_family(kind.name) is WorkFamily.GROUPED:
            block.touched = max(block.touched, min(groups_used(kind), experts))
        else:
            self._count_slice(key, block, kind, weight)
        return True

    def _begun(self, row: int, kind: OpKind, experts: int) -> _Found:
        """A block of this many experts on this rank, at its first matmul."""
        is_spread = self._plan.ep > 1 and experts * self._plan.ep in self._routers
        chosen, tokens, _ = self._routers[experts * self._plan.ep if is_spread else experts]
        needed, made = self._positions.kept_of(row, tokens)
        return _Found(
            experts,
            chosen if is_spread else max(chosen, _rows_per_token(kind, tokens)),
            tokens * needed // made,
            tokens,
            kind.inputs[0].dtype,
            row in self._positions.tail,
            self._plan.ep if is_spread else 1,
            self._plan.tp if is_spread else 1,
        )

    def _count_slice(self, key: tuple[int, str], block: _Found, kind: OpKind, weight: Parameter) -> None:
        """One expert of a stack at a time is a loop; a matmul with all of the stack at once touches every expert."""
        if any(len(meta.shape) == 3 and meta.shape[0] == block.experts for meta in kind.inputs[1:]):
            block.touched = block.experts
            return
        uses = self._loop_uses[key]
        uses[weight.storage] = uses.get(weight.storage, 0) + 1
        block.touched = max(block.touched, min(max(uses.values()), block.experts))

    def blocks(self) -> tuple[ExpertBlock, ...]:
        """Every block that ran, with the weights of all its experts."""
        return tuple(self._block(path, experts) for (_, path), experts in self._found.items())

    def _block(self, path: str, block: _Found) -> ExpertBlock:
        mine = list(self._weights_of(path, block.experts))
        copies = self._plan.tp if block.ranks == 1 and is_replicated(self._graph, path) else 1
        matrices = sum(elements(weight.meta) for weight in mine if _is_matrix(weight, path))
        return filled(
            ExpertBlock,
            block,
            path=path,
            matrix_elements_each=matrices // block.experts,
            bytes_each=sum(tensor_bytes(weight.meta) for weight in mine) // (block.experts * copies),
            copies=copies,
            rows=tuple(block.rows),
            storages=frozenset(weight.storage for weight in mine),
        )

    def _weights_of(self, path: str, experts: int) -> Iterator[Parameter]:
        """Weights in modules numbered below `path`, or in `path` itself where it holds stacks."""
        for stored in self._graph.parameters:
            if stored.is_buffer or not stored.name.startswith(f"{path}."):
                continue
            parameter = self._gathered.get(stored.name, stored)
            inner = parameter.name[len(path) + 1 :]
            is_stack = "." not in inner and parameter.meta.shape[:1] == (experts,)
            if is_stack or inner.partition(".")[0].isdigit():
                yield parameter

    def _stack_owner(self, weight: Parameter) -> tuple[str, int, int | None] | None:
        shape = weight.meta.shape
        if len(shape) != 3 or not {shape[0], shape[0] * self._plan.ep} & self._routers.keys():
            return None
        return weight.name.rpartition(".")[0], shape[0], None

    def _member_owner(self, weight: Parameter) -> tuple[str, int, int | None] | None:
        """The list of sibling modules that a weight's module is one of, if a router chooses among this many.

        The router runs next to the list, not inside it. Without this check, a model with as many layers as experts
        would have its layers taken for experts.
        """
        for container, number in _numbered_parts(weight.name):
            count = len(self._graph.module_children.get(container, ()))
            router = self._routers.get(count) or self._routers.get(count * self._plan.ep)
            if router is None or router[2].startswith(f"{container}."):
                continue
            if router[2].startswith(container.rpartition(".")[0]):
                return container, count, number
        return None

    def _path(self, call: int) -> str:
        return self._graph.paths[calls_of(self._graph).path[call]] if call >= 0 else ""


def _rows_per_token(kind: OpKind, tokens: int) -> int:
    """Rows of a grouped matmul for each token: what a router that chooses one expert at a time chose in all."""
    if op_family(kind.name) is not WorkFamily.GROUPED or len(kind.inputs[0].shape) != 2:
        return 1
    return max(1, kind.inputs[0].shape[0] // max(tokens, 1))


def _is_matrix(weight: Parameter, path: str) -> bool:
    """A weight right below `path` is a stack, one dimension of which numbers the experts."""
    is_stack = "." not in weight.name[len(path) + 1 :]
    return len(weight.meta.shape) - is_stack > 1


def _numbered_parts(name: str) -> Iterator[tuple[str, int]]:
    """(`a.b`, 3) for every number in a dotted name, the innermost first."""
    parts = name.split(".")
    for place in range(len(parts) - 2, 0, -1):
        if parts[place].isdigit():
            yield ".".join(parts[:place]), int(parts[place])


def routing_policy_of(graph: CallGraph) -> str:
    """By which policy experts are counted: the trace's, where it names an expectation, else what it touched."""
    policy = graph.workload.get("routing")
    return policy if policy in (UNIFORM, BALANCED, "one") else AS_TRACED if policy else UNIFORM
