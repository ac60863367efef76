"""Which GPU, how many, which plan, how fast, at what cost: one question about a deployment, by steady states."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster, device_names, find_hardware
from llm_perf_opt.core.hardware.prices import hourly_price, price_notes
from llm_perf_opt.core.report import Level, Note, Report, counted
from llm_perf_opt.core.units import format_bytes, format_number_of, format_ratio, format_seconds
from llm_perf_opt.core.workload import ANSWER_TOKENS
from llm_perf_opt.serving.adapters import adapter_bytes, read_lora
from llm_perf_opt.serving.capacity.asked_traffic import (
    SAMPLE,
    AskedTraffic,
    has_drawn_lengths,
    mean_of,
    require_sessions,
)
from llm_perf_opt.serving.capacity.disaggregated import UnknownLink
from llm_perf_opt.serving.capacity.fleets import read_deadline
from llm_perf_opt.serving.capacity.outcome import ReplayOutcome, Slo, read_slo
from llm_perf_opt.serving.capacity.pair_search import paired_fleets
from llm_perf_opt.serving.capacity.replay_report import shares_table
from llm_perf_opt.serving.capacity.search import SearchSpace, taken_plan
from llm_perf_opt.serving.capacity.sizing import (
    HIGH_LOAD,
    MOST_GPUS,
    Demand,
    GpuChoice,
    SizedFleet,
    best_of_each,
    ranked,
    search_cluster,
    sized_fleets,
)
from llm_perf_opt.serving.capacity.sizing_report import (
    answer_lines,
    bands_table,
    choices_table,
    frontier_chart,
    plans_table,
    replayed_table,
    session_notes,
    times_chart,
)
from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.serving.served_model import ServedDescription, ServedModel, engine_folder, known_model
from llm_perf_opt.serving.served_trace import served_origin
from llm_perf_opt.serving.speculation import read_speculation
from llm_perf_opt.serving.traffic_text import DeclaredTraffic
from llm_perf_opt.timing.kernels.tables import missing_packages
from llm_perf_opt.timing.rate_sources import DEFAULT_KERNEL_ENGINE, ENGINES
from llm_perf_opt.timing.step.engine_blocks import LoraAdapters
from llm_perf_opt.timing.step.engine_step import are_rows_sent
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.traced_run import TracedRun

log = logging.getLogger(__name__)

_ALL_TO_ALL = "deepep_low_latency"  # vLLM's own choice sends every row to every rank
_MOST_REPLAYED, _ROUNDS, _SESSIONS = 3, 8, 2  # fleets, and requests and sessions of each user


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ServeAnswer(Answer):
    """Fleets for a demand, the best first: one for each GPU and engine, and every plan behind them."""

    model: str
    asked: str
    demand: Demand
    fleets: tuple[SizedFleet, ...]
    plans: tuple[SizedFleet, ...]
    refused: tuple[str, ...]  # plans that leave no room for a request
    why_none: str | None
    replayed: tuple[tuple[SizedFleet, ReplayOutcome], ...]
    _source: str  # the model as it was named
    _described: ServedDescription

    @property
    def best(self) -> SizedFleet | None:
        """The first that does what is asked; None: none does."""
        return next((fleet for fleet in self.fleets if fleet.broken is None), None)

    @cached_property
    def step_seconds(self) -> Mapping[str, float]:
        """What a mean step of the best fleet is spent on; nothing without one."""
        return {} if self.best is None else _shares(self.best)

    @property
    def keeps_limits(self) -> bool:
        """Whether a fleet does what is asked within the limits."""
        return self.best is not None

    @property
    def answer(self) -> tuple[str, ...]:
        """The fleet to take, what it does and costs, and the next best; or why there is none."""
        return answer_lines(self.fleets, self.demand, self.why_none)

    def to_dict(self) -> dict[str, Any]:
        """The figures of the rows; traces and tables behind them are left out."""
        return {
            "model": self.model,
            "asked": self.asked,
            "answer": list(self.answer),
            "fleets": [_figures(fleet) for fleet in self.fleets],
            "plans": [_figures(fleet) for fleet in self.plans],
            "refused": list(self.refused),
        }

    def report(self) -> Report:
        """The answer, GPUs side by side, the times of the best, where its step goes, every plan, and the frontier."""
        best, seconds = self.best, self.step_seconds
        shown = (choices_table(self.fleets, self.demand),) if self.fleets else ()
        charts = (frontier_chart(self.plans, best), None if best is None else times_chart(best, self.demand))
        return Report(
            title=f"{self.model}: {self.asked}",
            answer=self.answer,
            tables=(
                *shown,
                *((replayed_table(self.replayed, self.demand),) if self.replayed else ()),
                *((bands_table(best, self.demand),) if best is not None else ()),
                *((shares_table(seconds, f"{best.device} {best.plan}"),) if best and seconds else ()),
                *((plans_table(self.plans),) if self.plans else ()),
            ),
            notes=tuple(self._notes()),
            charts=tuple(chart for chart in charts if chart is not None),
        )

    def _notes(self) -> Iterator[Note]:
        yield from self._described.notes
        mean = self.demand.mean
        yield Note(
            f"A request has {mean.prompt_tokens:,.0f} tokens in and {mean.output_tokens:,.0f} out. Times are of a "
            "steady state; --replay runs the engine's own scheduler on the best fleets."
        )
        if self.fleets:
            first = self.best or self.fleets[0]
            yield Note(f"Step times on {first.device} come from: {first.candidate.replica.table.origin}.")
        unmeasured = {fleet.device for fleet in self.fleets if not fleet.is_measured}
        if unmeasured:
            yield Note(
                f"Times on {', '.join(sorted(unmeasured))} come from the data sheet: {_why_unmeasured()}.",
                Level.WARNING,
            )
        if (best := self.best) is not None and (best.load or 0.0) > HIGH_LOAD:
            yield Note(
                f"Replicas run at {format_ratio(best.load or 0.0)} of their highest throughput, where the steady-state "
                "estimate is less exact. Add --replay.",
                Level.WARNING,
            )
        length, trained = round(mean.prompt_tokens + mean.output_tokens), self._described.trained_context
        if trained is not None and length > trained:
            yield Note(
                f"A request has {length:,} tokens, and the model was trained for at most {trained:,}.", Level.WARNING
            )
        yield from session_notes(self.best or next(iter(self.fleets), None))
        yield from _transfer_notes(self.best)
        yield from _lora_notes(self.best or next(iter(self.fleets), None))
        yield from _speculation_notes(self.best or next(iter(self.fleets), None))
        if self.demand.is_engine_only:
            yield Note("TTFT is the engine's alone: HTTP, tokenizing and sending the answer are left out.")
        else:
            yield Note(
                "TTFT is what a client sees, as measured on servers of each engine: the request's own prompt, other "
                "requests' prompts, steps and a constant (docs/evidence/serving-times.md). --engine-only leaves "
                "the client out."
            )
        if self.demand.slo is None and self.demand.deadline is None:
            yield Note("There is no SLO, so the cheapest fleet may be slow: add --slo ttft=2s,tpot=40ms.")
        yield from price_notes({fleet.device: fleet.price_per_hour for fleet in self.fleets})
        if self.refused:
            yield Note(f"No memory is left for such a request next to the weights: {', '.join(self.refused)}.")

    def save_deployment(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """Files that start the best fleet: the engine's command, Docker Compose and Kubernetes."""
        from llm_perf_opt.serving.deployment_files import write_deployment
        from llm_perf_opt.serving.engine_command import EngineDeployment

        if (best := self.best) is None:
            raise UsageError(
                "There is nothing to start.", why="no fleet does what was asked", fix="loosen --slo, or name other GPUs"
            )
        if best.prefill is not None:
            raise UsageError(
                "There are no files that start prefill and decode workers.",
                why="their router and the way of the cache depend on the installation",
                fix="write the files of one side: leave --disaggregate out, and fix its plan with --tp",
            )
        candidate, device = best.candidate, best.candidate.cluster.device
        seen = SeenDevice(
            name=device.name, memory_bytes=device.memory_bytes, capability=(0, 0), compute_units=0
        )  # which only a replay asks
        settings = candidate.served.settings(Path(self._source), device, candidate.replica, seen)
        if best.engine == "vllm" and any(
            are_rows_sent(block, settings.plan) for block in candidate.served.blocks.experts
        ):
            settings = replace(settings, more={**settings.more, "all2all_backend": _ALL_TO_ALL})
        deployment = EngineDeployment(
            settings=settings,
            model=self._source,
            is_folder=Path(self._source).is_dir(),
            device=device,
            replicas=best.replicas,
            engine=best.engine,  # type: ignore[arg-type]
            weights=candidate.served.origin.deployment.weights,
            weight_bytes=candidate.replica.fit.weights_bytes,
            gpus_per_machine=candidate.cluster.per_node,
        )
        return write_deployment(Path(folder), deployment, force=force)


