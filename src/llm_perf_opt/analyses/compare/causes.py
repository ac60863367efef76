"""Why two traces may differ: every cause by name, the first to be asked first."""

from __future__ import annotations

from llm_perf_opt.analyses.compare.difference import CauseTable
from llm_perf_opt.analyses.compare.format_causes import stored_format
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

CAUSES = CauseTable(
    ("tracer cannot see ops", tracer_cannot_see_ops),
    ("tracer cannot see", tracer_cannot_see),
    ("container", container),
    ("routing", routing),
    ("unseen direct forward", unseen_direct_forward),
    ("order of tensors", order_of_tensors),
    ("tensor listed once", tensor_listed_once),
    ("written through a view", written_through_a_view),
    ("weights listed as inputs", weights_listed),
    ("cache objects", cache_objects),
    ("stored format", stored_format),
    ("partial run", partial_run),
    ("decode length", decode_length),
    ("workload", workload),
    ("another model", another_model),
    ("another phase", another_phase),
    ("library version", library_version),
)
