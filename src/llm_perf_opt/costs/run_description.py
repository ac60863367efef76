"""Workload and deployment of a run in words, from the headers of its traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, count_kinds, weight_matrices
from llm_perf_opt.core.callgraph.records import Json, OpKind, Parameter
from llm_perf_opt.core.collectives import SYMMETRY, CollectiveKind
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.report import Level, Note
from llm_perf_opt.core.tensor_formats import is_weight_format, tensor_bytes, untransposed
from llm_perf_opt.core.units import format_bytes, format_count
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.parameters import untied
from llm_perf_opt.ops.cost import elements


def workload_note(graphs: Sequence[CallGraph]) -> Note:
    """What ran, with every default filled in: one sentence for all phases of a run."""
    if not graphs or not graphs[0].workload:
        return Note("Workload: not stated in the trace.")
    first, *later = graphs
    others = "".join(f" {_capital(graph.phase)}: {text}." for graph in later if (text := _differing(first, graph)))
    return Note(f"Workload: {workload_text(first.workload)}.{others}")


def run_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """The notes of the traces themselves; what every phase says is said once, without the name of a phase."""
    shared = set(graphs[0].notes).intersection(*(graph.notes for graph in graphs)) if graphs else set()
    yield from (Note(text) for text in dict.fromkeys(graphs[0].notes if graphs else ()) if text in shared)
    for graph in graphs:
        yield from (Note(f"{graph.phase}: {text}") for text in graph.notes if text not in shared)
        yield from _cast_note(graph)


def casts_of(graph: CallGraph) -> tuple[int, int]:
    """Conversions from one floating-point type to another, and the bytes that they read and write."""
    kinds = count_kinds(graph).items() if graph.ops is not None else ()
    casts = [(kind, count) for kind, count in kinds if kind.name in _CASTS and _is_conversion(kind)]
    sizes = (count * sum(tensor_bytes(meta) for meta in (kind.inputs[0], kind.outputs[0])) for kind, count in casts)
    return sum(count for _, count in casts), sum(sizes)


_CASTS = frozenset({"aten.to.dtype", "aten.to.dtype_layout", "aten.to.other", "aten._to_copy.default"})


def _is_conversion(kind: OpKind) -> bool:
    both = [meta.dtype for meta in (*kind.inputs[:1], *kind.outputs[:1])]
    return len(set(both)) == 2 and all("float" in dtype for dtype in both)


def _cast_note(graph: CallGraph) -> Iterator[Note]:
    """How many casts a run under autocast has."""
    if (name := graph.workload.get("autocast")) is not None and graph.ops is not None:
        count, size_bytes = casts_of(graph)
        yield Note(
            f"{graph.phase}: under autocast to {name}, {format_count(count)} casts read and write "
            f"{format_bytes(size_bytes)}, including casts in the model's own code."
        )


def workload_text(workload: Mapping[str, Json]) -> str:
    """`prompt tokens 20, image 1240x1754, ...`, in the order of the header."""
    return ", ".join(f"{name} {text}" for name, text in setting_texts(workload).items())


def setting_texts(workload: Mapping[str, Json]) -> dict[str, str]:
    """Each setting by its name in words; those that say nothing are left out."""
    settings = {name.replace("_", " "): value for name, value in workload.items() if value not in (None, [], {})}
    return {name: setting_text(value) for name, value in settings.items()}


def _differing(first: CallGraph, other: CallGraph) -> str:
    """What a later phase was run with that the first was not."""
    return workload_text({name: value for name, value in other.workload.items() if first.workload.get(name) != value})


def setting_text(value: Json) -> str:
    """`2x3`, `131,072`, `(input_ids 1x128, ...)`."""
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name} {setting_text(item)}' for name, item in value.items())})"
    if isinstance(value, list | tuple):
        return "x".join(map(str, value)) if all(isinstance(item, int) for item in value) else _listed(value)
    return format_count(value) if type(value) is int else str(value)


def _listed(values: Sequence[Json]) -> str:
    return f"({', '.join(map(setting_text, values))})"


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


WHAT_IF = "what-if"
CHECKPOINT = "checkpoint"
_PLURALS = {Role.LINEAR: "matrices", Role.EXPERTS: "expert stacks", Role.ROUTER: "routers", Role.HEAD: "output heads"}


def deployment_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """Which rank of which plan it is, how weights and cache are stored; nothing for one device and all as traced."""
    deployment = dict(graphs[0].deployment) if graphs else {}
    yield from plan_notes(graphs)
    if (device := deployment.pop("device", None)) is not None:
        yield Note(f"Traced for the device {device}.")
    if not deployment:
        return
    yield Note(f"{weights_sentence(graphs[0])}{_cache_sentence(graphs)}")
    if deployment.get("weights_from") == WHAT_IF:
        yield Note(
            "What-if: linear layers and expert stacks use this format; "
            "embeddings, output head, norms, routers and convolutions keep their type."
        )
    yield from (Note(text, Level.WARNING) for text in deployment.get("warnings", ()) if isinstance(text, str))


def plan_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """The rank that was traced, and what its other ranks were taken to do; nothing on one device."""
    plan = plan_in(graphs[0].deployment) if graphs else None
    if plan is None:
        return
    batch, shared = graphs[0].workload.get("batch"), plan.dp * plan.fsdp
    own = ""
    if isinstance(batch, int) and shared > 1:
        own = f" Its batch of {format_count(batch)} is its own: {format_count(batch * shared)} sequences in all."
    yield Note(f"{rank_text(plan)}. Every figure is of this rank alone, counted from its trace.{own}")
    answers: Counter[str] = Counter()
    for graph in graphs:
        for answer in graph.oracle_answers:
            # Ranks of tp hold the same tokens, so their rows are known; ranks of fsdp have tokens of their own.
            of_others = answer.op == CollectiveKind.ALL_TO_ALL and plan.ep > plan.tp
            if answer.policy == SYMMETRY or of_others:
                answers[answer.op] += answer.count
    if answers:
        counts = ", ".join(f"{format_count(count)} {kind}" for kind, count in answers.items())
        yield Note(
            f"Integers from other ranks were answered by symmetry ({counts}): each rank is assumed to send what this "
            "one sends, which is exact if tokens are spread evenly over the experts."
        )


def rank_text(plan: ParallelPlan) -> str:
    """`Rank 0 of 8: tp8, the model's own plan`."""
    stage = f", stage {plan.stage_of(plan.rank or 0)} of {plan.pp}" if plan.pp > 1 else ""
    rules = "the model's own plan" if plan.plan is None else f"the rules of {plan.plan}"
    return f"Rank {plan.rank or 0} of {format_count(plan.ranks)}: {plan.describe()}, {rules}{stage}"


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
    origin = f" ({source})" if (source := graph.deployment.get("weights_from")) else ""
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
    origin = f" ({source})" if (source := graphs[0].deployment.get("cache_from")) else ""
    return f" Cache: {', '.join(types)}{origin}."
