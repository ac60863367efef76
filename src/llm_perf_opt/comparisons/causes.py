"""Why two traces may differ: every cause by name, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from llm_perf_opt.comparisons.code_causes import (
    another_code,
    cache_objects,
    container,
    fused_activation,
    fused_latent_inputs,
    fused_norms,
    fused_qkv,
    gate_and_up,
    grouped_experts,
    latent_attention,
    order_of_tensors,
    paged_attention,
    rows_in_one,
    shared_matrices,
    tensor_listed_once,
    tracer_cannot_see,
    tracer_cannot_see_ops,
    unseen_direct_forward,
    weights_listed,
    written_through_a_view,
)
from llm_perf_opt.comparisons.difference import (
    ALL,
    COST_ASPECTS,
    Aspect,
    Claim,
    Difference,
    Finding,
    Pair,
    Weights,
    find_differences,
)
from llm_perf_opt.comparisons.side import OUTSIDE, Side, Tensor
from llm_perf_opt.comparisons.workload_causes import (
    another_model,
    another_phase,
    decode_length,
    library_version,
    parallel_plan,
    partial_run,
    routing,
    workload,
)
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.module_selection import recorded_of, recorded_only
from llm_perf_opt.core.report import Level, Note
from llm_perf_opt.core.tensor_formats import is_weight_format, untransposed
from llm_perf_opt.costs.reconcile import Cause, CauseTable, Explanation

Types = dict[tuple[str, str], None]  # (left, right), each once, in order
Stored = Mapping[str, tuple[object, object]]  # header field -> both sides


def stored_format(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Weights of the same shapes of which a side stores some in a format, and what a cache of another type changes.

    Bytes moved elsewhere follow where the headers name another format and the FLOPs agree.
    """
    section = "deployment."
    stored = {
        name.removeprefix(section): sides for name, sides in pair.changed_fields().items() if name.startswith(section)
    }
    for difference in differences:
        if detail := _detail(difference, stored):
            yield Claim(difference=difference, detail=detail)


def _detail(difference: Difference, stored: Stored) -> str:
    if difference.aspect is Aspect.WEIGHTS:
        return _text("weights", _weight_types(difference, stored))
    if difference.aspect in (Aspect.INPUTS, Aspect.OUTPUTS):
        return _handed_text(difference, stored.get("cache"))
    if difference.aspect is Aspect.BYTES and difference.flops_change == 0:
        return ", ".join(f"{name} {_side(left)} -> {_side(right)}" for name, (left, right) in _formats(stored))
    return ""


def _weight_types(difference: Difference, stored: Stored) -> Types:
    if not (isinstance(difference.left, tuple) and isinstance(difference.right, tuple)):
        return {}
    left, right = cast("Weights", difference.left), cast("Weights", difference.right)
    if [name for name, _ in left] != [name for name, _ in right]:
        return {}
    types = _changed_types([(mine, theirs) for (_, mine), (_, theirs) in zip(left, right, strict=True)])
    are_stored = all(any(map(is_weight_format, sides)) for sides in types)
    return types if are_stored or "weights" in stored else {}


def _handed_text(difference: Difference, cache: tuple[object, object] | None) -> str:
    """Tensors that a module is handed or gives back: weights, and the cache where a header gives its type."""
    left, right = ([tensor for tensors, _ in observed for tensor in tensors] for observed in difference.observed)
    if len(left) != len(right):
        return ""
    types = _changed_types(list(zip(left, right, strict=True)))
    weights: Types = {sides: None for sides in types if any(map(is_weight_format, sides))}
    cached: Types = {sides: None for sides in types if sides not in weights and _is_told(sides, cache)}
    if len(weights) + len(cached) < len(types):
        return ""
    return ", ".join(filter(None, (_text("weights", weights), _text("cache", cached))))


def _is_told(types: tuple[str, str], cache: tuple[object, object] | None) -> bool:
    return cache is not None and all(stated in (None, seen) for stated, seen in zip(cache, types, strict=True))


def _changed_types(pairs: Sequence[tuple[Tensor, Tensor]]) -> Types:
    """The types that differ; nothing where a shape differs too."""
    if any(left[0] != right[0] for left, right in pairs):
        return {}
    return {(untransposed(left[1]), untransposed(right[1])): None for left, right in pairs if left[1] != right[1]}


def _formats(stored: Stored) -> Iterator[tuple[str, tuple[object, object]]]:
    return ((name, sides) for name, sides in stored.items() if name in ("weights", "cache"))


def _side(value: object) -> str:
    return "as traced" if value is None else str(value)


def _text(what: str, types: Types) -> str:
    return ", ".join(f"{what} {left} -> {right}" for left, right in types)


