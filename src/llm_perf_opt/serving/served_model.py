"""A model as an engine serves it: one trace gives the step times, and the room for the cache, of every plan."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import WritesEngineFolder
from llm_perf_opt.core.workload import PageSize, Workload
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.serving.capacity.fleets import Considered
from llm_perf_opt.serving.capacity.outcome import Promise
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, ReplicaLimits, SteadyReplica, most_requests
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice, cache_argument
from llm_perf_opt.serving.engines import default_limits
from llm_perf_opt.serving.fit import BY_TRAINING, ServingFit, fullest_fit
from llm_perf_opt.serving.traffic_text import PageTokens
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.rate_sources import DEFAULT_KERNEL_ENGINE, source_of
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.request_time import FirstToken
from llm_perf_opt.timing.step.step_table import Curve, StepTable
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

if TYPE_CHECKING:
    from llm_perf_opt.timing.step.engine_time import EngineTimer

log = logging.getLogger(__name__)

_SIZES_TRACED = 3  # of the pages: those between have a time in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One way to run the model: what is known without a replay, and what an engine is told of it."""

    considered: Considered
    steady: SteadyReplica
    fit: ServingFit

    @property
    def table(self) -> StepTable:
        """How long its steps take."""
        return self.steady.table


class ServedModel:
    """One traced model, asked for any device and plan. `pages` are the sizes of the pages that come, if any do.

    `engine` is whose kernels run. What an engine keeps in memory is by the rules of vLLM. `made` are traces that exist
    already, by their workload; they are not made again.
    """

    def __init__(
        self,
        origin: Origin,
        pages: Sequence[PageSize] = (),
        engine: str = DEFAULT_KERNEL_ENGINE,
        *,
        made: Mapping[Workload, TracedRun] | None = None,
    ) -> None:
        self.origin, self.engine, self._pages, self._made = origin, engine, pages, made or {}
        self._tokens: dict[str, PageTokens] = {}
        self._encoders: dict[str, Curve] = {}
        self._page_traces: list[tuple[int, TracedRun]] = []
        self._timers: dict[str, EngineTimer] = {}
        self._tables: dict[str, dict[ParallelPlan, StepTable]] = {}

    def with_engine(self, engine: str) -> ServedModel:
        """The same traces, timed by the kernels of another engine."""
        other = ServedModel(self.origin, self._pages, engine)
        other.__dict__["trace"], other._page_traces = self.trace, self._page_traces
        return other

    @cached_property
    def trace(self) -> TracedRun:
        """Of one request on one device: everything else follows from it."""
        if not self._pages:
            return self._traced(self.origin)
        return self._traces_of_pages()[-1][1]

    def _traced(self, origin: Origin) -> TracedRun:
        return self._made.get(origin.workload) or trace_origin(origin)

    @cached_property
    def blocks(self) -> EngineBlocks:
        """What an engine launches for each token."""
        return engine_blocks(self._decode)

    @cached_property
    def _decode(self) -> CallGraph:
        found = next((graph for graph in self.trace.graphs if graph.phase == DECODE), None)
        if found is None:
            raise PerfOptError(
                f"{self.origin.name} generates nothing.",
                why="its trace has no decode step, and a server of requests makes one after another",
                fix="choose a model that generates",
            )
        return found

    @property
    def has_experts(self) -> bool:
        """Whether experts may be spread."""
        return bool(self.blocks.experts)

    @property
    def heads(self) -> int:
        """Of attention, the fewest of any layer: no more ranks can share it."""
        return min((layer.heads for layer in self.blocks.attentions), default=1)

    def page_tokens(self, size: PageSize) -> PageTokens:
        """By the model's own rule: what its adapter makes of a page of this size, asked once for each."""
        if size.text not in self._tokens:
            self._tokens[size.text] = page_tokens(self.origin, size)
        return self._tokens[size.text]

    def longest_context(self, clusters: Sequence[Cluster], length: int) -> tuple[int, str]:
        """The longest sequence that any plan of these clusters holds, and which does; 0: none holds the weights."""
        found = [(0, "")]
        for cluster in clusters:
            for tp in (size for size in (1, 2, 4, 8, 16) if size <= cluster.per_node and self.heads % size == 0):
                for pp in (1, 2, 4, 8):
                    plan = ParallelPlan(tp=tp, pp=pp)
                    if plan.replica_ranks <= cluster.count:
                        fit = fullest_fit(
                            self.trace.graphs,
                            cluster.device,
                            plan,
                            context=length,
                            limits=default_limits(cluster.device),
                        )
                        limit = ", its trained length" if fit.context_limit == BY_TRAINING else ""
                        found.append((fit.largest_context or 0, f"{cluster.device.id} {plan.describe()}{limit}"))
        return max(found)

    def replica(
        self,
        device: Device,
        plan: ParallelPlan,
        mean: MeanRequest,
        promise: Promise | None,
        *,
        max_sequences: int | None = None,
        max_batched_tokens: int | None = None,
        cluster: Cluster | None = None,
        is_closed: bool = False,
        client: FirstToken | None = None,
    ) -> Replica | None:
        """The plan on this device, or in a cluster of them; None: the weights leave no room for a mean request."""
        defaults = default_limits(device)
        limits = replace(
            defaults,
            sequences=max_sequences or defaults.sequences,
            chunk_tokens=max_batched_tokens or defaults.chunk_tokens,
        )
        length = round(mean.prompt_tokens + mean.output_tokens)
        fit = fullest_fit(self.trace.graphs, device, plan, context=length, limits=limits)
        if fit.room_bytes is None or fit.cache_tokens is None:
            raise PerfOptError(
                f"The cache of {self.origin.name} is not known.",
                why="its decode step keeps no keys and values that a trace could see",
                fix="trace a model with a cache",
            )
        if fit.cache_tokens < length:
            return None
        taken = ReplicaLimits(
            sequences=limits.sequences,
            batched_tokens=limits.chunk_tokens,
            cache_tokens=fit.cache_tokens,
        )
        steady = SteadyReplica(
            table=self._table(device, plan, cluster),
            mean=mean,
            limits=taken.of_groups(plan.attention_dp),
            is_closed=is_closed,
            client=client,
        )
        states = tuple(steady.states())
        considered = Considered(
            device=device.id,
            plan=plan,
            weights=self.origin.deployment.weights,
            cache_tokens=taken.cache_tokens,
            max_sequences=taken.sequences,
            max_batched_tokens=taken.batched_tokens,
            states=states,
            best=most_requests(states, promise),
        )
        return Replica(considered=considered, steady=steady, fit=fit)

    def settings(
        self, folder: Path, device: Device, replica: Replica, seen: SeenDevice | None = None
    ) -> EngineSettings:
        """What an engine is told when it starts with the model in a folder; `seen` is the device it believes in."""
        considered, fit = replica.considered, replica.fit
        return EngineSettings(
            model=str(folder),
            device=seen or SeenDevice.of(device),
            plan=considered.plan,
            dtype=self.origin.workload.dtype,
            cache_dtype=cache_argument(self._decode.deployment.get("cache")),
            cache_bytes=fit.room_bytes,
            max_sequences=considered.max_sequences,
            max_batched_tokens=considered.max_batched_tokens,
        )

    def timer(self, device: Device, cluster: Cluster | None = None) -> EngineTimer:
        """Of the kernels on a device; one for each, since it keeps what it has learnt."""
        from llm_perf_opt.timing.step.engine_time import EngineTimer

        key = f"{device.id} {cluster or ''}"
        if key not in self._timers:
            self._timers[key] = EngineTimer.of_any(device, self.engine, cluster)
        return self._timers[key]

    def _table(self, device: Device, plan: ParallelPlan, cluster: Cluster | None) -> StepTable:
        from llm_perf_opt.timing.kernel_rates import UNKNOWN_SPREAD
        from llm_perf_opt.timing.step.step_tables import step_table

        known = self._tables.setdefault(f"{device.id} {cluster or ''}", {})
        table = step_table(self.blocks, self.timer(device, cluster), plan, known=known)
        if not self.timer(device, cluster).is_measured:
            low, high = UNKNOWN_SPREAD
            table = replace(table, low=low, high=high)
        if plan.pp > 1:
            table = table.corrected(decoding=1 / plan.pp, prompts=1 / plan.pp)  # each stage an equal share
        return replace(table, images=self._encoder(device)) if self._pages else table

    def step_shares(self, cluster: Cluster, considered: Considered, mean: MeanRequest) -> dict[str, float]:
        """Seconds of the best state's mean step by what they are spent on, decoding and its share of the prompts."""
        from llm_perf_opt.timing.step.engine_time import AskedForward

        if (state := considered.best) is None:
            return {}
        plan = considered.plan
        prompt, prompts = max(1, round(mean.prompt_tokens)), state.sequences / mean.output_tokens
        forwards = (
            (1.0, Forward(sequences=state.sequences, queries=1, keys=round(mean.mean_context))),
            (prompts, Forward(sequences=1, queries=prompt, keys=prompt)),
        )
        timer, found = self.timer(cluster.device, cluster), Counter[str]()
        times = timer.times([AskedForward(blocks=self.blocks, forward=forward, plan=plan) for _, forward in forwards])
        # Two forwards stand for one mixed step, so they tell shares; how long the step takes, its table tells.
        for (count, _), time in zip(forwards, times, strict=True):
            for kind, seconds in time.by_kind.items():
                found[str(kind)] += count * seconds  # type: ignore[assignment]
        if self._pages:
            found["encoder of images"] = prompts * self._encoder(cluster.device)(mean.image_tokens)  # type: ignore[assignment]
        whole = sum(found.values())
        return {kind: seconds * state.step_s / whole for kind, seconds in found.items()}

    def _encoder(self, device: Device) -> Curve:
        """The time that images take, whole on every rank, by how many tokens they become."""
        if device.id not in self._encoders:
            rates, found = source_of(device, Execution.FUSED, rates=None), dict[float, float]()
            for tokens, trace in self._traces_of_pages():
                # What belongs to no tower beside the language model has the name of its phase.
                walls = [
                    stage.wall
                    for graph in trace.graphs
                    if graph.phase != DECODE
                    for stage in predict(graph, rates)
                    if stage.name != graph.phase
                ]
                found[float(tokens)] = sum(
                    (wall.low + wall.high) / 2 if wall.expected is None else wall.expected for wall in walls
                )
            curve = Curve(at=tuple(sorted(found)), seconds=tuple(found[at] for at in sorted(found)))
            if not all(curve.seconds):
                raise PerfOptError(
                    f"How long images take in {self.origin.name} is not known.",
                    why="its trace has no stage of an encoder, and a replay without it would look faster than it is",
                    fix="give prompt= in tokens in place of pages=, for the decoder alone",
                )
            self._encoders[device.id] = curve
        return self._encoders[device.id]

    def _traces_of_pages(self) -> list[tuple[int, TracedRun]]:
        """The smallest page, the largest, and one between, by their image tokens."""
        if not self._page_traces:
            by_tokens = {self.page_tokens(size).image: size for size in self._pages}
            counts = sorted(by_tokens)
            chosen = counts if len(counts) <= _SIZES_TRACED else [counts[0], counts[len(counts) // 2], counts[-1]]
            for tokens in chosen:
                log.info("Page of %s, %d image tokens", by_tokens[tokens].name, tokens)
                workload = replace(self.origin.workload, image=by_tokens[tokens].text)  # type: ignore[call-arg]
                self._page_traces.append((tokens, self._traced(replace(self.origin, workload=workload))))
        return self._page_traces


def page_tokens(origin: Origin, size: PageSize) -> PageTokens:
    """What a page becomes in a prompt of this model, from the workload that its adapter makes of it."""
    if "image" not in type(origin.workload).options():
        raise UsageError(
            f"{origin.name} takes no pages.",
            why="its workload has no image",
            fix="give prompt= in tokens in place of pages=, or choose a model that reads images",
        )
    described = origin.targets(image=size.text)[0].workload
    image, whole = described.get("image_tokens"), described.get("context_tokens")
    if not isinstance(image, int) or not isinstance(whole, int):
        raise UsageError(
            f"How many tokens {size.name} becomes in {origin.name} is not known.",
            why="its adapter does not say",
            fix="give prompt= in tokens in place of pages=",
        )
    return PageTokens(image=image, text=whole - image)


@contextmanager
def engine_folder(origin: Origin, model: str | Path) -> Iterator[Path]:
    """The folder that an engine takes: that of the model, or one that its adapter writes, gone afterwards."""
    if Path(model).is_dir():
        yield Path(model).absolute()
        return
    if not isinstance(origin.adapter, WritesEngineFolder):
        raise UsageError(
            f"No engine takes {origin.name} by its name.",
            why="an engine reads the configuration in a folder",
            fix="name the Hugging Face folder of the model; it needs no weights in it",
        )
    with scratch_folder() as folder:
        origin.adapter.write_engine_folder(folder)
        yield folder
