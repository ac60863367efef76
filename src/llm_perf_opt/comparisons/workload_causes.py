"""The two runs had different requests: another workload, phase, model, version, or a run cut short.

Words and grids (`mode`, `crops`, `image`) may change any shape and any number of calls. A number (`context_tokens`,
`batch`) is blamed only where the traces show it: a dimension, or the rows of all experts together, moved as it did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TypeGuard, cast

from llm_perf_opt.comparisons.difference import (
    CALL_ASPECTS,
    COST_ASPECTS,
    TENSOR_ASPECTS,
    Aspect,
    Claim,
    Difference,
    Pair,
    Weights,
    find_differences,
)
from llm_perf_opt.comparisons.side import OwnOps, Side, Tensor, Tensors
from llm_perf_opt.core.callgraph.queries import numbered_name
from llm_perf_opt.core.collectives import collective_kind
from llm_perf_opt.core.module_selection import ONLY, ONLY_STAGES
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.costs.memory.kv_cache import new_tokens

_OF_CODE = COST_ASPECTS | {Aspect.MODULE, Aspect.CLASS, Aspect.WEIGHTS}


def another_model(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The headers name two models, so nothing need agree."""
    yield from _claim_all(pair, differences, "model")


def another_phase(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The headers name two phases of a model, which run different parts of it."""
    yield from _claim_all(pair, differences, "phase")


def _claim_all(pair: Pair, differences: Sequence[Difference], field: str) -> Iterator[Claim]:
    changed = pair.contradicting_fields()
    if field in changed:
        left, right = changed[field]
        yield from (Claim(difference=difference, detail=f"{left} -> {right}") for difference in differences)


def library_version(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Other library code may build other modules and run other ops.

    It is not taken as a reason for other calls or shapes of modules that both sides have: those remain unexplained.
    """
    changed = pair.contradicting_fields("library.")
    versions = ", ".join(f"{name} {left} -> {right}" for name, (left, right) in changed.items())
    if versions:
        yield from (
            Claim(difference=difference, detail=versions) for difference in differences if difference.aspect in _OF_CODE
        )


def partial_run(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One run stopped half-way: it has fewer calls than the other, and no outputs of the calls that were open."""
    stopped = [side for side in pair.sides if side.graph.stopped_in is not None]
    if len(stopped) != 1:
        return
    detail = f"it stopped in {stopped[0].graph.stopped_in or '(root)'}"
    for difference in differences:
        if difference.aspect in CALL_ASPECTS:
            left, right = difference.counts
            is_short = left < right if stopped[0] is pair.left else right < left
        else:
            is_short = difference.aspect in TENSOR_ASPECTS
        if is_short:
            yield Claim(difference=difference, detail=detail)


def decode_length(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """A decode of more steps calls everything in proportion; tensors that only the longer run saw belong to it too."""
    left_steps, right_steps = map(decode_steps, pair.sides)
    if not left_steps or not right_steps or left_steps == right_steps:
        return
    detail = f"{left_steps} -> {right_steps} steps"
    for difference in differences:
        if difference.aspect in CALL_ASPECTS:
            left, right = difference.counts
            in_proportion = left * right_steps == right * left_steps
        elif difference.aspect in TENSOR_ASPECTS:
            shorter, longer = difference.observed if left_steps < right_steps else difference.observed[::-1]
            in_proportion = dict(shorter).keys() <= dict(longer).keys()
        else:
            continue
        if in_proportion:
            yield Claim(difference=difference, detail=detail)


def decode_steps(side: Side) -> int:
    """Steps of the decode that this trace is about; 0 where it is about something else."""
    steps = side.graph.runtime.get("decode_steps", 0)
    return steps if isinstance(steps, int) else 0


Fields = Mapping[str, tuple[object, object]]

_WITHOUT_SIZE = frozenset({"dtype", "attention", "device", "routing", "weights"})  # they change how, not how much
# The decode length; shapes, which follow from the other fields; the filter of a trace.
_OTHER_CAUSE = frozenset({"decode_steps", "inputs", ONLY, ONLY_STAGES})


def workload(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Only between runs of one model and phase with headers that differ in the named field."""
    fields = pair.contradicting_fields("workload.")
    if not fields or {"model", "phase"} & pair.contradicting_fields().keys():
        return
    evidence = _Evidence(pair, fields)
    for difference in differences:
        if blamed := evidence.fields_for(difference):
            yield Claim(difference=difference, detail=", ".join(_told(name, *fields[name]) for name in blamed))


def _told(name: str, left: object, right: object) -> str:
    return f"{name} {_short(left)} -> {_short(right)}"


def _short(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


class _Evidence:
    """Which of the changed fields the two traces show at work in a module."""

    def __init__(self, pair: Pair, fields: Fields) -> None:
        self._pair = pair
        self._fields = fields
        sized = {name: values for name, values in fields.items() if name not in _WITHOUT_SIZE | _OTHER_CAUSE}
        self._numbers = _numbers(sized)
        self._words = [name for name in sized if name not in self._numbers]
        self._field_of_rows = cache(self._find_field_of_rows)

    def fields_for(self, difference: Difference) -> list[str]:
        if difference.aspect in TENSOR_ASPECTS:
            return self._of_tensors(difference)
        if difference.aspect is Aspect.WEIGHTS:
            return [name for name in self._fields if name == "dtype"]
        if difference.aspect in CALL_ASPECTS:
            return self._of_size(difference.path)
        if difference.aspect is Aspect.CLASS:
            return [name for name in self._fields if name == "attention"]
        if difference.aspect in COST_ASPECTS:
            return [name for name in self._fields if name in {"dtype", "attention", "device"}]
        return []

    def _of_tensors(self, difference: Difference) -> list[str]:
        pairs = aligned(difference)
        if pairs is None:
            attention = [name for name in self._fields if name == "attention"]
            return self._of_size(difference.path) or attention
        dtypes = {(left[1], right[1]) for left, right in pairs if left[1] != right[1]}
        if dtypes and self._fields.get("dtype") not in dtypes:
            return []
        dims = {dims for left, right in pairs for dims in zip(left[0], right[0], strict=True) if dims[0] != dims[1]}
        of_dtype = ["dtype"] if dtypes else []
        if not dims and dtypes:
            return of_dtype
        exact = [name for name, values in self._numbers.items() if all(moved_alike(dim, values) for dim in dims)]
        sizes = exact[:1] if dims and exact else self._of_size(difference.path)
        return of_dtype + sizes if sizes else []

    def _of_size(self, path: str) -> list[str]:
        """Numbers that show up in the module's own shapes, then every other field of the workload."""
        for place in expert_places(path):
            if field := self._field_of_rows(*place):
                return [field]
        left, right = (_dims(side, path) for side in self._pair.sides)
        gone, new = left - right, right - left
        for name, values in self._numbers.items():
            if gone and new and self._are_lengths(gone, new, values):
                return [name]
        shown = [
            name
            for name, values in self._numbers.items()
            if any(moved_alike((dim, other), values) for dim in gone for other in new)
        ]
        return [*self._words, *shown]

    def _are_lengths(self, gone: set[int], new: set[int], field: tuple[int, int]) -> bool:
        """Every dimension that differs is the field, or at most the decoded tokens more."""
        return all(
            first <= dim <= first + max(1, decode_steps(side), new_tokens(side.graph))
            for dims, first, side in zip((gone, new), field, self._pair.sides, strict=True)
            for dim in dims
        )

    def _find_field_of_rows(self, family: str, inside: str) -> str | None:
        rows = rows_of_siblings(self._pair, family, inside)
        scaled = (name for name, (left, right) in self._numbers.items() if rows and rows_scale(*rows, left, right))
        return next(scaled, None)


def numbers_of(pair: Pair) -> dict[str, tuple[int, int]]:
    """The numbers of the workload in which the two runs differ."""
    return _numbers(pair.contradicting_fields("workload."))


def _numbers(fields: Fields) -> dict[str, tuple[int, int]]:
    return {name: (left, right) for name, (left, right) in fields.items() if _is_int(left) and _is_int(right)}


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int


def moved_alike(dims: tuple[int, int], field: tuple[int, int]) -> bool:
    """The dimension is the field, or one more (a cache with the new token), or grew in the same proportion."""
    (before, after), (left, right) = dims, field
    return (before - left == after - right and 0 <= before - left <= 1) or before * right == after * left


def _dims(side: Side, path: str) -> set[int]:
    observed = [*(side.inputs or {}).get(path, {}), *(side.outputs or {}).get(path, {})]
    return {dim for tensors in observed for shape, _ in tensors for dim in shape}


def aligned(difference: Difference) -> list[tuple[Tensor, Tensor]] | None:
    """Tensor by tensor, where both sides saw as many of the same ranks; otherwise None."""
    left, right = (_flat(value) for value in difference.observed)
    if [len(shape) for shape, _ in left] != [len(shape) for shape, _ in right]:
        return None
    return list(zip(left, right, strict=True))


def _flat(observed: Sequence[tuple[Tensors, int]]) -> list[Tensor]:
    return [tensor for tensors, _ in observed for tensor in tensors]


_WHOLE = ParallelPlan()
_STAND_IN = "PipelineIdentityLayer"  # what transformers leaves in the place of a layer of another stage


def parallel_plan(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Only between ranks of one model and phase with headers that name two plans, or two ranks of one plan.

    A shard is claimed where every dimension that differs is divided as the plans say, and where no number of the
    workload moved the same way. Modules that one rank never calls belong to another stage or another rank's experts.
    Ops follow where collectives are among them, or where a module around or below them is sharded.
    """
    left, right = (plan_in(side.graph.deployment) or _WHOLE for side in pair.sides)
    if left == right or {"model", "phase"} & pair.contradicting_fields().keys():
        return
    evidence = _PlanEvidence(pair, left, right)
    detail = f"{_text(left)} -> {_text(right)}"
    for difference in differences:
        if why := evidence.of(difference):
            yield Claim(difference=difference, detail=f"{detail}: {why}")


def _text(plan: ParallelPlan) -> str:
    return plan.describe() if plan.rank in (None, 0) else f"{plan.describe()} rank {plan.rank}"


class _PlanEvidence:
    """What shows that a difference comes from the plans; empty where nothing does."""

    def __init__(self, pair: Pair, left: ParallelPlan, right: ParallelPlan) -> None:
        self._pair = pair
        self._moves_modules = left.pp != right.pp or left.ep != right.ep or left.rank != right.rank
        self._has_stages = max(left.pp, right.pp) > 1
        self._spreads_experts = left.ep != right.ep
        self._gathers_weights = left.fsdp != right.fsdp
        self._ratios = _ratios(left, right)
        self._numbers = numbers_of(pair).values()
        self._sharded = {difference.path for difference in find_differences(pair) if self._is_shard(difference)}
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
        if difference.aspect in TENSOR_ASPECTS and self._spreads_experts and self._is_in_sharded(path):
            return "tokens of other ranks"
        if difference.aspect in TENSOR_ASPECTS and self._has_stages:
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
            pairs = aligned(difference) if difference.aspect in TENSOR_ASPECTS else None
        if not pairs or any(left[1] != right[1] or len(left[0]) != len(right[0]) for left, right in pairs):
            return False
        moved = {dims for left, right in pairs for dims in zip(left[0], right[0], strict=True) if dims[0] != dims[1]}
        if difference.aspect in TENSOR_ASPECTS and any(self._is_workload(dims) for dims in moved):
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
    sides = (_matmuls([plan.tp, plan.ep, plan.fsdp]) for plan in (left, right))
    return {(ours, theirs) for ours, theirs in product(*sides) if ours != theirs}


def _matmuls(sizes: Sequence[int]) -> set[int]:
    scales = {1}
    for size in sizes:
        scales |= {size * other for other in scales}
    return scales


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


# A router sent the same rows to other experts; experts are found by structure.
#
# Either numbered siblings of one class (`experts.0`, `expert_0`), or one module that its caller calls several times per
# call (the activation inside a loop over fused experts).

Rows = Mapping[tuple[int, tuple[int, ...], str], int]  # (position, last dimension, dtype) -> rows
Shapes = dict[int, Counter[Tensor]]  # position among the tensors -> tensor -> calls
Seen = Mapping[str, Mapping[Tensors, int]]

_MOST_LEVELS = 6  # how far above a module its loop is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """Rows in and out of all experts together, and how often the module that divides them was called."""

    inputs: Rows
    outputs: Rows
    caller_calls: int


def rows_scale(left: ExpertRows, right: ExpertRows, left_scale: int, right_scale: int) -> bool:
    """Whether rows are to each other as the two scales are, for every kind of tensor in and out."""
    return bool(left.inputs) and all(
        {kind: count * right_scale for kind, count in mine.items()}
        == {kind: count * left_scale for kind, count in theirs.items()}
        for mine, theirs in ((left.inputs, right.inputs), (left.outputs, right.outputs))
    )


def expert_places(path: str) -> Iterator[tuple[str, str]]:
    """Every way to read a path as (family of siblings, what is inside the member), the deepest family first."""
    parts = path.split(".")
    for position in range(len(parts) - 1, -1, -1):
        if (prefix := numbered_name(parts[position])) is not None:
            yield ".".join((*parts[:position], prefix)), ".".join(parts[position + 1 :])


def rows_of_siblings(pair: Pair, family: str, inside: str) -> tuple[ExpertRows, ExpertRows] | None:
    """Rows of numbered siblings on both sides; None unless at least one of them got another share.

    The layers of a chain are numbered siblings too, but each of them gets the same share on both sides.
    """
    members = pair.left.members.get(family, [])
    if len(members) < 2 or members != pair.right.members.get(family, []):
        return None
    if len({(side.classes or {}).get(member) for side in pair.sides for member in members}) != 1:
        return None
    callers = [{caller for member in members for caller in side.callers.get(member, {})} for side in pair.sides]
    if callers[0] != callers[1] or len(callers[0]) != 1:
        return None
    paths = [f"{member}.{inside}" if inside else member for member in members]
    return _expert_rows(pair, paths, callers[0].pop()) if _shares_moved(pair, paths) else None


def rows_of_uses(pair: Pair, path: str) -> tuple[ExpertRows, ExpertRows] | None:
    """Rows of all calls of one module, where it or a module around it is called several times by one caller's call."""
    used = path
    for _ in range(_MOST_LEVELS):
        callers = [side.callers.get(used, {}) for side in pair.sides]
        if len(callers[0]) != 1 or callers[0].keys() != callers[1].keys():
            return None
        caller = next(iter(callers[0]))
        if any(side.calls[used] > side.calls[caller] for side in pair.sides):
            return _expert_rows(pair, [path], caller)
        used = caller
    return None


def uses_together_agree(pair: Pair, path: str) -> bool:
    """Several modules share the uses: experts proper, and those that pass rows on untouched. All their rows agree."""
    callers = {caller for side in pair.sides for caller in side.callers.get(path, {})}
    if len(callers) != 1:
        return False
    caller = callers.pop()
    left_calls, right_calls = (side.calls.get(caller, 0) for side in pair.sides)
    shared = {
        child
        for side in pair.sides
        for child in side.callees.get(caller, [])
        if side.calls[child] > side.calls[caller] and side.callers[child].keys() == {caller}
    }
    left, right = (sum(_first_rows(side, child) for child in shared) for side in pair.sides)
    return path in shared and 0 < left * right_calls == right * left_calls


def _first_rows(side: Side, path: str) -> int:
    return _rows(_shapes(side.inputs or {}, [path]).get(0, Counter()))


def _shares_moved(pair: Pair, paths: Sequence[str]) -> bool:
    mine, theirs = ([_total_rows(side, path) for path in paths] for side in pair.sides)
    return any(left * sum(theirs) != right * sum(mine) for left, right in zip(mine, theirs, strict=True))


def _total_rows(side: Side, path: str) -> int:
    shapes = _shapes(side.inputs or {}, [path])
    return sum(_rows(tensors) for tensors in shapes.values())


def _expert_rows(pair: Pair, paths: Sequence[str], caller: str) -> tuple[ExpertRows, ExpertRows] | None:
    if any(side.inputs is None or side.outputs is None for side in pair.sides):
        return None
    inputs = _rows_by_kind(*(_shapes(side.inputs or {}, paths) for side in pair.sides))
    outputs = _rows_by_kind(*(_shapes(side.outputs or {}, paths) for side in pair.sides))
    left, right = (
        ExpertRows(inputs=inputs[side], outputs=outputs[side], caller_calls=pair.sides[side].calls[caller])
        for side in (0, 1)
    )
    return left, right


def _shapes(seen: Seen, paths: Sequence[str]) -> Shapes:
    shapes: Shapes = {}
    for path in paths:
        for tensors, calls in seen.get(path, {}).items():
            for position, tensor in enumerate(tensors):
                shapes.setdefault(position, Counter())[tensor] += calls
    return shapes


def _rows_by_kind(left: Shapes, right: Shapes) -> tuple[Rows, Rows]:
    """Rows by position; a tensor that is the same in every call, as weights are, is left out if others vary."""
    positions = left.keys() | right.keys()
    varying = {position for position in positions if len({*left.get(position, ()), *right.get(position, ())}) > 1}
    mine, theirs = (
        _count_rows({position: shapes[position] for position in (varying or positions) if position in shapes})
        for shapes in (left, right)
    )
    return mine, theirs


def _count_rows(shapes: Shapes) -> Rows:
    rows: Counter[tuple[int, tuple[int, ...], str]] = Counter()
    for position, tensors in shapes.items():
        for (shape, dtype), calls in tensors.items():
            rows[position, shape[-1:], dtype] += calls * math.prod(shape[:-1])
    return rows


def _rows(tensors: Counter[Tensor]) -> int:
    return sum(calls * math.prod(shape[:-1]) for (shape, _), calls in tensors.items())


_DETAIL = "the rows of all experts together agree"


def routing(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Calls and shapes inside experts, where the rows add up to the same per call of the module that divides them.

    That module's own ops too, where they differ by what it does once per expert.
    """

    @cache
    def siblings_agree(family: str, inside: str) -> bool:
        rows = rows_of_siblings(pair, family, inside)
        return rows is not None and rows_scale(*rows, rows[0].caller_calls, rows[1].caller_calls)

    @cache
    def is_rerouted(path: str) -> bool:
        if any(siblings_agree(*place) for place in expert_places(path)):
            return True
        rows = rows_of_uses(pair, path)
        if rows is not None and rows_scale(*rows, rows[0].caller_calls, rows[1].caller_calls):
            return True
        return uses_together_agree(pair, path)

    for difference in differences:
        divides = difference.aspect in COST_ASPECTS and _divides_rows(pair, difference, is_rerouted)
        if divides or is_rerouted(difference.path):
            yield Claim(difference=difference, detail=_DETAIL)


def _divides_rows(pair: Pair, difference: Difference, is_rerouted: Callable[[str], bool]) -> bool:
    """The module calls experts one by one, and its ops differ by a multiple of how many more calls it made."""
    if difference.flops_change != 0:
        return False
    called = {child for side in pair.sides for child in side.callees.get(difference.path, [])}
    experts = [child for child in called if is_rerouted(child)]
    if not experts or difference.aspect is not Aspect.OPS:
        return bool(experts)
    left, right = (sum(side.calls.get(expert, 0) for expert in experts) for side in pair.sides)
    return left != right and _is_multiple(difference.more_ops, right - left)


def _is_multiple(more_ops: Mapping[str, int], more_calls: int) -> bool:
    return bool(more_ops) and all(count % more_calls == 0 and count // more_calls >= 0 for count in more_ops.values())
