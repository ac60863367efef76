"""A recorded step as the figures of a training step, and the function that traces a model's step.

Micro batches after the second do what the second did, so at most two are run: the first finds no gradients and the
second adds to them. Their work is counted as often as it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, path_pattern
from llm_perf_opt.core.callgraph.records import Parameter
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.module_selection import layer_experts
from llm_perf_opt.core.protocols import TrainsOneStep
from llm_perf_opt.core.recorded_step import BACKWARD, FORWARD, LOSS, RecordedTrainingStep
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.training.phase_graphs import phase_graphs
from llm_perf_opt.training.phase_work import phase_work
from llm_perf_opt.training.step_memory import StepMemory, curve, memory_of, peaks
from llm_perf_opt.training.step_record import MemoryKind, TrainingStep

if TYPE_CHECKING:
    import torch

_RUN_AT_MOST = 2  # micro batches
_EXPERT = re.compile(r"experts?\.\d+\.")
_LAYER = re.compile(r"(.*\.)?(\d+)")


def trace_training_step(
    source: str | Path | torch.nn.Module,
    setup: TrainingSetup,
    *,
    routing: str | None = None,
    trust_remote_code: bool = False,
) -> TrainingStep:
    """Run one step of a model's own code without weights: a name such as `Qwen/Qwen3-8B`, or a Hugging Face folder."""
    origin = find_origin(source, trust_remote_code=trust_remote_code)
    return step_of(origin.model, _recorded(origin, setup, routing), setup)


def trace_own_step(
    step: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    routing: str | None = None,
    device: str = "cuda",
) -> TrainingStep:
    """Run a training step of a script's own, on copies of its arguments without weights."""
    from llm_perf_opt.models.own_step import record_own_step

    name = getattr(step, "__name__", type(step).__name__)
    with OneRun(), RunWatch(f"{name}, training step"):
        return step_of(name, record_own_step(name, step, args, kwargs, routing=routing, device=device))


def _recorded(origin: Origin, setup: TrainingSetup, routing: str | None) -> RecordedTrainingStep:
    adapter = origin.adapter
    if not isinstance(adapter, TrainsOneStep):
        raise UsageError(
            f"{origin.name} has no training step here.",
            why="its inputs are made for inference",
            fix="give a model of the catalogue, a name of the Hub, or a Hugging Face folder",
        )
    run = replace(setup, accumulation=min(setup.accumulation, _RUN_AT_MOST))
    with OneRun(), RunWatch(f"{origin.name}, training step"):
        return adapter.training_step(run, routing)


def step_of(model: str, recorded: RecordedTrainingStep, setup: TrainingSetup | None = None) -> TrainingStep:
    """The figures of a step that ran as many micro batches as asked for, or the first two of them."""
    micro_batches = 1 if setup is None else setup.accumulation
    memory = memory_of(recorded)
    by_phase = peaks(memory)
    graph, layers = recorded.graph, _Layers(recorded)
    weights = {parameter.storage: parameter for parameter in graph.parameters if not parameter.is_buffer}
    return TrainingStep(
        model=model,
        setup=setup,
        parameters=sum(elements(parameter.meta) for parameter in weights.values()),
        trainable_parameters=sum(
            elements(parameter.meta) for parameter in weights.values() if parameter.name in recorded.trainable
        ),
        active_parameters=_active(graph, weights),
        layers=len(layers.paths),
        layer_parameters=layers.parameters(weights),
        embedding_parameters=_embeddings(graph),
        weights_bytes=_most(memory, MemoryKind.WEIGHTS),
        gradient_bytes=_most(memory, MemoryKind.GRADIENTS),
        optimizer_bytes=_most(memory, MemoryKind.OPTIMIZER_STATES),
        logits_bytes=_logits_bytes(recorded),
        layer_saved_bytes=layers.saved_bytes(memory),
        layer_recomputed_bytes=_most_saved(memory, recorded.recomputed),
        layer_input_bytes=layers.input_bytes(),
        phases=phase_work(recorded, _Times(recorded, micro_batches)),
        peak=max(by_phase.values(), key=lambda moment: moment.peak_bytes),
        peak_by_phase=by_phase,
        memory=curve(memory),
        notes=graph.notes,
        graphs=phase_graphs(recorded),
    )


def _most(memory: StepMemory, kind: MemoryKind) -> int:
    return max(memory.by_kind[kind], default=0)


class _Times:
    """How often an op runs: the last micro batch that ran counts for all that follow."""

    def __init__(self, step: RecordedTrainingStep, micro_batches: int) -> None:
        ends = [rows.stop for phase, rows in step.ranges() if phase == BACKWARD]
        self._start = self._end = 0
        self._count = 1
        if len(ends) == _RUN_AT_MOST < micro_batches:
            self._start, self._end, self._count = ends[-2], ends[-1], micro_batches - 1

    def __call__(self, op: int) -> int:
        return self._count if self._start <= op < self._end else 1


