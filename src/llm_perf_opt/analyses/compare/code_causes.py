"""Two codes of one model: what an engine joins, opens or lays out in another way than the model's own code.

All of them hold only where the headers name two codes. A join is claimed where the weights prove it: the rows of the
modules of one side add up to those of the one module of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.analyses.compare.difference import Aspect, Claim, Difference, Pair, Weights
from llm_perf_opt.analyses.compare.side import Side, Tensors
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in

_TENSORS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})
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
    """Whose code each side runs; None where it is the same, or the models differ."""
    left, right = (str(side.graph.deployment.get("code", _REFERENCE)) for side in pair.sides)
    is_one_model = not {"model", "phase"} & pair.contradicting_fields().keys()
    return (left, right) if left != right and is_one_model else None


def joined(parts: tuple[str, ...], whole: str) -> Claims:
    """Products of one side that the other runs as one, and what lies between them and their caller."""

    def claims(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
        if _codes(pair) is None:
            return
        owners = _joining(pair, parts, whole) | _joining(Pair(left=pair.right, right=pair.left), parts, whole)
        for difference in differences:
            owner, _, name = difference.path.rpartition(".")
            if owner in owners and name in (*parts, whole):
                yield Claim(difference=difference, detail=f"{' + '.join(parts)} in {whole}: as many rows of weights")

    return claims


def _joining(pair: Pair, parts: tuple[str, ...], whole: str) -> set[str]:
    """Modules whose `parts` on the left have as many rows as their `whole` on the right."""
    left, right = (side.weights or {} for side in pair.sides)
    suffix = f".{whole}"
    owners = (path.removesuffix(suffix) for path in right if path.endswith(suffix))
    return {
        owner
        for owner in owners
        if all(f"{owner}.{part}" in left for part in parts)
        and sum(_rows(left[f"{owner}.{part}"]) for part in parts) == _rows(right[f"{owner}.{whole}"])
    }


def _rows(weights: Weights) -> int:
    return next((tensor[0][0] for name, tensor in weights if name == "weight" and tensor[0]), 0)


fused_qkv = joined(*_QKV)
gate_and_up = joined(*_GATE_UP)
fused_latent_inputs = joined(*_LATENT_INPUTS)


def shared_matrices(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Weights that one code divides between the ranks of tensor parallelism and the other keeps whole on each."""
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
            yield Claim(difference=difference, detail=f"whole on one side, a part for each of {tp} ranks on the other")


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
    """Activations that one side runs as one op with the product after them, and the modules that did it themselves."""
    yield from _at(pair, differences, _GATED, "an activation in one op with the product after it")


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
    """Everything in a layer whose routed experts one side runs as one op."""
    yield from _inside(
        pair, differences, _GROUPED, "the routed experts of a layer in one op, gate and shared beside it"
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
        if difference.aspect in _TENSORS and _is_flattened(difference):
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
