"""The same model spread over ranks another way: other shards, modules on other ranks, collectives between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import cast

from llm_perf_opt.analyses.compare.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair, Weights
from llm_perf_opt.analyses.compare.find_differences import find_differences
from llm_perf_opt.analyses.compare.side import OwnOps, Side, Tensor
from llm_perf_opt.analyses.compare.workload_causes import aligned, moved_alike, numbers_of
from llm_perf_opt.core.collectives import collective_kind
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in

_TENSORS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})
_WHOLE = ParallelPlan()
_STAND_IN = "PipelineIdentityLayer"  # what transformers leaves in the place of a layer of another stage


def parallel_plan(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Only between ranks of one model and phase, whose headers name two plans or two ranks of one.

    A shard is claimed where every dimension that differs is divided as the plans say, and where no number of the
    workload moved the same way. Modules that one rank never calls belong to another stage or another rank's experts.
    Ops follow where collectives are among them, or where a module around or below them is sharded.
    """
    left, right = (plan_in(side.graph.deployment) or _WHOLE for side in pair.sides)
    if left == right or {"model", "phase"} & pair.contradicting_fields().keys():
        return
    evidence = _Evidence(pair, left, right)
    detail = f"{_text(left)} -> {_text(right)}"
    for difference in differences:
        if why := evidence.of(difference):
            yield Claim(difference=difference, detail=f"{detail}: {why}")


def _text(plan: ParallelPlan) -> str:
    return plan.describe() if plan.rank in (None, 0) else f"{plan.describe()} rank {plan.rank}"


class _Evidence:
    """What shows that a difference comes from the plans; empty where nothing does."""

    def __init__(self, pair: Pair, left: ParallelPlan, right: ParallelPlan) -> None:
        self._pair = pair
        self._moves_modules = left.pp != right.pp or left.ep != right.ep or left.rank != right.rank
        self._has_stages = max(left.pp, right.pp) > 1
        self._spreads_experts = left.ep != right.ep
        self._gathers_weights = left.fsdp != right.fsdp
        self._ratios = _ratios(left, right)
        self._numbers = numbers_of(pair).values()
        self._sharded = {found.path for found in find_differences(pair) if self._is_shard(found)}
        self._around = _with_callers(self._sharded, pair)

    def of(self, difference: Difference) -> str:
        path = difference.path
        if self._moves_modules and self._is_elsewhere(path):
            return "on another rank"
        if difference.aspect in COST_ASPECTS:
            return self._of_cost(difference)
        if difference.aspect is Aspect.EDGE:
            is_elsewhere = difference.caller is not None and self._is_elsewhere(difference.caller)
            return "on another rank" if self._moves_modules and is_elsewhere else ""
        if self._is_shard(difference):
            return "sharded"
        if difference.aspect in _TENSORS and self._spreads_experts and self._is_in_sharded(path):
            return "tokens of other ranks"
        if difference.aspect in _TENSORS and self._has_stages:
            return self._of_stage(difference)
        return ""

    def _of_stage(self, difference: Difference) -> str:
        """A stage keeps the cache of its own layers, and begins and ends with what it hands on."""
        left, right = ({tensor for tensors, _ in side for tensor in tensors} for side in difference.observed)
        if left <= right or right <= left:
            return "cache of its own layers"
        return "another stage" if difference.path in ("", *self._top_modules()) else ""

    def _of_cost(self, difference: Difference) -> str:
        if any(count and collective_kind(name) is not None for name, count in difference.more_ops.items()):
            return "collectives"
        if difference.path in self._around or self._is_in_sharded(difference.path):
            return "on shards"
        if self._gathers_weights and difference.flops_change == difference.bytes_change == 0:
            return "views of gathered weights"
        only_left_or_right = isinstance(difference.left, OwnOps) != isinstance(difference.right, OwnOps)
        return "another stage" if self._has_stages and only_left_or_right else ""

    def _is_shard(self, difference: Difference) -> bool:
        """Every tensor has the other's type and as many dimensions, those that differ divided as the plans say."""
        if difference.aspect is Aspect.WEIGHTS:
            pairs = _paired_weights(difference)
        else:
            pairs = aligned(difference) if difference.aspect in _TENSORS else None
        if not pairs or any(one[1] != other[1] or len(one[0]) != len(other[0]) for one, other in pairs):
            return False
        moved = {dims for one, other in pairs for dims in zip(one[0], other[0], strict=True) if dims[0] != dims[1]}
        if difference.aspect in _TENSORS and any(self._is_workload(dims) for dims in moved):
            return False
        return bool(moved) and all(self._is_divided(*dims) for dims in moved)

    def _is_workload(self, dims: tuple[int, int]) -> bool:
        return any(moved_alike(dims, values) for values in self._numbers)

    def _is_divided(self, before: int, after: int) -> bool:
        """By the sizes of one axis or of several together; a remainder makes some shards one larger."""
        return any(-1 < before * ours / theirs - after < 1 for ours, theirs in self._ratios)

    def _is_in_sharded(self, path: str) -> bool:
        while path and path not in self._sharded:
            path = path.rpartition(".")[0]
        return bool(path)

    def _is_elsewhere(self, path: str) -> bool:
        """Whether one side never called the module, or has a stand-in for it that does nothing."""
        left, right = (self._runs(side, path) for side in self._pair.sides)
        return left != right

    @staticmethod
    def _runs(side: Side, path: str) -> bool:
        return bool(side.calls.get(path)) and (side.classes or {}).get(path) != _STAND_IN

    def _top_modules(self) -> list[str]:
        return [path for side in self._pair.sides for path in side.callees.get("", ())]


def _ratios(left: ParallelPlan, right: ParallelPlan) -> set[tuple[int, int]]:
    """(divided by on the left, divided by on the right): a tensor may be split over each axis of a plan, or not."""
    sides = (_products([plan.tp, plan.ep, plan.fsdp]) for plan in (left, right))
    return {(ours, theirs) for ours, theirs in product(*sides) if ours != theirs}


def _products(sizes: Sequence[int]) -> set[int]:
    found = {1}
    for size in sizes:
        found |= {size * other for other in found}
    return found


def _paired_weights(difference: Difference) -> list[tuple[Tensor, Tensor]] | None:
    if not (isinstance(difference.left, tuple) and isinstance(difference.right, tuple)):
        return None
    left, right = cast("Weights", difference.left), cast("Weights", difference.right)
    if [name for name, _ in left] != [name for name, _ in right]:
        return None
    return [(mine, theirs) for (_, mine), (_, theirs) in zip(left, right, strict=True)]


def _with_callers(paths: set[str], pair: Pair) -> set[str]:
    """The modules and those that called them directly, which hold and hand on their tensors."""
    return paths | {caller for side, path in product(pair.sides, paths) for caller in side.callers.get(path, {})}