def _figures(fleet: SizedFleet) -> dict[str, Any]:
    considered = fleet.candidate.replica.considered
    names = ("device", "engine", "gpus", "replicas", "plan", "broken", "limit", "requests_per_s", "output_tokens_per_s")
    costs = ("cost_per_hour", "cost_per_million_input", "cost_per_million_output", "hours", "job_cost")
    return {
        **{name: getattr(fleet, name) for name in (*names, *costs)},
        **{
            f"{name}_{what}_s": value
            for name, time in (("ttft", fleet.ttft), ("tpot", fleet.tpot))
            for what, value in (
                ("expected", time.expected_s),
                ("at_share", time.at_share_s),
                ("low", time.band.low),
                ("high", time.band.high),
            )
        },
        "sequences": fleet.state.sequences,
        "cache_tokens": considered.cache_tokens,
        "largest_context": fleet.candidate.replica.fit.largest_context,
        "max_sequences": considered.max_sequences,
        "max_batched_tokens": considered.max_batched_tokens,
    }


def serve(
    model: str | Path | TracedRun,
    gpus: str,
    *,
    input: str | int | None = None,
    output: str | int = ANSWER_TOKENS,
    users: int | None = None,
    rate: str | None = None,
    page: str | None = None,
    pages: int | None = None,
    within: str | None = None,
    slo: str | Slo | None = None,
    prices: Mapping[str, float] | None = None,
    engine: str = DEFAULT_KERNEL_ENGINE,
    engine_only: bool = False,
    replay: bool = False,
    speculate: str | None = None,
    shared_prefix: float | None = None,
    sessions: str | None = None,
    kv_offload: str | None = None,
    disaggregate: bool = False,
    lora: str | None = None,
    max_gpus: int = MOST_GPUS,
    devices_file: Path | None = None,
    **workload: Any,
) -> ServeAnswer:
    """The fleet to buy for a demand: GPU, count, plan, times, rates and cost; by steady states, without vLLM.

    - `model`: by name, a folder, or a trace of one; that trace is not made again where it is of one request.
    - `gpus`: `l4,h100-sxm`: how many of each is searched; `2x a100-sxm-80g` fixes the number.
    - `input`, `output`: tokens of a request: `4000`, `lognormal(800,0.8)`. `page`: `A4@150dpi` for a model of images.
    - `users` at once, a `rate` such as `20/s`, or `pages` to read `within` a time; none: what one replica does.
    - `slo`: `ttft=2s,tpot=40ms`, of 99 in 100 requests; `p95,ttft=1s` for another share.
    - `prices`: device id -> price of a GPU hour, in place of the table that ships with the package.
    - `engine`: `vllm`, `sglang`, `trtllm`, or several with commas. `engine_only`: TTFT without the client.
    - `replay`: the best fleets also through the own scheduler of vLLM or SGLang, which has to be installed.
    - `speculate`: `mtp:3@0.8`, `eagle:4@0.7` or `ngram:4@0.3`: who drafts, drafts in a step, and how many are kept.
    - `shared_prefix`: the share of each prompt, from 0 to 1, that is the same in all and stays in the cache.
    - `sessions`: `turns=8,grow=500,think=10s`: each prompt is all before it and new tokens; `input` is of first turns.
    - `kv_offload`: `200GiB`: host memory of a replica for what leaves the GPU's cache, loaded where that is faster.
    - `disaggregate`: prefill and decode on separate GPUs, with the counts and plans of both searched.
    - `lora`: `64x16`: 64 adapters of rank 16 in the memory of every replica, each asked for as often as the others.
    - `tp`, `ep`, `pp`, `attention_dp`, `replicas`, `max_sequences`, `max_batched_tokens`: default: all are considered.
    - `weights`, `cache`, `routing` and the workload are as in `lpo.trace`.
    """
    slo = read_slo(slo) if isinstance(slo, str) else slo
    choices, engines = _choices(gpus, max_gpus, devices_file), _engines(engine)
    deadline = read_deadline(pages, within)
    declared = AskedTraffic(input, output, users, rate, page, pages, shared_prefix, sessions).declared()
    _require_replayable({"disaggregate": disaggregate, "have adapters": lora, "speculate": speculate} if replay else {})
    require_sessions(declared, kv_offload, is_disaggregated=disaggregate)
    plan = taken_plan(workload, slo, is_alone=False, kv_offload=kv_offload)
    space = replace(plan, speculation=read_speculation(speculate))
    models = _served(model, declared, engines, workload, _adapters(lora, engines), is_known=devices_file is None)
    demand = replace(_demand(declared, models[0], users, slo, max_gpus), deadline=deadline, is_engine_only=engine_only)
    source = model.name if isinstance(model, TracedRun) else str(model)
    question = _Question(source, demand, declared, refused=[], choices=choices)
    return _answered(question, models, space, prices, is_replayed=replay, is_disaggregated=disaggregate)


