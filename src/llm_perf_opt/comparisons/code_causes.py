"""Two codes of one model: what an engine joins, opens or lays out in another way than the model's own code.

All of them hold only where the headers name two codes. A join is claimed where the weights prove it: the rows of
several modules on one side add up to the rows of a single module on the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.comparisons.difference import (
    ALL,
    COST_ASPECTS,
    TENSOR_ASPECTS,
    Aspect,
    Claim,
    Difference,
    Observed,
    Pair,
    Weights,
)
from llm_perf_opt.comparisons.side import NO_OPS, Side, Tensor, Tensors
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in

_REFERENCE = "reference"
_LATENT = "vllm.unified_mla_attention_with_output"
_GROUPED = "vllm_moe.routed_experts"
_PAGED = "vllm.unified_attention_with_output"
_NORMS = ("vllm_ir.rms_norm", "vllm_ir.fused_add_rms_norm")
_GATED = ("_C.silu_and_mul", "_C.gelu_and_mul", "_C.gelu_tanh_and_mul", "_C.swigluoai_and_mul", "_C.mul_and_silu")
_QKV = (("q_proj", "k_proj", "v_proj"), "qkv_proj")
_GATE_UP = (("gate_proj", "up_proj"), "gate_up_proj")
_LATENT_INPUTS = (("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj")

Claims = Callable[[Pair, Sequence[Difference]], Iterator[Claim]]


def _codes(pair: Pair) -> tuple[str, str] | None:
    """Which code of the model each side runs; None where it is the same, or the models differ."""
    left, right = (str(side.graph.deployment.get("code", _REFERENCE)) for side in pair.sides)
    is_one_model = not {"model", "phase"} & pair.contradicting_fields().keys()
    return (left, right) if left != right and is_one_model else None


def joined(parts: tuple[str, ...], fused: str) -> Claims:
    """Matmuls of one side that the other runs as one, and what lies between them and their caller."""

    def claims(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
        if _codes(pair) is None:
            return
        owners = _joining(pair, parts, fused) | _joining(Pair(left=pair.right, right=pair.left), parts, fused)
        for difference in differences:
            owner, _, name = difference.path.rpartition(".")
            if owner in owners and name in (*parts, fused):
                yield Claim(difference=difference, detail=f"{' + '.join(parts)} in {fused}: as many rows of weights")

    return claims


def _joining(pair: Pair, parts: tuple[str, ...], fused: str) -> set[str]:
    """Modules with `parts` on the left that have together as many rows as `fused` on the right."""
    left, right = (side.weights or {} for side in pair.sides)
    suffix = f".{fused}"
    owners = (path.removesuffix(suffix) for path in right if path.endswith(suffix))
    return {
        owner
        for owner in owners
        if all(f"{owner}.{part}" in left for part in parts)
        and sum(_rows(left[f"{owner}.{part}"]) for part in parts) == _rows(right[f"{owner}.{fused}"])
    }


def _rows(weights: Weights) -> int:
    return next((tensor[0][0] for name, tensor in weights if name == "weight" and tensor[0]), 0)


fused_qkv = joined(*_QKV)
gate_and_up = joined(*_GATE_UP)
fused_latent_inputs = joined(*_LATENT_INPUTS)


def shared_matrices(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Weights that one code splits between the ranks of tensor parallelism and the other replicates on each."""
    if _codes(pair) is None:
        return
    left, right = (side.weights or {} for side in pair.sides)
    ranks = {(plan_in(side.graph.deployment) or ParallelPlan()).tp for side in pair.sides}
    if len(ranks) != 1 or ranks == {1}:
        return
    (tp,) = ranks
    divided = {path for path in left.keys() & right.keys() if _is_divided(left[path], right[path], tp)}
    for difference in differences:
        if difference.path in divided:
            yield Claim(difference=difference, detail=f"replicated on one side, split between {tp} ranks on the other")


def _is_divided(left: Weights, right: Weights, tp: int) -> bool:
    shapes = [{name: tensor[0] for name, tensor in side}.get("weight", ()) for side in (left, right)]
    if not shapes[0] or len(shapes[0]) != len(shapes[1]):
        return False
    changed = [sorted(sizes) for sizes in zip(*shapes, strict=True) if sizes[0] != sizes[1]]
    return len(changed) == 1 and changed[0][0] * tp == changed[0][1]


