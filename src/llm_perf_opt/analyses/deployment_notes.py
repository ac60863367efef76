"""What a report says about how weights and cache are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.memory.kv_cache import kv_cache
from llm_perf_opt.analyses.parameter_owners import untied
from llm_perf_opt.analyses.pricing.op_cost import elements
from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.records import Parameter
from llm_perf_opt.callgraph.weight_formats import is_weight_format, untransposed
from llm_perf_opt.callgraph.weight_matrices import Role, weight_matrices
from llm_perf_opt.document import Level, Note
from llm_perf_opt.units import format_bytes, format_count

WHAT_IF = "what-if"
CHECKPOINT = "checkpoint"
_PLURALS = {Role.LINEAR: "matrices", Role.EXPERTS: "expert stacks", Role.ROUTER: "routers", Role.HEAD: "output heads"}


def deployment_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """How the weights and the cache of a run are stored; nothing where all is as it was traced."""
    told = graphs[0].deployment if graphs else {}
    if not told:
        return
    yield Note(f"{weights_sentence(graphs[0])}{_cache_sentence(graphs)}")
    if told.get("weights_from") == WHAT_IF:
        yield Note(
            "What-if: linear layers and expert stacks are stored so; "
            "embeddings, output head, norms, routers and convolutions keep their type."
        )
    yield from (Note(text, Level.WARNING) for text in told.get("warnings", ()) if isinstance(text, str))


def weights_sentence(graph: CallGraph) -> str:
    """Which formats store how many matrices, what the rest is in, and the bytes of all weights together."""
    parameters = list(untied(graph.parameters))
    roles = weight_matrices(graph)
    formats: dict[str, Counter[Role]] = {}
    for parameter in parameters:
        if is_weight_format(parameter.meta.dtype):
            role = roles.get(parameter.name, Role.LINEAR)
            formats.setdefault(untransposed(parameter.meta.dtype), Counter())[role] += 1
    shown = [f"{dtype} in {_counted(counts)}" for dtype, counts in formats.items()]
    dense = _main_dense_type(parameters)
    stored = format_bytes(sum(tensor_bytes(parameter.meta) for parameter in parameters))
    rest = [dense if not shown else f"{dense} elsewhere"] if dense else []
    origin = f" ({told})" if (told := graph.deployment.get("weights_from")) else ""
    return f"Weights: {', '.join((*shown, *rest))}: {stored} stored{origin}."


def _counted(counts: Counter[Role]) -> str:
    return " and ".join(
        f"{format_count(count)} {_PLURALS[role] if count > 1 else role}" for role, count in counts.items()
    )


def _main_dense_type(parameters: Sequence[Parameter]) -> str | None:
    values: Counter[str] = Counter()
    for parameter in parameters:
        if not is_weight_format(parameter.meta.dtype):
            values[parameter.meta.dtype] += elements(parameter.meta)
    return values.most_common(1)[0][0] if values else None


def _cache_sentence(graphs: Sequence[CallGraph]) -> str:
    cache = kv_cache(graphs)
    if cache is None:
        return ""
    types = Counter(meta.dtype for meta in cache.tensors)
    origin = f" ({told})" if (told := graphs[0].deployment.get("cache_from")) else ""
    return f" Cache: {', '.join(types)}{origin}."