def _demand(
    declared: DeclaredTraffic, served: ServedModel, users: int | None, slo: Slo | None, max_gpus: int
) -> Demand:
    return Demand(
        mean=mean_of(declared, served.page_tokens),
        users=users,
        requests_per_s=None if declared.arrivals is None else declared.arrivals.per_s,
        slo=slo,
        has_drawn_lengths=has_drawn_lengths(declared),
        max_gpus=max_gpus,
    )


def _answered(
    question: _Question,
    models: Sequence[ServedModel],
    space: SearchSpace,
    prices: Mapping[str, float] | None,
    *,
    is_replayed: bool,
    is_disaggregated: bool,
) -> ServeAnswer:
    with shared_work():
        fleets = list(sized_fleets(models, question.choices, question.demand, space, question.refused))
        if is_disaggregated:
            fleets += _paired(fleets, question)
        plans = [replace(fleet, price_per_hour=hourly_price(fleet.device, prices)) for fleet in fleets]
        answer = question.answer(models[0], ranked(plans), is_replayed=is_replayed)
    for served in models:
        served.let_go()
    return answer


def _paired(fleets: Sequence[SizedFleet], question: _Question) -> list[SizedFleet]:
    """The same GPUs and engines with prefill and decode on separate ones."""
    pairs: list[SizedFleet] = []
    for choice in question.choices:
        own = [fleet for fleet in fleets if fleet.candidate.cluster == choice.cluster]
        try:
            for engine in dict.fromkeys(fleet.engine for fleet in own):
                pairs += paired_fleets([fleet for fleet in own if fleet.engine == engine], choice, question.demand)
        except UnknownLink as error:
            if len(question.choices) == 1:
                raise
            log.warning("%s is not disaggregated. %s", choice.cluster.device.id, error.what)
    if not pairs:
        raise UsageError(
            "There are too few GPUs for prefill and decode on separate ones.",
            why="each side needs the GPUs of one plan that fits",
            fix="allow more with --max-gpus or in --gpus, or leave --disaggregate out",
        )
    return pairs


