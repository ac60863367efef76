"""A model as an engine serves it: one trace gives the step times, and the room for the cache, of every plan."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import WritesEngineFolder
from llm_perf_opt.core.recent import Recent
from llm_perf_opt.core.report import Note
from llm_perf_opt.core.store import entry_key, store_folder, stored_record
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.workload import PageSize, Workload
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.serving.adapters import adapter_bytes, require_adaptable
from llm_perf_opt.serving.capacity.fleets import Considered
from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.sessions import HostCache, host_cache
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, ReplicaLimits, SteadyReplica, most_requests
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice, cache_argument
from llm_perf_opt.serving.engines import BatchLimits, default_limits
from llm_perf_opt.serving.fit import BY_TRAINING, RankMemory, ServingFit, fullest_fit, memory_of_ranks
from llm_perf_opt.serving.held_memory import BLOCK_TOKENS, trained_context
from llm_perf_opt.serving.speculation import Speculation
from llm_perf_opt.serving.step_times import StepTimes
from llm_perf_opt.serving.traffic_text import PageTokens
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.kernels.table_sets import active_set
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.rate_sources import DEFAULT_KERNEL_ENGINE, source_of
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, LoraAdapters, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.request_time import FirstToken
from llm_perf_opt.timing.step.step_table import Curve, StepTable
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.stored_traces import trace_ingredients
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

log = logging.getLogger(__name__)

_SIZES_TRACED = 3  # sizes of pages; the time of a size in between is interpolated
_MOST_MODELS, _MOST_REPLICAS, _MOST_MEMORIES = 16, 128, 512  # kept in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDescription:
    """What an answer says of the model: its name, how it is stored, and the longest context it was trained for."""

    model: str
    notes: tuple[Note, ...]
    trained_context: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One way to run the model: its plan, its steady states, and whether it fits."""

    considered: Considered
    steady: SteadyReplica
    fit: ServingFit
    host_bytes: int | None = None  # for blocks that leave the cache

    @property
    def table(self) -> StepTable:
        """How long its steps take."""
        return self.steady.table


