"""What a change is: a rewrite of a setup, and the sentences that a reader needs to carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.stored_formats import retype
from llm_perf_opt.timing.engine_kernels import engine_rules
from llm_perf_opt.timing.fusions import Fusion
from llm_perf_opt.tracing.deployed_traces import redeployed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One change that somebody can make.

    `apply` gives the changed setup; None: the device cannot, the engine does it already, the model forbids it, or
    there is nothing to change. `how` is the argument, flag or line of code; `may_cost` what it takes in return, and
    `rests_on` where its figures come from.
    """

    title: str
    how: str
    may_cost: str
    rests_on: str
    apply: Callable[[Setup], Setup | None]
    is_of_code: bool = False  # the code in PyTorch itself changes, which an engine would replace
    rather: str = ""  # a change that is preferred unless this one saves more by a tenth
    least_share: float = 0.002  # of the time of a request: what saves less is not told


def with_rules(
    rules: Iterable[Fusion], where: Callable[[CallGraph], bool] | None = None
) -> Callable[[Setup], Setup | None]:
    """Code in PyTorch with more fusions; None: an engine runs it, it has them all, or `where` holds of no phase."""
    more = frozenset(rules)

    def apply(setup: Setup) -> Setup | None:
        if setup.is_engine or more <= setup.rules or (where and not any(map(where, setup.graphs))):
            return None
        return replace(setup, rules=setup.rules | more)

    return apply


def has_ops_of(*rules: Fusion) -> Callable[[CallGraph], bool]:
    """Whether one of these rules replaces ops of a phase."""
    return lambda graph: any(fused.rule in rules for fused in engine_rules(graph))


@found_once
def stored_as(graphs: tuple[CallGraph, ...], weights: str | None, cache: str | None) -> tuple[CallGraph, ...]:
    """The phases in other stored formats, made once."""
    return redeployed(graphs, Deployment.make(weights=weights, cache=cache))


@dataclass(frozen=True, slots=True)
class _Half:
    """Tensors of float32 in bfloat16."""

    def retyped(self, meta: TensorMeta) -> TensorMeta:
        return replace(meta, dtype="bfloat16") if meta.dtype == "float32" else meta


@found_once
def in_half_precision(graphs: tuple[CallGraph, ...]) -> tuple[CallGraph, ...]:
    """The phases with every float32 tensor in bfloat16, made once."""
    return tuple(map(_halved, graphs))


def _halved(graph: CallGraph) -> CallGraph:
    assert graph.storages is not None
    wide = _float_storages(graph)
    sizes = {storage: graph.storages.bytes[storage] // 2 for storage in wide}
    parameters = tuple(replace(one, meta=_Half().retyped(one.meta)) for one in graph.parameters)
    changed = retype(graph, dict.fromkeys(wide, _Half()), sizes)
    return replace(changed, parameters=parameters, workload={**graph.workload, "dtype": "bfloat16"})


def _float_storages(graph: CallGraph) -> set[int]:
    """Those that hold float32 wherever an op or a parameter names them."""
    ops, found = ops_of(graph), {one.storage for one in graph.parameters if one.meta.dtype == "float32"}
    starts, ends = tensor_offsets(graph)
    for row, index in enumerate(ops.kind):
        kind = graph.op_kinds[index]
        for metas, column, start in (
            (kind.inputs, ops.input_storages, starts[row]),
            (kind.outputs, ops.output_storages, ends[row]),
        ):
            found.update(column[start + at] for at, meta in enumerate(metas) if meta.dtype == "float32")
    return {storage for storage in found if storage >= 0}