def _require_replayable(asked: Mapping[str, object]) -> None:
    if wrong := [what for what, value in asked.items() if value]:
        why = "a replay has one scheduler and the steps of the model alone"
        raise UsageError(f"Replays do not {wrong[0]}.", why=why, fix="leave one of the two out")


def _served(
    model: str | Path | TracedRun,
    declared: DeclaredTraffic,
    engines: Sequence[str],
    workload: Mapping[str, Any],
    adapters: LoraAdapters | None,
    *,
    is_known: bool,
) -> list[ServedModel]:
    """The model in each engine, with its adapters, and the tables of earlier questions where they may be used."""
    pages = () if declared.pages is None else declared.pages.sizes
    if isinstance(model, TracedRun):
        origin, made = served_origin(model, workload)
    else:
        origin, made = find_origin(model, torch_device="cuda", **workload), {}
    first, has_tables = engines[0], is_known and not made
    served = known_model(origin, pages, first) if has_tables else ServedModel(origin, pages, first, made=made)
    served = served if adapters is None else served.with_lora(adapters)
    return [served, *map(served.with_engine, engines[1:])]


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to `serve`, while it is answered."""

    source: str
    demand: Demand
    declared: DeclaredTraffic
    refused: list[str]
    choices: list[GpuChoice]

    def answer(self, served: ServedModel, plans: list[SizedFleet], *, is_replayed: bool) -> ServeAnswer:
        """The best of each GPU in front."""
        fleets = best_of_each(plans)
        return ServeAnswer(
            model=served.description.model,
            asked=_asked_text(self.demand, self.declared),
            demand=self.demand,
            fleets=tuple(fleets),
            plans=tuple(plans),
            refused=tuple(dict.fromkeys(self.refused)),
            why_none=None if fleets else _why_none(served, self.choices, self.demand),
            replayed=_replayed(fleets, served.origin, self.source, self.declared) if is_replayed else (),
            _source=self.source,
            _described=served.description,
        )


def _replayed(
    fleets: Sequence[SizedFleet], origin: Origin, model: str | Path, declared: DeclaredTraffic
) -> tuple[tuple[SizedFleet, ReplayOutcome], ...]:
    """The best fleets through their engine's own scheduler, each with enough requests to have a steady state."""
    from llm_perf_opt.serving.capacity.replays import Replays
    from llm_perf_opt.serving.engine_process.environment import ENGINES as OWN_SCHEDULERS

    chosen = [fleet for fleet in fleets if fleet.broken is None and fleet.engine in OWN_SCHEDULERS][:_MOST_REPLAYED]
    if not chosen:
        return ()
    outcomes = []
    with engine_folder(origin, model) as folder, ExitStack() as cleanup:
        opened = {
            name: cleanup.enter_context(Replays(folder, OWN_SCHEDULERS[name]))
            for name in {fleet.engine for fleet in chosen}
        }
        for fleet in chosen:
            at_once = fleet.demand.users or round(fleet.replicas * fleet.state.users)
            rounds = max(_ROUNDS, 0 if declared.sessions is None else _SESSIONS * declared.sessions.turns)
            own = replace(declared, requests=max(SAMPLE, rounds * at_once))
            if declared.arrivals is None:
                own = replace(declared, requests=rounds * at_once, concurrency=at_once)
            requests = own.traffic(fleet.candidate.served.page_tokens)
            candidate = replace(fleet.candidate, replicas=fleet.replicas)
            outcomes.append((fleet, opened[fleet.engine].outcome(candidate, requests)))
    return tuple(outcomes)


