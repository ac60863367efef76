"""Does a training run fit, how long is a step, what does it cost: `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.core.hardware.prices import hourly_price, price_notes
from llm_perf_opt.core.report import Level, Note, Report
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.tracing.origin import find_origin
from llm_perf_opt.tracing.traced_run import trace_origin
from llm_perf_opt.training.model_flops import conventions
from llm_perf_opt.training.model_shape import ModelShape, model_shape
from llm_perf_opt.training.search import (
    Candidate,
    FasterRun,
    FixedChoices,
    fastest,
    largest_micro_batch,
    largest_rank,
    largest_sequence,
    made_faster,
    measured,
    repaired,
)
from llm_perf_opt.training.step_kernels import COMPUTE
from llm_perf_opt.training.step_time import StepClock
from llm_perf_opt.training.traced_layer import traced_layer
from llm_perf_opt.training.train_report import Trained, report_of
from llm_perf_opt.training.training_run import (
    TrainingPlan,
    TrainingRun,
    read_method,
    read_plan,
    state_bytes,
)

SEQUENCES_PER_GPU = 8  # of an optimizer step, where nothing is said


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrainAnswer(Answer):
    """One training run: what it takes, how fast it is, and the runs that were tried.

    Bytes are per GPU. `by_kind` adds up to `needed_bytes`; `taken_bytes` has the allowances too. Rates are of all GPUs
    together, and None where the run does not fit. `mfu` holds every convention.
    """

    model: str
    machine: str
    fits: bool
    plan: str
    micro_batch: int
    micro_batches: int
    recompute: str
    by_kind: Mapping[str, int]
    needed_bytes: int
    taken_bytes: int
    memory_bytes: int
    step_s: float | None
    tokens_per_s: float | None
    tokens_per_s_low: float | None
    tokens_per_s_high: float | None
    mfu: Mapping[str, float]
    largest: Mapping[str, int | None]
    changes: tuple[str, ...]  # options that make it fit
    _trained: Trained

    def report(self) -> Report:
        """The answer, memory by kind, the step by phase, communication, MFU by convention."""
        return report_of(self._trained)

    def save_trainer(self, folder: str | Path, trainer: str = "trl", *, force: bool = False) -> tuple[Path, ...]:
        """The command and the configuration that start this run in trl, axolotl, llamafactory or torchtitan."""
        from llm_perf_opt.training.trainer_files import write_trainer

        has_tower = self._trained.shape.tower_parameters > 0
        return write_trainer(
            Path(folder), trainer, self.model, self._trained.best.run, has_tower=has_tower, force=force
        )


def train(
    model: str | Path,
    gpus: str,
    *,
    method: str = "full",
    seq: int = 4096,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    plan: str | None = None,
    recompute: str | None = None,
    optimizer: str = "adamw",
    states: str | None = None,
    precision: str = "bf16",
    loss: str = "whole",
    compiled: bool = False,
    train_towers: bool = False,
    offload: bool = False,
    tokens: float | None = None,
    measured_tokens_per_s: float | None = None,
    prices: Mapping[str, float] | None = None,
    devices_file: Path | None = None,
    trust_remote_code: bool = False,
) -> TrainAnswer:
    """Whether a training run fits, how long a step takes, and what so much training costs; without weights or GPU.

    - `gpus`: `24gb-card`, `8x a100-sxm-80g`. `plan`: `fsdp8`, `tp2,pp4,zero1`; left out, plans are searched.
    - `method`: `full`, `lora:16`, `qlora:16`: the rank of adapters on every linear layer.
    - `micro_batch`, `recompute`: `none`, `selective` or `full`; left out, the fastest that fits is searched.
    - `global_batch`: sequences of an optimizer step; eight for each GPU where nothing is said.
    - `states`: `mixed` (weights in 32 bits, cast to 16), `bf16`, or `master` (a copy in 32 bits, as in Megatron).
    - `loss`: `whole`, `chunked` or `fused`. `compiled`: torch.compile fuses norms and activation functions.
    - `offload`: weights, gradients and states stay in the host's memory; only with a plan that shards weights.
    - `tokens`: of the whole training. `measured_tokens_per_s`: of your own run, all GPUs together.
    - `prices`: device id -> price of a GPU hour, in place of the table that ships with the package.
    """
    cluster = parse_cluster(gpus, devices_file)
    split = None if plan is None else read_plan(plan, cluster.count)
    fixed = FixedChoices(plan=split, recompute=recompute, micro_batch=micro_batch)
    base = TrainingRun(
        method=read_method(method),
        states=state_bytes(optimizer, states or "mixed"),
        plan=fixed.plan or TrainingPlan(gpus=cluster.count),
        cluster=cluster,
        sequence=seq,
        micro_batch=1 if micro_batch is None else micro_batch,
        sequences=SEQUENCES_PER_GPU * cluster.count if global_batch is None else global_batch,
        recompute=recompute or "none",
        optimizer=optimizer,
        precision=precision,
        loss=loss,
        compiled=compiled,
        trains_towers=train_towers,
        offloads=offload,
        has_own_attention=precision != "bf16",
    )
    shape = _shape_for(str(model), seq, trust_remote_code)
    base = base if compiled else _with_traced_layer(base, model, shape, trust_remote_code)
    candidates = fastest(shape, base, fixed, clock := StepClock.of(cluster))
    faster = made_faster(shape, candidates[0], clock, is_plan_free=plan is not None)
    return _answer(str(model), shape, candidates, faster, tokens, measured_tokens_per_s, prices)


def _shape_for(model: str, sequence: int, trusts_code: bool) -> ModelShape:
    """The shape of a model that takes this number of tokens."""
    shape = shape_of(model, trust_remote_code=trusts_code)
    learnt = shape.learnt_positions
    if learnt is not None and sequence > learnt:
        raise UsageError(
            f"{model} does not train on {sequence:,} tokens.",
            why=f"it has learnt {learnt:,} positions, and no other has a meaning",
            fix=f"--seq {learnt}",
        )
    return shape


def _with_traced_layer(run: TrainingRun, model: str | Path, shape: ModelShape, trusts_code: bool) -> TrainingRun:
    sizes = traced_layer(model, run.method, shape.linear_names, sequence=run.sequence, trust_remote_code=trusts_code)
    return replace(run, traced=sizes)


@cache
def shape_of(model: str, *, trust_remote_code: bool = False) -> ModelShape:
    """From a trace of one decode step of the model's own code, which may be a stored one."""
    origin = find_origin(model, torch_device="cuda", trust_remote_code=trust_remote_code)
    graph = trace_origin(origin).graphs[-1]
    if graph.phase != DECODE:
        raise PerfOptError(
            f"{model} generates no tokens.",
            why="what a training step runs is read from a decoder's step, and its trace has none",
            fix="name a model that generates, such as Qwen/Qwen3-8B",
        )
    return model_shape(graph)


