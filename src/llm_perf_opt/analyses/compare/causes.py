"""Why two traces may differ: every cause by name, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.causes import Cause, CauseTable, Explanation
from llm_perf_opt.analyses.compare.code_causes import (
    another_code,
    fused_activation,
    fused_latent_inputs,
    fused_norms,
    fused_qkv,
    gate_and_up,
    grouped_experts,
    latent_attention,
    paged_attention,
    rows_in_one,
    shared_matrices,
)
from llm_perf_opt.analyses.compare.difference import Claim, Difference, Pair
from llm_perf_opt.analyses.compare.filter_causes import filtered_trace
from llm_perf_opt.analyses.compare.format_causes import stored_format
from llm_perf_opt.analyses.compare.plan_causes import parallel_plan
from llm_perf_opt.analyses.compare.routing_causes import routing
from llm_perf_opt.analyses.compare.tracer_causes import (
    cache_objects,
    container,
    order_of_tensors,
    tensor_listed_once,
    tracer_cannot_see,
    tracer_cannot_see_ops,
    unseen_direct_forward,
    weights_listed,
    written_through_a_view,
)
from llm_perf_opt.analyses.compare.workload_causes import (
    another_model,
    another_phase,
    decode_length,
    library_version,
    partial_run,
    workload,
)

Claims = Callable[[Pair, Sequence[Difference]], Iterable[Claim]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCause(Cause):
    """A cause that claims only the differences it can prove from the two traces."""

    claims: Claims


CAUSES = CauseTable(
    TraceCause(
        name="tracer cannot see ops",
        meaning="one tracer saw no ops, or no shapes of them",
        claims=tracer_cannot_see_ops,
    ),
    TraceCause(
        name="tracer cannot see",
        meaning="one tracer saw no module tree, no weights or no tensors",
        claims=tracer_cannot_see,
    ),
    TraceCause(
        name="filtered trace",
        meaning="one trace records a part of the modules (--only, --stage)",
        claims=filtered_trace,
    ),
    TraceCause(name="fused QKV", meaning="one code projects queries, keys and values in one product", claims=fused_qkv),
    TraceCause(name="gate and up in one", meaning="one code runs gate and up as one product", claims=gate_and_up),
    TraceCause(
        name="latent projections in one",
        meaning="one code makes latent queries, keys and values in one product",
        claims=fused_latent_inputs,
    ),
    TraceCause(
        name="shared matrices",
        meaning="one code divides matrices between ranks that the other keeps whole",
        claims=shared_matrices,
    ),
    TraceCause(
        name="latent attention in one op",
        meaning="one code attends on latent vectors in one op, absorbed in a step of one token",
        claims=latent_attention,
    ),
    TraceCause(
        name="grouped experts", meaning="one code runs the routed experts of a layer in one op", claims=grouped_experts
    ),
    TraceCause(
        name="attention on pages", meaning="one code attends on the pages of a cache in one op", claims=paged_attention
    ),
    TraceCause(name="fused norm", meaning="one code runs a norm and the sum before it in one op", claims=fused_norms),
    TraceCause(
        name="fused activation",
        meaning="one code runs an activation and the product after it in one op",
        claims=fused_activation,
    ),
    TraceCause(
        name="rows in one dimension", meaning="one code lays the tokens of all sequences in a row", claims=rows_in_one
    ),
    TraceCause(name="another code", meaning="the runs are of two codes of one model", claims=another_code),
    TraceCause(name="container", meaning="one tracer counts calls of a class without a forward", claims=container),
    TraceCause(name="routing", meaning="the experts got other shares of the same rows", claims=routing),
    TraceCause(
        name="unseen direct forward",
        meaning="a forward that was called directly, past the hooks of one tracer",
        claims=unseen_direct_forward,
    ),
    TraceCause(
        name="order of tensors", meaning="the tracers list the same tensors in another order", claims=order_of_tensors
    ),
    TraceCause(
        name="tensor listed once",
        meaning="one tracer lists a tensor once that was given several times",
        claims=tensor_listed_once,
    ),
    TraceCause(
        name="written through a view",
        meaning="the tensors agree but for dimensions of size one",
        claims=written_through_a_view,
    ),
    TraceCause(
        name="weights listed as inputs", meaning="one tracer lists weights among the inputs", claims=weights_listed
    ),
    TraceCause(name="parallel plan", meaning="the model is spread over ranks another way", claims=parallel_plan),
    TraceCause(
        name="cache objects",
        meaning="one tracer looks into a cache object that the other does not open",
        claims=cache_objects,
    ),
    TraceCause(name="stored format", meaning="weights or cache are stored in another format", claims=stored_format),
    TraceCause(name="partial run", meaning="one trace stopped before the end", claims=partial_run),
    TraceCause(name="decode length", meaning="the runs decoded another number of tokens", claims=decode_length),
    TraceCause(name="workload", meaning="the runs had other inputs", claims=workload),
    TraceCause(name="another model", meaning="the traces are of two models", claims=another_model),
    TraceCause(name="another phase", meaning="the traces are of two phases", claims=another_phase),
    TraceCause(name="library version", meaning="the libraries have other versions", claims=library_version),
)


def explained(pair: Pair, differences: Sequence[Difference]) -> dict[Difference, Explanation]:
    """Difference -> its explanation; the first cause to claim it keeps it, and what no cause claims is not there."""
    found: dict[Difference, Explanation] = {}
    for cause in CAUSES.values():
        waiting = [difference for difference in differences if difference not in found]
        if not waiting:
            break
        for claim in cause.claims(pair, waiting):
            found[claim.difference] = Explanation(cause=cause.name, detail=claim.detail)
    return found