def _shares(fleet: SizedFleet) -> Mapping[str, float]:
    candidate = fleet.candidate
    considered = replace(candidate.replica.considered, best=fleet.state)
    return candidate.served.step_shares(
        candidate.cluster, considered, fleet.demand.mean, reads_prompts=fleet.prefill is None
    )


def _why_unmeasured() -> str:
    if missing_packages():
        return "the tables of measured kernels are not installed (pip install 'llm-perf-opt[kernels]', or tables add)"
    return "no similar device has measured kernels"


def _engines(given: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in given.split(",")))
    unknown = next((name for name in names if name not in ENGINES), None)
    if unknown is not None:
        raise UsageError(
            f"{unknown[:60]!r} is not an engine with measured kernels.",
            why=f"there are: {', '.join(ENGINES)}",
            fix="name one of them, or several with commas",
        )
    return names


def _choices(gpus: str, max_gpus: int, devices_file: Path | None) -> list[GpuChoice]:
    """GPUs by name, or a number of them such as `8x h100-sxm`; a wrong one is refused before any work."""
    choices = []
    for name in dict.fromkeys(map(str, device_names(gpus, devices_file))):
        hardware = find_hardware(name, devices_file)
        if isinstance(hardware, Cluster):
            choices.append(GpuChoice(cluster=hardware, count=hardware.count))
        elif name[0].isdigit() and "x" in name.split()[0]:
            choices.append(GpuChoice(cluster=search_cluster(hardware.id, 1, devices_file), count=1))
        else:
            choices.append(GpuChoice(cluster=search_cluster(hardware.id, max_gpus, devices_file)))
    if not choices:
        raise UsageError("No GPU is named.", why="the list is empty", fix="write --gpus l4,h100-sxm,h200-sxm")
    return choices