def _answer(
    model: str,
    shape: ModelShape,
    candidates: list[Candidate],
    faster: list[FasterRun],
    tokens: float | None,
    measured_rate: float | None,
    prices: Mapping[str, float] | None,
) -> TrainAnswer:
    best = candidates[0]
    run, device = best.run, best.run.cluster.device
    price = hourly_price(device.id, prices)
    trained = Trained(
        model=model,
        shape=shape,
        best=best,
        others=candidates if best.fits else (),
        repairs=None if best.fits else repaired(shape, run),
        faster=faster,
        largest=_largest(shape, run),
        tokens=tokens,
        measured_tokens_per_s=measured_rate,
        price_per_hour=price,
        peak_flops_per_s=_peak(device, run.precision),
        notes=(*_notes(shape, run), *price_notes({device.id: price})),
    )
    return TrainAnswer(
        model=model,
        machine=str(run.cluster),
        fits=best.fits,
        plan=str(run.plan),
        micro_batch=run.micro_batch,
        micro_batches=run.micro_batches,
        recompute=run.recompute,
        by_kind={str(kind): round(size) for kind, size in best.memory.by_kind.items()},
        needed_bytes=round(best.memory.needed),
        taken_bytes=round(best.memory.taken),
        memory_bytes=device.memory_bytes,
        largest=trained.largest,
        changes=tuple(change.options for change in trained.repairs or ()),
        _trained=trained,
        **_speed(trained),
    )


def _speed(trained: Trained) -> dict[str, Any]:
    best, peak = trained.best, trained.peak_flops_per_s
    if best.time is None:
        names = ("step_s", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high")
        return {**dict.fromkeys(names), "mfu": {}}
    tokens, band = best.run.step_tokens, best.time.band
    rate = tokens / best.time.seconds / best.run.plan.gpus
    rows = conventions(trained.shape, best.run).values()
    return {
        "step_s": best.time.seconds,
        "tokens_per_s": tokens / best.time.seconds,
        "tokens_per_s_low": tokens / band.high,
        "tokens_per_s_high": tokens / band.low,
        "mfu": {} if peak is None else {row.name: row.flops_per_token * rate / peak for row in rows},
    }


def _largest(shape: ModelShape, run: TrainingRun) -> dict[str, int | None]:
    return {
        "micro batch": largest_micro_batch(shape, run),
        "sequence": largest_sequence(shape, run),
        "rank of adapters": largest_rank(shape, run),
    }


def _peak(device: Device, precision: str) -> int | None:
    """Dense FLOP/s of the format of the matmuls; None: not known."""
    try:
        return device.peak(COMPUTE[precision])
    except PerfOptError:
        return None


def _notes(shape: ModelShape, run: TrainingRun) -> list[Note]:
    notes = [_origin_note(run)]
    if _peak(run.cluster.device, run.precision) is None:
        notes.append(
            Note(
                f"{run.cluster.device.id} has no {run.precision} peak: matmuls are priced in the next wider format "
                "that it has, and there is no MFU.",
                Level.WARNING,
            )
        )
    if shape.tower_parameters and not run.trains_towers:
        notes.append(
            Note("The encoder of images or sound is frozen: its weights are in the memory, its forward is in no time.")
        )
    elif shape.tower_parameters:
        notes.append(
            Note(
                "The encoder is trained: its weights, gradients and states are in the memory, its activations and its "
                "time are not.",
                Level.WARNING,
            )
        )
    if shape.blocks.states is not None:
        notes.append(
            Note(
                "Layers with a recurrent state are priced by their matmuls alone: their scan is missing.", Level.WARNING
            )
        )
    return notes


def _origin_note(run: TrainingRun) -> Note:
    if run.traced is not None:
        return Note(
            "What a layer saves for its backward is counted in a weightless step of the model's own eager code."
        )
    why = "compiled code saves less than eager code" if run.compiled else "no step of this model could be traced"
    return Note(f"What a layer saves for its backward follows rules for its ops: {why}.")


def price_run(model: str | Path, run: TrainingRun) -> Candidate:
    """Memory and time of one run that is given whole, whether it fits or not."""
    return measured(shape_of(str(model)), run, clock_of(run.cluster))


@cache
def _clock(cluster: str) -> StepClock:
    return StepClock.of(parse_cluster(cluster))


def clock_of(cluster: Cluster) -> StepClock:
    """One for each cluster, so that a kernel is priced once."""
    return _clock(str(cluster))