def latent_attention(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Everything in a module of attention that one side runs as one op on latent vectors."""
    yield from _inside(pair, differences, _LATENT, "one op on latent vectors; a step of one token expands none")


def paged_attention(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Everything in a module of attention that one side runs as one op on pages, turned in place before it."""
    yield from _inside(pair, differences, _PAGED, "one op on the pages of a cache that nobody copies")


def fused_norms(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Norms that one side runs as one op with the sum before them, and the layers that did these sums themselves."""
    yield from _at(pair, differences, _NORMS, "a norm in one op with the residual sum before it")


def fused_activation(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Activations that one side runs as one op with the matmul after them, and the modules that did it themselves."""
    yield from _at(pair, differences, _GATED, "an activation in one op with the matmul after it")


def _at(pair: Pair, differences: Sequence[Difference], ops: tuple[str, ...], detail: str) -> Iterator[Claim]:
    """Modules in which one of these ops ran on a side, and their callers."""
    if _codes(pair) is None:
        return
    owners = {path for side in pair.sides for path in _modules_with(side, ops)}
    owners |= {path.rpartition(".")[0] for path in owners}
    for difference in differences:
        if difference.path in owners and difference.path:
            yield Claim(difference=difference, detail=detail)


def grouped_experts(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Everything in a layer where one side runs the routed experts as one op."""
    yield from _inside(
        pair, differences, _GROUPED, "the routed experts of a layer in one op, gate and shared experts next to it"
    )


def _inside(pair: Pair, differences: Sequence[Difference], op: str, detail: str) -> Iterator[Claim]:
    if _codes(pair) is None:
        return
    owners = {owner for side in pair.sides for owner in _blocks(side, op)}
    for difference in differences:
        if any(difference.path == owner or difference.path.startswith(f"{owner}.") for owner in owners):
            yield Claim(difference=difference, detail=detail)


def _blocks(side: Side, op: str) -> set[str]:
    """The block of a layer in which an op runs: one word below the number of the layer, `model.layers.3.mlp`."""
    return {_block(path) for path in _modules_with(side, (op,))}


def _modules_with(side: Side, ops: tuple[str, ...]) -> set[str]:
    graph = side.graph
    if graph.ops is None or graph.calls is None:
        return set()
    wanted = {index for index, kind in enumerate(graph.op_kinds) if kind.name.startswith(ops)}
    calls = {call for kind, call in zip(ops_of(graph).kind, ops_of(graph).call, strict=True) if kind in wanted}
    return {graph.paths[graph.calls.path[call]] for call in calls if call >= 0}


def _block(path: str) -> str:
    parts = path.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 2]) if numbers else path


def rows_in_one(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Tensors that are the same numbers: an engine lays the tokens of all sequences in one dimension."""
    if _codes(pair) is None:
        return
    for difference in differences:
        if difference.aspect in TENSOR_ASPECTS and _is_flattened(difference):
            yield Claim(difference=difference, detail="[sequences, tokens, width] as [rows, width]")


def _is_flattened(difference: Difference) -> bool:
    left, right = difference.observed
    if len(left) != len(right) or not left:
        return False
    return all(
        calls == other and _flat(mine) == _flat(theirs)
        for (mine, calls), (theirs, other) in zip(left, right, strict=True)
    )


def _flat(tensors: Tensors) -> list[tuple[int, int, str]]:
    return [(math.prod(shape), shape[-1] if shape else 1, dtype) for shape, dtype in tensors]


def another_code(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Whatever else differs between two codes: other classes, other arguments, other ops for the same function."""
    codes = _codes(pair)
    if codes is not None:
        for difference in differences:
            yield Claim(difference=difference, detail=f"{codes[0]} -> {codes[1]}")


_WITHOUT_FORWARD = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_BLIND_TO = {
    Aspect.MODULE: "the module tree",
    Aspect.WEIGHTS: "weights",
    Aspect.INPUTS: "input tensors",
    Aspect.OUTPUTS: "output tensors",
}


def tracer_cannot_see_ops(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One side has no ops, or does not know what they cost: FLOPs and bytes are unknown there, not zero."""
    for difference in differences:
        if difference.path == ALL and difference.aspect is Aspect.OPS:
            blind = _blind_side(pair, difference)
            detail = "counted, their cost unknown" if blind.op_counts else "none seen"
            yield Claim(difference=difference, detail=f"{detail}, by the tracer {blind.graph.tracer!r}")


def tracer_cannot_see(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Another whole table is missing on one side."""
    for difference in differences:
        if difference.path == ALL:
            tracer = _blind_side(pair, difference).graph.tracer
            yield Claim(difference=difference, detail=f"{_BLIND_TO[difference.aspect]}, by the tracer {tracer!r}")


def _blind_side(pair: Pair, difference: Difference) -> Side:
    return pair.left if difference.left == "unknown" else pair.right


def container(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """A class that has no forward cannot have run: one side lists it because of its children.

    What its children lose in edges from the container they gain in edges from the container's own caller.
    """
    for difference in differences:
        for listing in pair.sides:
            if _is_listed_container(listing, difference.path) and difference.aspect in {Aspect.CALLS, Aspect.EDGE}:
                yield Claim(difference=difference, detail=_class_of(listing, difference.path))
            elif difference.aspect is Aspect.EDGE and _came_through_container(listing, difference):
                yield Claim(difference=difference, detail="its children have another caller")


def _class_of(side: Side, path: str) -> str:
    return (side.classes or {}).get(path, "")


def _is_listed_container(side: Side, path: str) -> bool:
    return _class_of(side, path) in _WITHOUT_FORWARD and side.calls.get(path, 0) > 0


def _came_through_container(side: Side, difference: Difference) -> bool:
    """On this side the module was called by a container, which the edge leads from or passes by."""
    through = [caller for caller in side.callers.get(difference.path, {}) if _is_listed_container(side, caller)]
    past = {grand for caller in through for grand in side.callers.get(caller, {})}
    return difference.caller in {*through, *past}


def order_of_tensors(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The same tensors in every call, in another order."""
    return _alike(pair, differences, _sorted, "the same tensors")


def tensor_listed_once(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One tracer lists a tensor that a call takes twice once; nothing is there that the other has not."""
    return _alike(pair, differences, _distinct, "the same distinct tensors")


def written_through_a_view(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One tracer knows a tensor by the op that wrote into it last, on a view without its dimensions of size one."""
    return _alike(pair, differences, _squeezed, "the same but for dimensions of size one")


def _alike(
    pair: Pair, differences: Sequence[Difference], canonical: Callable[[Tensors], Tensors], detail: str
) -> Iterator[Claim]:
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    for difference in differences:
        if difference.aspect in TENSOR_ASPECTS:
            left, right = (_counted(observed, canonical) for observed in difference.observed)
            if left == right:
                yield Claim(difference=difference, detail=detail)


def _counted(observed: Observed, canonical: Callable[[Tensors], Tensors]) -> dict[Tensors, int]:
    counts: dict[Tensors, int] = {}
    for tensors, calls in observed:
        key = canonical(tensors)
        counts[key] = counts.get(key, 0) + calls
    return counts


def _sorted(tensors: Tensors) -> Tensors:
    return tuple(sorted(tensors))


def _distinct(tensors: Tensors) -> Tensors:
    return tuple(sorted(set(tensors)))


def _squeezed(tensors: Tensors) -> Tensors:
    return tuple(sorted((tuple(size for size in shape if size != 1), dtype) for shape, dtype in tensors))


def unseen_direct_forward(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """`child.forward(...)` fires no hook, so one tracer takes the child's work for its caller's.

    Proved when the tracers differ, the child is there on both sides, its caller was called equally often, and the work
    is found with that caller: whatever the child calls is called as often by it, or the ops of the child are its ops.
    """
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    for seeing, blind in (pair.sides, pair.sides[::-1]):
        passed_over = _PassedOver(seeing, blind)
        for difference in differences:
            if passed_over.concerns(difference):
                yield Claim(difference=difference, detail=f"by the tracer {blind.graph.tracer!r}")


class _PassedOver:
    """Modules that one side saw run and the other took for a part of their caller."""

    def __init__(self, seeing: Side, blind: Side) -> None:
        self._seeing = seeing
        self._blind = blind
        known = blind.classes or {}
        self._unseen = {path for path in seeing.calls if not blind.calls.get(path) and path in known}
        self._proved: set[str] = set()
        # Inner modules first, so that a module may rest on what was proved of its children.
        for path in sorted(self._unseen, key=lambda path: path.count("."), reverse=True):
            if self._is_proved(path):
                self._proved.add(path)

    def concerns(self, difference: Difference) -> bool:
        path = difference.path
        if difference.aspect is Aspect.CALLS:
            return path in self._proved
        if difference.aspect is Aspect.EDGE:
            through = self._proved & self._seeing.callers.get(path, {}).keys()
            return difference.caller in through | {self._seen_caller(passed) for passed in through}
        return difference.aspect in COST_ASPECTS and self._took_over(path, self._proved)

    def _is_proved(self, path: str) -> bool:
        caller = self._seen_caller(path)
        if caller is None or self._seeing.calls[caller] != self._blind.calls.get(caller):
            return False
        children = self._seeing.callees.get(path, [])
        if not children:
            has_ops = bool((self._seeing.own_ops or {}).get(path, NO_OPS).names)
            return has_ops and self._took_over(caller, self._unseen)
        return all(child in self._proved or self._was_called_by(caller, child) for child in children)

    def _was_called_by(self, caller: str, child: str) -> bool:
        blind = self._blind
        return self._seeing.calls[child] == blind.calls.get(child) and caller in blind.callers.get(child, {})

    def _seen_caller(self, path: str) -> str | None:
        """The nearest caller that the blind side saw; None where there are several ways up, or a circle."""
        passed: set[str] = set()
        while path in self._unseen:
            callers = list(self._seeing.callers.get(path, {}))
            if len(callers) != 1 or path in passed:
                return None
            passed.add(path)
            path = callers[0]
        return path

    def _took_over(self, path: str, absorbed: set[str]) -> bool:
        """The blind side's ops of the module are the seeing side's, plus the ops of the children it took over."""
        children = [child for child in self._seeing.callees.get(path, []) if child in absorbed]
        if not children or self._seeing.own_ops is None or self._blind.own_ops is None:
            return False
        together: Counter[str] = Counter()
        for part in (path, *children):
            together.update(dict(self._seeing.own_ops.get(part, NO_OPS).names))
        return together == Counter(dict(self._blind.own_ops.get(path, NO_OPS).names))


Accept = Callable[[Tensors, Tensors], bool]  # (what one side has more, what both have) -> whether that is explained


def weights_listed(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Different tracers; what one lists more has the shapes and dtypes of weights of the model."""
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    known = {tensor for side in pair.sides for tensor in _all_weights(side)}
    yield from _claims(differences, lambda more, _: known.issuperset(more), "one side lists weights")


def _all_weights(side: Side) -> Iterator[Tensor]:
    for own in (side.weights or {}).values():
        yield from (tensor for _, tensor in own)


def cache_objects(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Without tensors that look like a cache, both sides saw the same in as many calls.

    A cache looks like pairs of tensors of one type that agree in every dimension but at most one, its length; or, the
    state of a recurrent layer, like pairs with the batch in front. Whole numbers in it, as its length, may come along.
    """
    yield from _claims(differences, _is_cache, "one side lists the tensors of a cache")


def _claims(differences: Sequence[Difference], accept: Accept, detail: str) -> Iterator[Claim]:
    for difference in differences:
        if difference.aspect in TENSOR_ASPECTS:
            left, right = difference.observed
            if _agree_without(left, right, accept) or _agree_without(right, left, accept):
                yield Claim(difference=difference, detail=detail)


def _agree_without(listing: Observed, other: Observed, accept: Accept) -> bool:
    """Every call of the listing side is one of the other side, but for tensors that are accepted as more."""
    waiting = dict(other)
    for tensors, calls in listing:
        match = next((bare for bare in waiting if waiting[bare] and _is_explained(tensors, bare, accept)), None)
        if match is None or waiting[match] < calls:
            return False
        waiting[match] -= calls
    return not any(waiting.values())


def _is_explained(tensors: Tensors, bare: Tensors, accept: Accept) -> bool:
    if tensors == bare:
        return True
    more = Counter(tensors)
    more.subtract(bare)
    if min(more.values()) < 0:
        return False
    surplus = tuple(more.elements())
    return bool(surplus) and accept(surplus, bare)


def _is_cache(more: Tensors, bare: Tensors) -> bool:
    state = [(shape, dtype) for shape, dtype in more if shape or not dtype.startswith("int")]
    if not state:
        return True
    ranks = {len(shape) for shape, _ in state}
    if len(state) % 2 or len({dtype for _, dtype in state}) > 1 or min(ranks) < 3:
        return False
    shapes = {shape for shape, _ in state}
    grows_one_way = len(ranks) == 1 and sum(len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)) <= 1
    return grows_one_way or (bool(bare) and {shape[:1] for shape in shapes} == {bare[0][0][:1]})