def filtered_trace(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Claims what follows from the filter that a header states, and nothing else.

    A module that the filter leaves out has no calls there. One that is recorded has the nearest recorded module as its
    caller, and that module has the ops of those left out.
    """
    for filtered, other in (pair.sides, pair.sides[::-1]):
        recorded = recorded_of(filtered.graph)
        if recorded is None:
            continue
        absorbing = _absorbing(other, recorded)
        detail = str(recorded_only(filtered.graph.workload))
        for difference in differences:
            if _follows(difference, filtered, other, recorded, absorbing):
                yield Claim(difference=difference, detail=detail)


def filter_notes(pairs: Sequence[Pair]) -> Iterator[Note]:
    """A warning for each run that is not recorded whole."""
    for name, place in (("A", 0), ("B", 1)):
        recorded = dict.fromkeys(recorded_only(pair.sides[place].graph.workload) for pair in pairs)
        for modules in filter(None, recorded):
            yield Note(
                f"{name} is a filtered trace: it records {modules} and leaves out calls of other modules.",
                Level.WARNING,
            )


def _follows(
    difference: Difference, filtered: Side, other: Side, recorded: frozenset[str], absorbing: set[str]
) -> bool:
    path = difference.path
    if path in (filtered.classes or {}) and path not in recorded:
        return filtered.calls.get(path, 0) == 0
    if difference.aspect is Aspect.EDGE:
        is_recorded = difference.caller is None or difference.caller in recorded
        passed_by = any(caller not in recorded for caller in other.callers.get(path, {}))
        return filtered.calls.get(path, 0) == other.calls.get(path, 0) and (not is_recorded or passed_by)
    return difference.aspect in COST_ASPECTS and path in absorbing


def _absorbing(side: Side, recorded: frozenset[str]) -> set[str]:
    """The recorded modules around those that ran here and are not recorded."""
    explained: set[str] = set()
    seen: set[str] = set()
    waiting = [path for path in side.calls if path not in recorded]
    while waiting:
        for caller in side.callers.get(waiting.pop(), {}):
            if caller in recorded:
                explained.add(caller)
            elif caller not in seen:
                seen.add(caller)
                waiting.append(caller)
    return explained


Claims = Callable[[Pair, Sequence[Difference]], Iterable[Claim]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCause(Cause):
    """A cause that claims only the differences it can prove from the two traces."""

    claims: Claims


# Name, meaning and claims of each, in the order in which they are tried.
CAUSES = CauseTable(
    *(
        TraceCause(name=name, meaning=meaning, claims=claims)
        for name, meaning, claims in (
            ("tracer cannot see ops", "one tracer saw no ops, or no shapes of them", tracer_cannot_see_ops),
            ("tracer cannot see", "one tracer saw no module tree, no weights or no tensors", tracer_cannot_see),
            ("filtered trace", "one trace records only some of the modules (--only, --stage)", filtered_trace),
            ("fused QKV", "one code projects queries, keys and values in one matmul", fused_qkv),
            ("gate and up in one", "one code runs gate and up as one matmul", gate_and_up),
            (
                "latent projections in one",
                "one code makes latent queries, keys and values in one matmul",
                fused_latent_inputs,
            ),
            ("shared matrices", "one code splits matrices between ranks that the other replicates", shared_matrices),
            (
                "latent attention in one op",
                "one code attends on latent vectors in one op, absorbed in a step of one token",
                latent_attention,
            ),
            ("grouped experts", "one code runs the routed experts of a layer in one op", grouped_experts),
            ("attention on pages", "one code attends on the pages of a cache in one op", paged_attention),
            ("fused norm", "one code runs a norm and the sum before it in one op", fused_norms),
            ("fused activation", "one code runs an activation and the matmul after it in one op", fused_activation),
            ("rows in one dimension", "one code lays the tokens of all sequences in a row", rows_in_one),
            ("another code", "the runs use two implementations of the model", another_code),
            ("container", "one tracer counts calls of a class without a forward", container),
            ("routing", "the experts got different shares of the same rows", routing),
            (
                "unseen direct forward",
                "a forward was called directly, so the hooks of one tracer missed it",
                unseen_direct_forward,
            ),
            ("order of tensors", "the tracers list the same tensors in a different order", order_of_tensors),
            ("tensor listed once", "one tracer lists a repeated tensor only once", tensor_listed_once),
            ("written through a view", "the tensors agree but for dimensions of size one", written_through_a_view),
            ("weights listed as inputs", "one tracer lists weights among the inputs", weights_listed),
            ("parallel plan", "the model is split between ranks in another way", parallel_plan),
            ("cache objects", "one tracer reads a cache object that the other does not open", cache_objects),
            ("stored format", "weights or cache are stored in a different format", stored_format),
            ("partial run", "one trace stopped before the end", partial_run),
            ("decode length", "the runs decoded different numbers of tokens", decode_length),
            ("workload", "the runs had different inputs", workload),
            ("another model", "the traces are of different models", another_model),
            ("another phase", "the traces are of different phases", another_phase),
            ("library version", "the library versions differ", library_version),
        )
    )
)


def explained(pair: Pair, differences: Sequence[Difference]) -> dict[Difference, Explanation]:
    """Difference -> its explanation; the first cause to claim it keeps it, and what no cause claims is not there."""
    explanations: dict[Difference, Explanation] = {}
    for cause in CAUSES.values():
        waiting = [difference for difference in differences if difference not in explanations]
        if not waiting:
            break
        for claim in cause.claims(pair, waiting):
            explanations[claim.difference] = Explanation(cause=cause.name, detail=claim.detail)
    return explanations


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two traces of one phase and what they do not share."""

    pair: Pair
    findings: tuple[Finding, ...]

    @property
    def phase(self) -> str:
        """The phase, or both where they differ."""
        left, right = (side.graph.phase for side in self.pair.sides)
        return left if left == right else f"{left}/{right}"

    @property
    def unexplained(self) -> tuple[Finding, ...]:
        """The findings without a cause."""
        return tuple(finding for finding in self.findings if finding.cause is None)


def compare(left: CallGraph, right: CallGraph) -> Comparison:
    """Every difference between two traces, with the cause that can be proved from them.

    A module's cost follows from its calls and tensors, so where these differ the difference in cost has their cause.
    """
    pair = Pair(left=Side(left), right=Side(right))
    differences = find_differences(pair)
    explanations: dict[Difference, Explanation | None] = {}
    explanations.update(explained(pair, [difference for difference in differences if not _is_cost(difference)]))
    followed = _Followed(pair, differences, explanations)
    open_costs = []
    for difference in filter(_is_cost, differences):
        origin = followed.origin(difference)
        if origin is None:
            open_costs.append(difference)
        else:
            explanations[difference] = followed.by_path[origin]
    explanations.update(explained(pair, open_costs))
    findings = (Finding(difference=difference, explanation=explanations.get(difference)) for difference in differences)
    return Comparison(pair=pair, findings=tuple(findings))


def _is_cost(difference: Difference) -> bool:
    return difference.aspect in COST_ASPECTS


class _Followed:
    """Which difference in calls or tensors a difference in cost follows from, and what explains that one."""

    def __init__(
        self, pair: Pair, differences: Sequence[Difference], explanations: Mapping[Difference, Explanation | None]
    ) -> None:
        self._pair = pair
        self.by_path: dict[str, Explanation | None] = {}
        for difference in differences:
            if not _is_cost(difference) and difference.aspect is not Aspect.EDGE and difference.path != ALL:
                explanation = explanations.get(difference)
                if explanation is None or difference.path not in self.by_path:  # one open question keeps it open
                    self.by_path[difference.path] = explanation

    def origin(self, cost: Difference) -> str | None:
        """The module with the difference that this one follows from; None where calls and tensors agree."""
        path: str | None = "" if cost.path == OUTSIDE else cost.path  # what runs around the model serves its calls
        passed: set[str] = set()
        while path is not None and path not in passed:  # modules may call themselves, or each other
            if path in self.by_path:
                return path
            passed.add(path)
            path = self._absent_caller(path)
        return None

    def _absent_caller(self, path: str) -> str | None:
        """Up to where a module that one side never called would have been called from."""
        for side, other in (self._pair.sides, self._pair.sides[::-1]):
            if side.calls.get(path) and not other.calls.get(path):
                return next(iter(side.callers.get(path, {})), path.rpartition(".")[0] if path else None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LonePhase:
    """A phase that only one run has; `cause` is None unless the other run's workload leaves it out."""

    phase: str
    side: str
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Pairs of traces, in the order of the left run, and the phases without a partner."""

    pairs: tuple[tuple[CallGraph, CallGraph], ...]
    lone: tuple[LonePhase, ...]


def match_phases(left: Sequence[CallGraph], right: Sequence[CallGraph], wanted: Collection[str] = ()) -> Matched:
    """Match two runs phase by phase; one trace on each side is a pair even if their phases differ."""
    if len(left) == len(right) == 1 and not wanted:
        return Matched(pairs=((left[0], right[0]),), lone=())
    mine, theirs = ({graph.phase: graph for graph in graphs} for graphs in (left, right))
    _require_phases(wanted, {**mine, **theirs})
    phases = [phase for phase in {**mine, **theirs} if not wanted or phase in wanted]
    lone = [
        LonePhase(phase=phase, side=side, cause=_cause(phase, here, other))
        for side, here, other in (("A", mine, theirs), ("B", theirs, mine))
        for phase in phases
        if phase in here and phase not in other
    ]
    pairs = tuple((mine[phase], theirs[phase]) for phase in phases if phase in mine and phase in theirs)
    if not pairs:
        raise UsageError(
            "The two runs have no phase in common.",
            why=f"A has {', '.join(mine)}; B has {', '.join(theirs)}",
            fix="name two files to compare traces of different phases",
        )
    return Matched(pairs=pairs, lone=tuple(lone))


def _cause(phase: str, here: Mapping[str, CallGraph], other: Mapping[str, CallGraph]) -> str | None:
    steps = here[phase].runtime.get("decode_steps")
    decode_steps = {graph.workload.get("decode_steps") for graph in other.values()}
    return "decode length" if steps and decode_steps == {0} else None


def _require_phases(wanted: Collection[str], known: Collection[str]) -> None:
    for phase in wanted:
        if phase not in known:
            raise UsageError(
                f"Neither run has a phase {phase!r}.",
                why=f"phases there: {', '.join(known)}",
                fix="name one of these, or leave --phase out",
            )
