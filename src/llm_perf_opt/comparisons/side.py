"""One trace as a comparison needs it: lookups by module path, each made when it is first needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from llm_perf_opt.core.callgraph import CallGraph, Observation
from llm_perf_opt.core.callgraph.queries import calls_of, numbered_name, ops_of
from llm_perf_opt.core.callgraph.records import Json, TensorMeta
from llm_perf_opt.core.target import KEY as EXPECTED_CALLS
from llm_perf_opt.costs.stage_costs import StageCosts, stage_costs
from llm_perf_opt.ops.table import price

Tensor = tuple[tuple[int, ...], str]  # shape, dtype; the device is a matter of the workload, not of the module
Tensors = tuple[Tensor, ...]

OUTSIDE = "(outside any module)"  # no module path has a space


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOps:
    """The ops that ran directly in one module, over all its calls; the cost sums the ops with a price."""

    names: tuple[tuple[str, int], ...]  # op -> how often, by name
    flops: int
    bytes_moved: int


NO_OPS = OwnOps(names=(), flops=0, bytes_moved=0)


@dataclass(frozen=True)
class Side:
    """Lookups into one graph. A table that the tracer could not fill is None: unknown, which is not empty."""

    graph: CallGraph

    @property
    def calls(self) -> Mapping[str, int]:
        """Module path -> calls."""
        return self.graph.call_counts

    @cached_property
    def stage_costs(self) -> StageCosts:
        """What each stage costs; only where the order of calls is known."""
        return stage_costs(self.graph)

    @cached_property
    def classes(self) -> Mapping[str, str] | None:
        """Module path -> class name, of every module whether called or not."""
        return self.graph.module_types or None

    @cached_property
    def callers(self) -> dict[str, dict[str, int]]:
        """Module path -> who called it -> how often."""
        callers: dict[str, dict[str, int]] = {}
        for edge, count in self.graph.edges.items():
            parent, _, child = edge.rpartition("->")
            callers.setdefault(child, {})[parent] = count
        return callers

    @cached_property
    def callees(self) -> dict[str, list[str]]:
        """Module path -> the modules it called."""
        by_caller: dict[str, list[str]] = {}
        for child, parents in self.callers.items():
            for parent in parents:
                by_caller.setdefault(parent, []).append(child)
        return by_caller

    @cached_property
    def inputs(self) -> dict[str, dict[Tensors, int]] | None:
        """Module path -> tensors that went in -> in how many calls."""
        return self._tensors(self.graph.input_metadata)

    @cached_property
    def outputs(self) -> dict[str, dict[Tensors, int]] | None:
        """Module path -> tensors that came out -> in how many calls."""
        return self._tensors(self.graph.output_metadata)

    @cached_property
    def weights(self) -> dict[str, tuple[tuple[str, Tensor], ...]] | None:
        """Module path -> its own weights and buffers, by name."""
        weights: dict[str, list[tuple[str, Tensor]]] = {}
        for parameter in self.graph.parameters:
            path, _, name = parameter.name.rpartition(".")
            weights.setdefault(path, []).append((name, _tensor(parameter.meta)))
        return {path: tuple(sorted(own)) for path, own in weights.items()} or None

    @cached_property
    def own_ops(self) -> dict[str, OwnOps] | None:
        """Module path -> what ran directly in it."""
        return dict(_own_ops(self.graph)) if knows_cost(self.graph) else None

    @property
    def op_counts(self) -> Mapping[str, int] | None:
        """Module path -> how many ops ran directly in it, where that is all a tracer knows of ops."""
        return self.graph.op_call_counts or None

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """Siblings by what is before their number: `experts.` -> `experts.0`, `experts.1`, ..."""
        by_container: dict[str, list[str]] = {}
        for path in self.classes or self.calls:
            container, dot, name = path.rpartition(".")
            if (prefix := numbered_name(name)) is not None:
                by_container.setdefault(f"{container}{dot}{prefix}", []).append(path)
        return by_container

    @property
    def header(self) -> dict[str, Json]:
        """What was run and by what, one flat table; lengths and loops under the names of their sections."""
        graph = self.graph
        return {
            "model": graph.model,
            "phase": graph.phase,
            "tracer": graph.tracer,
            "tool": graph.tool_version,
            **({} if graph.stopped_in is None else {"stopped in": graph.stopped_in}),
            **{f"workload.{name}": value for name, value in graph.workload.items()},
            **{f"deployment.{name}": value for name, value in graph.deployment.items()},
            **{f"runtime.{name}": value for name, value in graph.runtime.items() if name != EXPECTED_CALLS},
            **{f"library.{name}": value for name, value in graph.library_versions.items()},
        }

    def _tensors(self, observed: Mapping[str, tuple[Observation, ...]]) -> dict[str, dict[Tensors, int]] | None:
        shared: dict[TensorMeta, Tensor] = {}

        def tensors(observation: Observation) -> Tensors:
            return tuple(shared.setdefault(meta, _tensor(meta)) for meta in observation.tensors)

        by_path: dict[str, dict[Tensors, int]] = {}
        for path, observations in observed.items():
            by_tensors: dict[Tensors, int] = {}
            for observation in observations:  # two that differ in the device only are one here
                key = tensors(observation)
                by_tensors[key] = by_tensors.get(key, 0) + observation.calls
            by_path[path] = by_tensors
        return by_path or None


def knows_cost(graph: CallGraph) -> bool:
    """Whether ops were seen with their results; a profiler notes what went in alone, and that has no price."""
    return graph.ops is not None and graph.calls is not None and any(kind.outputs for kind in graph.op_kinds)


def _tensor(meta: TensorMeta) -> Tensor:
    return meta.shape, meta.dtype


def _own_ops(graph: CallGraph) -> Iterator[tuple[str, OwnOps]]:
    """One count over all ops by place and kind; prices are looked up per kind, not per op."""
    places = [*calls_of(graph).path, -1]  # the last entry is what call -1, "outside any", arrives at
    ops = ops_of(graph)
    by_place: dict[int, list[tuple[int, int]]] = {}
    for (place, kind), count in Counter(zip(map(places.__getitem__, ops.call), ops.kind, strict=True)).items():
        by_place.setdefault(place, []).append((kind, count))
    prices = [price(kind) for kind in graph.op_kinds]
    for place, counts in by_place.items():
        names: Counter[str] = Counter()
        flops = bytes_moved = 0
        for kind, count in counts:
            names[graph.op_kinds[kind].name] += count
            if (cost := prices[kind]) is not None:
                flops += cost.flops * count
                bytes_moved += cost.bytes_moved * count
        path = OUTSIDE if place < 0 else graph.paths[place]
        yield path, OwnOps(names=tuple(sorted(names.items())), flops=flops, bytes_moved=bytes_moved)
