"""What a phase needs, as forms: weights, cache, memory that stays, and necessary work by stage.

Each figure is what its own analysis says of the call graph of a point. The experts that a router touches are an
expectation, no polynomial: their bytes are worked out by the formula of the routing policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds_by_stage, ops_of, stage_names, stage_of_ops
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.memory.live_memory import live_bytes
from llm_perf_opt.costs.memory.need import resident_bytes, weight_bytes
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.expert_blocks import AS_TRACED, distinct_experts, routing_policy_of
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork, necessary_by_stage
from llm_perf_opt.costs.parameters import count_distinct_parameters
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function.figures.rebuilding import Fitted, Rebuilt
from llm_perf_opt.sweeps.function.form import Column, Evaluation, Form

RESIDENT = "resident_bytes"  # weights, buffers and constants: with the peak they are the memory that is needed
_Key = tuple[str, str, str]  # figure, stage, dtype; "" where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertForms:
    """The experts of one layer on a rank, as in `ExpertBlock`: `tokens` choose `chosen`, each of this many bytes."""

    experts: int
    chosen: int
    bytes_each: int
    ranks: int
    ranks_alike: int
    tokens: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class NecessaryForms:
    """Necessary work of one stage. `bytes` are without the routed experts; None: the trace follows no memory."""

    flops_by_dtype: Mapping[str, Form]
    bytes: Form | None
    experts: tuple[ExpertForms, ...]
    forwards: Form  # how often the stage runs: as often as there are sequences, where a loop runs it


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedForms:
    """What a phase needs in one cell. None is unknown.

    `necessary` is None where no form gives it: it is then asked point by point. `policy` counts the experts that a
    router touches.
    """

    weight_bytes: Form
    parameters: Form
    resident_bytes: Form | None
    cache_bytes: Form | None
    necessary: Mapping[str, NecessaryForms] | None
    policy: str
    by_point: frozenset[str]  # of the first four


def need_forms(rebuilt: Rebuilt) -> NeedForms:
    """The needs of a program in the region of its cell."""
    fitted = rebuilt.fit(_plain_needs)
    skeleton = rebuilt.program.skeleton
    return NeedForms(
        weight_bytes=fitted.forms.get("weight_bytes") or Form(),
        parameters=fitted.forms.get("parameters") or Form(),
        resident_bytes=fitted.forms.get(RESIDENT),
        cache_bytes=fitted.forms.get("cache_bytes"),
        necessary=_necessary_forms(rebuilt),
        policy=routing_policy_of(skeleton),
        by_point=fitted.by_point,
    )


def _plain_needs(graph: CallGraph) -> dict[str, int | None]:
    cache = kv_cache([graph])
    return {
        "weight_bytes": weight_bytes(graph),
        "parameters": count_distinct_parameters([graph]),
        RESIDENT: resident_bytes(graph),
        "cache_bytes": None if cache is None else cache.bytes,
    }


def _necessary_forms(rebuilt: Rebuilt) -> Mapping[str, NecessaryForms] | None:
    """Stage -> necessary work; None where a part of it is no form."""
    work = rebuilt.fit(_necessary_needs)
    if work.by_point:
        return None
    stages = dict.fromkeys(stage for _, stage, _ in work.forms)
    with_experts = any(figure == "experts" and form != Form() for (figure, _, _), form in work.forms.items())
    experts = _experts(rebuilt) if with_experts else {}
    return None if experts is None else {stage: _stage_forms(work, stage, experts.get(stage, ())) for stage in stages}


def _stage_forms(work: Fitted[_Key], stage: str, experts: tuple[ExpertForms, ...]) -> NecessaryForms:
    flops = {dtype: form for (figure, of, dtype), form in work.forms.items() if (figure, of) == ("flops", stage)}
    forwards = work.forms["forwards", stage, ""]
    assert forwards is not None, "how often a stage runs is counted in every graph"
    return NecessaryForms(
        flops_by_dtype={dtype: form for dtype, form in flops.items() if form is not None},
        bytes=work.forms["bytes", stage, ""],
        experts=experts,
        forwards=forwards,
    )


def _necessary_needs(graph: CallGraph) -> dict[_Key, int | None]:
    facts: dict[_Key, int | None] = {}
    for stage, work in necessary_by_stage(graph).items():
        known = work.bytes is not None and work.expert_bytes is not None
        facts["bytes", stage, ""] = (work.bytes or 0) - (work.expert_bytes or 0) if known else None
        facts["forwards", stage, ""] = work.forwards
        facts["experts", stage, ""] = len(work.distinct_experts)
        facts.update({("flops", stage, dtype): flops for dtype, flops in work.flops_by_dtype.items()})
    return facts


def _experts(rebuilt: Rebuilt) -> dict[str, tuple[ExpertForms, ...]] | None:
    """Stage -> the experts of its layers in the order in which they run; None where a policy needs the trace itself."""
    if routing_policy_of(rebuilt.program.skeleton) == AS_TRACED:
        return None
    fitted = rebuilt.fit(_expert_needs)
    if fitted.by_point:
        return None
    by_stage: dict[str, list[ExpertForms]] = {}
    for number in range(1 + max((number for number, _, _ in fitted.forms), default=-1)):
        facts = {what: form for (place, what, _), form in fitted.forms.items() if place == number}
        stage = next(stage for place, _, stage in fitted.forms if place == number)
        numbers = [None if (form := facts[what]) is None else form.constant for what in _BLOCK]
        tokens = facts["tokens"]
        if tokens is None or None in numbers:
            return None
        facts_of_block = {what: int(number or 0) for what, number in zip(_BLOCK, numbers, strict=True)}
        block = ExpertForms(tokens=tokens, **facts_of_block)
        by_stage.setdefault(stage, []).append(block)
    return {stage: tuple(blocks) for stage, blocks in by_stage.items()}


_BLOCK = ("experts", "chosen", "bytes_each", "ranks", "ranks_alike")


def _expert_needs(graph: CallGraph) -> dict[tuple[int, str, str], int | None]:
    """Number of the block, what is asked of it and its stage -> the figure."""
    stages, names = stage_of_ops(graph), stage_names(graph)
    return {
        (number, what, names[stages[block.row]]): getattr(block, what)
        for number, block in enumerate(anatomy_of(graph).experts)
        for what in (*_BLOCK, "tokens")
    }


def stage_costs_of(graph: CallGraph) -> dict[tuple[str, str], int | None]:
    """(Stage, figure) -> what the code of one graph costs as written, by the analyses themselves."""
    facts: dict[tuple[str, str], int | None] = {}
    for stage, kinds in count_kinds_by_stage(graph).items():
        if not kinds:
            continue
        costs = [(price(kind), len(kernels_of(kind)), count) for kind, count in kinds.items()]
        priced = [(cost, count) for cost, _, count in costs if cost is not None]
        facts[stage, "flops"] = sum(cost.flops * count for cost, count in priced)
        facts[stage, "vector_flops"] = sum(cost.vector_flops * count for cost, count in priced)
        facts[stage, "bytes_moved"] = sum(cost.bytes_moved * count for cost, count in priced)
        facts[stage, "launches"] = sum(launches * count for _, launches, count in costs)
        facts[stage, "ops"] = sum(kinds.values())
        facts[stage, "unpriced_ops"] = sum(count for cost, _, count in costs if cost is None)
    return facts


def costs_of(graph: CallGraph) -> dict[str, int | None]:
    """The figures of all stages together, and the peak."""
    stages = stage_costs_of(graph)
    names = ("flops", "vector_flops", "bytes_moved", "launches")
    totals = {name: sum(value or 0 for (_, figure), value in stages.items() if figure == name) for name in names}
    return {**totals, "peak_bytes": _peak(graph)}


def figures_of(graph: CallGraph) -> dict[str, int | None]:
    """Every figure of one graph: the answer at a point where no form gives it."""
    costs, needs = costs_of(graph), _plain_needs(graph)
    peak, resident = costs["peak_bytes"], needs.pop(RESIDENT)
    work = list(necessary_by_stage(graph).values())
    return {
        **costs,
        **needs,
        "needed_bytes": None if peak is None or resident is None else peak + resident,
        "necessary_flops": sum(stage.flops for stage in work) if work else None,
        "necessary_bytes": _sum_known(_bytes_of(work)),
    }


def _peak(graph: CallGraph) -> int | None:
    if graph.storages is None:
        return None
    return max(live_bytes(graph.storages, len(ops_of(graph).kind)), default=0)


def _bytes_of(work: Sequence[NecessaryWork]) -> Iterator[int | None]:
    return (stage.bytes for stage in work) if work else iter([None])


def _sum_known(values: Iterator[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


Floats = NDArray[np.float64]
_SMALL = 2**56  # more than a hundred of these stay within int64


def must_read_bytes(needs: NecessaryForms, policy: str, at: Evaluation) -> Column:
    """Bytes that a stage must read, experts by the routing policy included."""
    assert needs.bytes is not None
    if not needs.experts:
        return at.of(needs.bytes)
    distinct: dict[ExpertForms, Floats] = {}
    total = np.zeros(at.size)
    for block in needs.experts:
        if block not in distinct:
            distinct[block] = _distinct(block, policy, at) * block.bytes_each
        total += distinct[block]
    return sum_of([at.of(needs.bytes), np.rint(total).astype(np.int64)])


def necessary_column(name: str, needs: NeedForms, at: Evaluation) -> Column:
    """`necessary_flops` or `necessary_bytes` of all stages together; None where that is not known."""
    assert needs.necessary is not None
    stages = list(needs.necessary.values())
    if not stages or (name == "necessary_bytes" and any(stage.bytes is None for stage in stages)):
        return np.full(at.size, None, dtype=object)
    if name == "necessary_bytes":
        return sum_of([must_read_bytes(stage, needs.policy, at) for stage in stages])
    flops = [form for stage in stages for form in stage.flops_by_dtype.values()]
    return at.of(sum(flops, Form()))


def sum_of(columns: Sequence[Column]) -> Column:
    """Columns added up, exact: int64 where no sum can leave it."""
    is_small = all(column.dtype == np.int64 and np.abs(column).max(initial=0) < _SMALL for column in columns)
    parts = columns if is_small else [column.astype(object) for column in columns]
    return reduce(np.add, parts)


def _distinct(block: ExpertForms, policy: str, at: Evaluation) -> Floats:
    tokens, places = np.unique(at.of(block.tokens), return_inverse=True)
    spread = {"ranks": block.ranks, "ranks_alike": block.ranks_alike}
    known = [distinct_experts(policy, block.experts, block.chosen, int(count), 0, **spread) for count in tokens]
    return np.asarray(known, dtype=np.float64)[places]