class ServedModel:
    """One traced model, asked for any device and plan. `pages` are the sizes of the pages that come, if any do.

    `engine` names the engine that supplies the kernels. The memory of every engine follows the rules of vLLM. `made`
    are traces that exist already, by their workload; they are not made again.
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
        self._held = Recent[tuple[str, ParallelPlan, BatchLimits], tuple[RankMemory, ...]](_MOST_MEMORIES)
        self._replicas = Recent[tuple[Any, ...], Replica | None](_MOST_REPLICAS)
        self._steps = StepTimes(self._found_blocks, origin.name, engine)
        self.lora: LoraAdapters | None = None

    def with_lora(self, lora: LoraAdapters) -> ServedModel:
        """The same traces with adapters in every linear layer."""
        other = ServedModel(self.origin, self._pages, self.engine, made=self._made)
        require_adaptable(self.blocks, self.origin.name)
        other.lora, other._page_traces = lora, self._page_traces
        return other

    def with_engine(self, engine: str) -> ServedModel:
        """The same traces, timed by the kernels of another engine."""
        other = ServedModel(self.origin, self._pages, engine, made=self._made)
        other.__dict__["trace"], other._page_traces = self.trace, self._page_traces
        return other

    def let_go(self) -> None:
        """Drop traces and kernels, which are large. What was worked out of them stays; a trace can be read again."""
        for name in ("trace", "_decode"):
            self.__dict__.pop(name, None)
        self._page_traces = []
        self._steps.let_go()

    @cached_property
    def description(self) -> ServedDescription:
        """What an answer says of the model."""
        ingredients = None if self._ingredients is None else {"of": self._ingredients}
        return stored_record("descriptions", ingredients, self.origin.name, ServedDescription, self._described)

    def _described(self) -> ServedDescription:
        graphs = self.trace.graphs
        return ServedDescription(
            model=graphs[0].model, notes=tuple(deployment_notes(graphs)), trained_context=trained_context(graphs[0])
        )

    @cached_property
    def trace(self) -> TracedRun:
        """The trace of one request on one device: everything else follows from it."""
        if not self._pages:
            return self._traced(self.origin)
        return self._traces_of_pages()[-1][1]

    def _traced(self, origin: Origin) -> TracedRun:
        return self._made.get(origin.workload) or trace_origin(origin)

    @property
    def blocks(self) -> EngineBlocks:
        """What an engine launches for each token."""
        return self._steps.blocks

    @cached_property
    def _decode(self) -> CallGraph:
        decode = next((graph for graph in self.trace.graphs if graph.phase == DECODE), None)
        if decode is None:
            raise PerfOptError(
                f"{self.origin.name} generates no tokens.",
                why="its trace has no decode step, and a server runs one after another",
                fix="choose a model that generates",
            )
        return decode

    def _found_blocks(self) -> EngineBlocks:
        ingredients = None if self._ingredients is None else {"of": self._ingredients}
        blocks = stored_record(
            "decoders", ingredients, self.origin.name, EngineBlocks, lambda: engine_blocks(self._decode)
        )
        return blocks if self.lora is None else replace(blocks, lora=self.lora)

    @cached_property
    def _ingredients(self) -> list[Mapping[str, Any]] | None:
        """What the trace is a function of; None: it was handed in, or nobody can say."""
        if self._made:
            return None
        origins = [self._page_origin(size.text) for size in self._pages] or [self.origin]
        known = [ingredients for ingredients in map(trace_ingredients, origins) if ingredients is not None]
        return known if len(known) == len(origins) else None

    @property
    def has_experts(self) -> bool:
        """Whether there are experts that ranks can divide."""
        return bool(self.blocks.experts)

    @property
    def heads(self) -> int:
        """The fewest attention heads of any layer: no more ranks can share it."""
        return min((layer.heads for layer in self.blocks.attentions), default=1)

    def _memory(self, device: Device, plan: ParallelPlan, limits: BatchLimits) -> tuple[RankMemory, ...]:
        """What each kind of rank of the plan holds."""

        def found() -> tuple[RankMemory, ...]:
            about = f"{self.origin.name} on {device.id}, {plan.describe()}"
            ingredients = {"of": self._ingredients, "on": list(map(repr, (device, plan, limits)))}
            return stored_record(
                "memory of ranks",
                ingredients if self._ingredients else None,
                about,
                tuple[RankMemory, ...],
                lambda: memory_of_ranks(self.trace.graphs, device, plan, limits=limits),
            )

        return self._held.of((device.id, plan, limits), found)

    def cache_bytes(self, device: Device, plan: ParallelPlan, tokens: int) -> int:
        """What the fullest rank of a plan keeps of a sequence of this many tokens, in whole blocks."""
        memory = self._memory(device, plan, default_limits(device))
        return max((rank.cache.bytes_at(tokens) for rank in memory if rank.cache is not None), default=0)

    def page_tokens(self, size: PageSize) -> PageTokens:
        """The tokens of a page by the model's own rule: its adapter is asked once for each size."""
        if size.text not in self._tokens:
            self._tokens[size.text] = page_tokens(self.origin, size)
        return self._tokens[size.text]

    def longest_context(self, clusters: Sequence[Cluster], length: int) -> tuple[int, str]:
        """The longest sequence that any plan of these clusters holds, and which does; 0: none holds the weights."""
        lengths = [(0, "")]
        for cluster in clusters:
            for tp in (size for size in (1, 2, 4, 8, 16) if size <= cluster.per_node and self.heads % size == 0):
                for pp in (1, 2, 4, 8):
                    plan = ParallelPlan(tp=tp, pp=pp)
                    if plan.replica_ranks <= cluster.count:
                        memory = self._memory(cluster.device, plan, default_limits(cluster.device))
                        fit = fullest_fit(memory, cluster.device, context=length)
                        limit = ", its trained length" if fit.context_limit == BY_TRAINING else ""
                        lengths.append((fit.largest_context or 0, f"{cluster.device.id} {plan.describe()}{limit}"))
        return max(lengths)

    def replica(
        self,
        device: Device,
        plan: ParallelPlan,
        mean: MeanRequest,
        slo: Slo | None,
        *,
        max_sequences: int | None = None,
        max_batched_tokens: int | None = None,
        cluster: Cluster | None = None,
        is_closed: bool = False,
        client: FirstToken | None = None,
        speculation: Speculation | None = None,
        host_bytes: int | None = None,
    ) -> Replica | None:
        """The plan on this device, or in a cluster of them; None: the weights leave no room for a mean request."""
        options = max_sequences, max_batched_tokens, is_closed, client, speculation, host_bytes
        return self._replicas.of(
            (device.id, str(cluster), plan, mean, slo, *options),
            lambda: self._replica(device, plan, mean, slo, cluster, *options),
        )

    def _replica(
        self,
        device: Device,
        plan: ParallelPlan,
        mean: MeanRequest,
        slo: Slo | None,
        cluster: Cluster | None,
        max_sequences: int | None,
        max_batched_tokens: int | None,
        is_closed: bool,
        client: FirstToken | None,
        speculation: Speculation | None,
        host_bytes: int | None,
    ) -> Replica | None:
        defaults = default_limits(device)
        limits = replace(
            defaults,
            sequences=max_sequences or defaults.sequences,
            chunk_tokens=max_batched_tokens or defaults.chunk_tokens,
        )
        length = round(mean.prompt_tokens + mean.output_tokens) - 1  # no step reads the last token of an answer
        fit = fullest_fit(self._memory(device, plan, limits), device, context=length)
        if fit.room_bytes is None or fit.cache_tokens is None:
            raise PerfOptError(
                f"The cache of {self.origin.name} is not known.",
                why="its decode step keeps no keys and values that a trace could see",
                fix="trace a model with a cache",
            )
        if self.lora is not None:
            fit = _with_more_weights(fit, adapter_bytes(self.blocks, self.lora, plan.tp) // plan.pp)
        if speculation is not None and speculation.has_layer:
            fit = self._with_drafter(fit)
        cache_tokens = fit.cache_tokens or 0
        if cache_tokens < length:
            return None
        taken = ReplicaLimits(sequences=limits.sequences, batched_tokens=limits.chunk_tokens, cache_tokens=cache_tokens)
        steady = SteadyReplica(
            table=self._table(device, plan, cluster),
            mean=mean,
            limits=taken.of_groups(plan.attention_dp),
            is_closed=is_closed,
            client=client,
            speculation=speculation,
            layers=self.layers,
            host=None if host_bytes is None else self._host(host_bytes, device, plan, length),
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
            best=most_requests(states, slo),
        )
        return Replica(considered=considered, steady=steady, fit=fit, host_bytes=host_bytes)

    def _host(self, host_bytes: int, device: Device, plan: ParallelPlan, length: int) -> HostCache:
        rank_bytes = self.cache_bytes(device, plan, length) / length
        return host_cache(host_bytes, device, rank_bytes, plan.tp * plan.pp, plan.attention_dp)

    @property
    def layers(self) -> int:
        """Layers of the decoder with attention or a state."""
        states = 0 if self.blocks.states is None else self.blocks.states.layers
        return max(1, sum(layer.layers for layer in self.blocks.attentions) + states)

    def _with_drafter(self, fit: ServingFit) -> ServingFit:
        """The room that is left where one layer more is held: its weights, and its share of each token's cache."""
        assert fit.room_bytes is not None and fit.cache_tokens is not None and fit.weights_bytes is not None
        held = _with_more_weights(fit, fit.weights_bytes // self.layers)
        tokens = (held.cache_tokens or 0) * self.layers // (self.layers + 1)
        return replace(held, cache_tokens=tokens // BLOCK_TOKENS * BLOCK_TOKENS)

    def settings(
        self, folder: Path, device: Device, replica: Replica, seen: SeenDevice | None = None
    ) -> EngineSettings:
        """What an engine is told when it starts with the model in a folder; `seen` is the device it believes in."""
        considered, fit, speculation = replica.considered, replica.fit, replica.steady.speculation
        return EngineSettings(
            model=str(folder),
            device=seen or SeenDevice.of(device),
            plan=considered.plan,
            dtype=self.origin.workload.dtype,
            cache_dtype=cache_argument(self._decode.deployment.get("cache")),
            cache_bytes=fit.room_bytes,
            max_sequences=considered.max_sequences,
            max_batched_tokens=considered.max_batched_tokens,
            more={
                **({} if speculation is None else {"speculative_config": speculation.vllm_setting()}),
                **({} if (lora := self.lora) is None else _lora_settings(lora)),
                **({} if replica.host_bytes is None else _offload_settings(replica.host_bytes, considered.plan)),
            },
        )

    def is_measured(self, cluster: Cluster) -> bool:
        """Whether the times of its GPUs come from measured kernels; else from the data sheet."""
        return self._steps.is_measured(cluster.device, cluster)

    def _table(self, device: Device, plan: ParallelPlan, cluster: Cluster | None) -> StepTable:
        table = self._steps.table(device, plan, cluster)
        return replace(table, images=self._encoder(device)) if self._pages else table

    def step_shares(
        self, cluster: Cluster, considered: Considered, mean: MeanRequest, *, reads_prompts: bool = True
    ) -> dict[str, float]:
        """Seconds of the best state's mean step by what they are spent on, decoding and its share of the prompts."""
        if (state := considered.best) is None:
            return {}
        plan = considered.plan
        if state.reuse is not None:
            mean = replace(mean, resumed_tokens=state.reuse.tokens)
        prompt, prompts = mean.new_tokens, state.sequences / state.steps if reads_prompts else 0.0
        forwards = (
            (1.0, Forward(sequences=state.sequences, queries=1, keys=round(mean.mean_context))),
            (prompts, Forward(sequences=1, queries=prompt, keys=prompt + round(mean.found_tokens))),
        )
        times = self._steps.forwards(cluster.device, plan, cluster, [forward for _, forward in forwards])
        seconds_of = Counter[str]()
        # Two forwards stand for one mixed step, so they tell shares; how long the step takes, its table tells.
        for (count, _), time in zip(forwards, times, strict=True):
            for kind, seconds in time.items():
                seconds_of[kind] += count * seconds  # type: ignore[assignment]
        if self._pages:
            seconds_of["encoder of images"] = prompts * self._encoder(cluster.device)(mean.image_tokens)  # type: ignore[assignment]
        total_s = sum(seconds_of.values())
        return {kind: seconds * state.step_s / total_s for kind, seconds in seconds_of.items()}

    def _encoder(self, device: Device) -> Curve:
        """The time that images take, replicated on every rank, by how many tokens they become."""
        if device.id not in self._encoders:
            ingredients = (
                None if self._ingredients is None else {"what": "encoder", "of": self._ingredients, "on": repr(device)}
            )
            about = f"{self.origin.name} on {device.id}, encoder of images"
            self._encoders[device.id] = stored_record(
                "encoder times", ingredients, about, Curve, lambda: self._encoded(device)
            )
        return self._encoders[device.id]

    def _encoded(self, device: Device) -> Curve:
        rates, seconds_of = source_of(device, Execution.FUSED, rates=None), dict[float, float]()
        for tokens, trace in self._traces_of_pages():
            # Work that belongs to no encoder next to the language model has the name of its phase.
            walls = [
                stage.wall
                for graph in trace.graphs
                if graph.phase != DECODE
                for stage in predict(graph, rates)
                if stage.name != graph.phase
            ]
            seconds_of[float(tokens)] = sum(
                (wall.low + wall.high) / 2 if wall.expected is None else wall.expected for wall in walls
            )
        curve = Curve(at=tuple(sorted(seconds_of)), seconds=tuple(seconds_of[at] for at in sorted(seconds_of)))
        if not all(curve.seconds):
            raise PerfOptError(
                f"How long images take in {self.origin.name} is not known.",
                why="its trace has no stage of an encoder, and a replay without it would look faster than it is",
                fix="give prompt= in tokens in place of pages=, for the decoder alone",
            )
        return curve

    def _page_origin(self, image: str) -> Origin:
        return replace(self.origin, workload=replace(self.origin.workload, image=image))  # type: ignore[call-arg]

    def _traces_of_pages(self) -> list[tuple[int, TracedRun]]:
        """The smallest page, the largest, and one between, by their image tokens."""
        if not self._page_traces:
            by_tokens = {self.page_tokens(size).image: size for size in self._pages}
            counts = sorted(by_tokens)
            chosen = counts if len(counts) <= _SIZES_TRACED else [counts[0], counts[len(counts) // 2], counts[-1]]
            for tokens in chosen:
                log.info("Page of %s, %d image tokens", by_tokens[tokens].name, tokens)
                self._page_traces.append((tokens, self._traced(self._page_origin(by_tokens[tokens].text))))
        return self._page_traces


def _with_more_weights(fit: ServingFit, more_bytes: int) -> ServingFit:
    """The room that is left where this much more is held next to the weights."""
    assert fit.room_bytes is not None and fit.cache_tokens is not None and fit.weights_bytes is not None
    left = max(0, fit.room_bytes - more_bytes)
    tokens = fit.cache_tokens * left // max(1, fit.room_bytes)
    return replace(
        fit,
        weights_bytes=fit.weights_bytes + more_bytes,
        room_bytes=left,
        cache_tokens=tokens // BLOCK_TOKENS * BLOCK_TOKENS,
    )


def _lora_settings(lora: LoraAdapters) -> dict[str, Json]:
    return {"enable_lora": True, "max_loras": lora.count, "max_lora_rank": lora.rank}


def _offload_settings(host_bytes: int, plan: ParallelPlan) -> dict[str, Json]:
    """Gibibytes for each engine of vLLM, of which a replica has one for each group."""
    return {"kv_offloading_size": host_bytes / 2**30 / plan.attention_dp}


_MODELS = Recent[str, ServedModel](_MOST_MODELS)


def known_model(origin: Origin, pages: Sequence[PageSize], engine: str) -> ServedModel:
    """The served model of an earlier question to this process, with its tables; a new one where there is none.

    Only of a model with known ingredients, on devices of the package: others have the same ids.
    """
    fresh = ServedModel(origin, pages, engine)
    folder, ingredients = store_folder(), fresh._ingredients
    if folder is None or ingredients is None:
        return fresh
    question = {"of": ingredients, "name": origin.name, "source": repr(origin.source), "pages": list(map(repr, pages))}
    key = entry_key("served models", {**question, "engine": engine, "tables": active_set(), "store": folder})
    return _MODELS.of(key, lambda: fresh)


def page_tokens(origin: Origin, size: PageSize) -> PageTokens:
    """What a page becomes in a prompt of this model, from the workload that its adapter makes of it."""
    if "image" not in type(origin.workload).options():
        raise UsageError(
            f"{origin.name} takes no pages.",
            why="its workload has no image",
            fix="give prompt= in tokens in place of pages=, or choose a model that reads images",
        )
    page = replace(origin, workload=replace(origin.workload, image=size.text))  # type: ignore[call-arg]
    about = f"{origin.name}, {size.name}"
    return stored_record("pages", trace_ingredients(page), about, PageTokens, lambda: _counted_tokens(page, size))


def _counted_tokens(page: Origin, size: PageSize) -> PageTokens:
    described = page.targets()[0].workload
    image, context_tokens = described.get("image_tokens"), described.get("context_tokens")
    if not isinstance(image, int) or not isinstance(context_tokens, int):
        raise UsageError(
            f"How many tokens {size.name} becomes in {page.name} is not known.",
            why="its adapter does not say",
            fix="give prompt= in tokens in place of pages=",
        )
    return PageTokens(image=image, text=context_tokens - image)


@contextmanager
def engine_folder(origin: Origin, model: str | Path) -> Iterator[Path]:
    """The folder that an engine takes: the model's own, or a scratch folder that its adapter writes."""
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