def _active(graph: CallGraph, weights: Mapping[int, Parameter]) -> int:
    """Elements that one token meets: of routed experts as many as are chosen."""
    shares = _expert_shares(graph)
    total = 0
    for parameter in weights.values():
        size = elements(parameter.meta)
        numbers = next((shares[path] for path in _ancestors(parameter.name) if path in shares), None)
        if numbers is not None and _is_of_experts(parameter, numbers[0]):
            size = size * numbers[1] // numbers[0]
        total += size
    return total


def _expert_shares(graph: CallGraph) -> dict[str, tuple[int, int]]:
    """Module -> experts and how many a token takes, where the module or its parts say both."""
    shares = {}
    for path, children in graph.module_children.items():
        tables = [graph.constructor_params.get(part, {}) for part in (path, *children)]
        if (numbers := layer_experts(tables)) is not None:
            shares[path] = numbers
    return shares


def _is_of_experts(parameter: Parameter, experts: int) -> bool:
    is_stack = len(parameter.meta.shape) > 1 and parameter.meta.shape[0] == experts and ".experts" in parameter.name
    return is_stack or _EXPERT.search(parameter.name) is not None


def _ancestors(name: str) -> Iterator[str]:
    """The module of a parameter, and all around it."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _embeddings(graph: CallGraph) -> int:
    """Elements of lookup tables that are no head as well."""
    uses = Counter(parameter.storage for parameter in graph.parameters)
    return sum(
        elements(parameter.meta)
        for parameter in graph.parameters
        if not parameter.is_buffer
        and graph.module_types.get(parameter.name.rpartition(".")[0], "").endswith("Embedding")
        and uses[parameter.storage] == 1
    )


def _logits_bytes(step: RecordedTrainingStep) -> int:
    """What the last module before the loss gave."""
    loss_start = next((rows.start for phase, rows in step.ranges() if phase == LOSS), None)
    if loss_start is None:
        return 0
    calls = calls_of(step.graph)
    ended = [call for call, end in enumerate(calls.end_op) if end == loss_start]
    if not ended:
        return 0
    return max((tensor_bytes(meta) for meta, _ in call_tensors(step.graph, ended[-1], "output")), default=0)


class _Layers:
    """The layers of the decoder: the numbered modules of one kind that hold most weights."""

    def __init__(self, step: RecordedTrainingStep) -> None:
        self._step = step
        sizes: Counter[str] = Counter()
        called = step.graph.call_counts
        for parameter in step.graph.parameters:
            for path in _ancestors(parameter.name):
                if path in called and path.rpartition(".")[2].isdigit():
                    sizes[path_pattern(path)] += elements(parameter.meta)
        # The outermost pattern counts all that is inside: experts are numbered too.
        pattern = max(sizes, key=lambda text: (sizes[text], -len(text)), default=None)
        self.paths = tuple(path for path in called if path_pattern(path) == pattern) if pattern else ()

    def parameters(self, weights: Mapping[int, Parameter]) -> int:
        """Of the largest layer."""
        sizes: Counter[str] = Counter()
        for parameter in weights.values():
            for path in set(_ancestors(parameter.name)).intersection(self.paths):
                sizes[path] += elements(parameter.meta)
        return max(sizes.values(), default=0)

    def saved_bytes(self, memory: StepMemory) -> int:
        """The most that one forward of a layer leaves for its backward."""
        calls = calls_of(self._step.graph)
        return _most_saved(memory, [range(calls.first_op[call], calls.end_op[call]) for call in self._calls()])

    def input_bytes(self) -> int:
        """The tensor that goes into a layer: what recomputation keeps of it."""
        first = next(iter(self._calls()), None)
        tensors = [] if first is None else list(call_tensors(self._step.graph, first, "input"))
        return tensor_bytes(tensors[0][0]) if tensors else 0

    def _calls(self) -> Iterator[int]:
        """Their calls in a forward: in a backward a call is a stretch."""
        calls, graph = calls_of(self._step.graph), self._step.graph
        wanted = set(self.paths)
        forwards = [rows for phase, rows in self._step.ranges() if phase == FORWARD]
        for call, path in enumerate(calls.path):
            if graph.paths[path] in wanted and any(calls.first_op[call] in rows for rows in forwards):
                yield call


def _most_saved(memory: StepMemory, ranges: Sequence[range]) -> int:
    """The most saved activations that are born in one of the ranges."""
    storages = memory.step.graph.storages
    assert storages is not None, "a recorded step follows memory"
    saved = Counter[int]()
    for born, size_bytes, kind in zip(storages.born_op, storages.bytes, memory.kinds, strict=True):
        if kind is MemoryKind.SAVED_ACTIVATIONS:
            saved[born] += size_bytes
    sums = list(accumulate((saved[op] for op in range(memory.step.op_count)), initial=0))
    return max((sums[rows.stop] - sums[rows.start] for rows in ranges), default=0)