def _speculation_notes(fleet: SizedFleet | None) -> Iterator[Note]:
    """What the drafter is taken for, and up to which load it is worth it."""
    if fleet is None or (speculation := fleet.candidate.replica.steady.speculation) is None:
        return
    steady = fleet.candidate.replica.steady
    at, most = fleet.state.sequences, steady.break_even
    worth = "at every load that fits" if most >= steady.most else f"up to {format_number_of(most, 'sequence')} at once"
    takes = (
        "The drafter is one more layer of the model with its head, cache and weights; the checkpoint must have one."
        if speculation.has_layer
        else "The drafter searches the text on the host, and takes nothing of the GPU."
    )
    yield Note(
        f"Speculation {speculation} keeps {speculation.tokens_per_step:.3g} tokens per step. A replica decodes "
        f"{format_number_of(at, 'sequence')} here; tokens come sooner than without it "
        f"{worth if most else 'at no load'}. {takes}"
    )


def _adapters(lora: str | None, engines: Sequence[str]) -> LoraAdapters | None:
    adapters = read_lora(lora)
    if adapters is not None and engines != [DEFAULT_KERNEL_ENGINE]:
        raise UsageError(
            "Adapters are counted for vLLM alone.",
            why="other engines store them in another way",
            fix="leave --engine out",
        )
    return adapters


def _lora_notes(fleet: SizedFleet | None) -> Iterator[Note]:
    """What the adapters take of memory and of a step."""
    if fleet is None or (lora := fleet.candidate.served.lora) is None:
        return
    plan, blocks = fleet.candidate.replica.considered.plan, fleet.candidate.served.blocks
    held = adapter_bytes(blocks, lora, plan.tp) // plan.pp
    kernels = 2 * sum(matmul.layers for matmul in blocks.matmuls)
    yield Note(
        f"{counted(lora.count, 'adapter')} of rank {lora.rank} take {format_bytes(held)} on each GPU "
        f"({format_bytes(held // lora.count)} each) and {format_number_of(kernels, 'kernel')} in each step, which "
        f"meets {lora.active(fleet.state.sequences):.3g} of them."
    )


def _transfer_notes(fleet: SizedFleet | None) -> Iterator[Note]:
    """How the cache gets from one side to the other, and how busy the prefill workers are."""
    if fleet is not None and (prefill := fleet.prefill) is not None:
        yield Note(
            f"Prefill workers are busy {format_ratio(min(1.0, prefill.load))} of the time. The cache of a prompt takes "
            f"{format_seconds(prefill.transfer_s)} on the link to the decode workers."
        )


def _asked_text(demand: Demand, declared: DeclaredTraffic) -> str:
    mean, sizes = demand.mean, () if declared.pages is None else declared.pages.sizes
    page = f" ({', '.join(size.name for size in sizes)})" if sizes else ""
    parts = [f"{mean.prompt_tokens:,.0f} tokens in{page}, {mean.output_tokens:,.0f} out"]
    if demand.users is not None:
        parts.append(counted(demand.users, "user"))
    if declared.arrivals is not None:
        parts.append(f"{declared.arrivals.per_s:g} requests/s")
    if demand.deadline is not None:
        parts.append(str(demand.deadline))
    if demand.slo is not None:
        parts.append(str(demand.slo))
    return "; ".join(parts)


def _why_none(served: ServedModel, choices: list[GpuChoice], demand: Demand) -> str:
    """The longest context that would fit, of the plan that holds most."""
    model, length = served.description.model, round(demand.mean.prompt_tokens + demand.mean.output_tokens)
    longest, place = served.longest_context([choice.cluster for choice in choices], length)
    names = ", ".join(str(choice.cluster) if choice.count else choice.cluster.device.id for choice in choices)
    if not longest:
        return f"{model} does not fit on {names}: the weights alone are too large."
    return (
        f"{model} with {length:,} tokens does not fit on {names}: "
        f"the longest context is {longest:,} tokens, with {place}."
    )
