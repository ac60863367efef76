"""The fastest run that fits: plans, recomputation and micro batches tried; what to change to fit, or to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import TrainingMemory, rank_memory
from llm_perf_opt.training.step_time import StepClock, TrainingStepTime, step_time
from llm_perf_opt.training.training_run import FULL, QLORA, Shard, TrainingMethod, TrainingPlan, TrainingRun

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_PLAN_SIZES = (1, 2, 4, 8)
_LONG = 32_768  # tokens from which ranks may share a sequence
_MOST_TOKENS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run it. `time` is None where it was not asked for because the memory does not suffice."""

    run: TrainingRun
    memory: TrainingMemory
    time: TrainingStepTime | None

    @property
    def fits(self) -> bool:
        """Whether the fullest rank fits on the device with the allowance and the context."""
        return self.over_bytes <= 0

    @property
    def over_bytes(self) -> float:
        """Bytes that are missing; negative: bytes that are left."""
        return self.memory.taken - self.run.cluster.device.memory_bytes

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks, as expected."""
        return 0.0 if self.time is None else self.run.step_tokens / self.time.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChoices:
    """What the caller chose; None: it is searched."""

    plan: TrainingPlan | None = None
    recompute: str | None = None
    micro_batch: int | None = None


def measured(shape: ModelShape, run: TrainingRun, clock: StepClock) -> Candidate:
    """Memory and time of one run, whether it fits or not."""
    return Candidate(run=run, memory=rank_memory(shape, run), time=step_time(shape, run, clock))


def fastest(shape: ModelShape, base: TrainingRun, fixed: FixedChoices, clock: StepClock) -> list[Candidate]:
    """Every run that fits, fastest first; where none fits, the ones that lack least, without a time."""
    fitting: list[Candidate] = []
    lacking: list[Candidate] = []
    for run in _runs(shape, base, fixed):
        memory = rank_memory(shape, run)
        candidate = Candidate(run=run, memory=memory, time=None)
        (fitting if candidate.fits else lacking).append(candidate)
    if not fitting:
        return sorted(lacking, key=lambda candidate: candidate.over_bytes)
    timed = [replace(candidate, time=step_time(shape, candidate.run, clock)) for candidate in _worth_timing(fitting)]
    return sorted(timed, key=lambda candidate: -candidate.tokens_per_s)


def _worth_timing(fitting: list[Candidate]) -> Iterator[Candidate]:
    """Of each plan and recomputation the two largest micro batches: smaller ones are slower."""
    groups: dict[tuple[TrainingPlan, str], list[Candidate]] = {}
    for candidate in fitting:
        groups.setdefault((candidate.run.plan, candidate.run.recompute), []).append(candidate)
    for group in groups.values():
        yield from sorted(group, key=lambda candidate: -candidate.run.micro_batch)[:2]


def _runs(shape: ModelShape, base: TrainingRun, fixed: FixedChoices) -> Iterator[TrainingRun]:
    plans = [fixed.plan] if fixed.plan is not None else list(plans_of(shape, base))
    for plan in plans:
        for recompute in (fixed.recompute,) if fixed.recompute else ("none", "selective", "full"):
            for micro in (fixed.micro_batch,) if fixed.micro_batch else _MICRO_BATCHES:
                if fixed.micro_batch is None and micro > max(1, base.sequences // plan.data_ranks):
                    continue
                yield replace(base, plan=plan, recompute=recompute, micro_batch=micro)


def plans_of(shape: ModelShape, base: TrainingRun) -> Iterator[TrainingPlan]:
    """Plans of all GPUs: tensor parallel inside a node, pipeline stages where there are several nodes."""
    gpus, per_node = base.cluster.count, base.cluster.per_node
    if gpus == 1:
        yield TrainingPlan()
        return
    stages = _PLAN_SIZES if gpus > per_node else (1,)
    contexts = _PLAN_SIZES if base.sequence >= _LONG else (1,)
    for tp in (size for size in _PLAN_SIZES if size <= min(per_node, shape.heads)):
        for pp in (size for size in stages if shape.layers >= 2 * size):
            for cp in contexts:
                for ep in _expert_ranks(shape, gpus // pp):
                    for shard in _shards(base.method, pp):
                        if (plan := _plan(gpus, tp, pp, cp, ep, shard)) is not None:
                            yield plan


def _plan(gpus: int, tp: int, pp: int, cp: int, ep: int, shard: Shard) -> TrainingPlan | None:
    if gpus % (tp * pp * cp):
        return None
    ranks = gpus // (tp * pp * cp)
    try:
        return TrainingPlan(
            gpus=gpus, tp=tp, pp=pp, cp=cp, ep=ep, shard=shard, degree=1 if shard is Shard.NOTHING else ranks
        )
    except UsageError:
        return None


def _expert_ranks(shape: ModelShape, ranks: int) -> tuple[int, ...]:
    experts = min((block.experts for block in shape.blocks.experts), default=1)
    return tuple(size for size in (1, 8, 16, 32, 64) if size == 1 or (experts % size == 0 and ranks % size == 0))


def _shards(method: TrainingMethod, pp: int) -> tuple[Shard, ...]:
    """Gathering weights for every micro batch of a pipeline is not done: its stages share the states alone."""
    return (Shard.NOTHING, Shard.STATES) if pp > 1 else (Shard.NOTHING, Shard.WEIGHTS)


def largest_micro_batch(shape: ModelShape, run: TrainingRun) -> int:
    """The most sequences of a micro batch that fit; 0: not even one."""
    return _largest(lambda size: _fits(shape, replace(run, micro_batch=size)), 4096)


def largest_sequence(shape: ModelShape, run: TrainingRun) -> int:
    """The longest sequence that fits with this micro batch, in steps of 128 tokens; 0: none."""
    return 128 * _largest(lambda size: _fits(shape, replace(run, sequence=128 * size)), _MOST_TOKENS // 128)


def largest_rank(shape: ModelShape, run: TrainingRun) -> int | None:
    """The largest rank of adapters that fits; None: there are no adapters."""
    if not run.method.has_adapters:
        return None
    return _largest(lambda rank: _fits(shape, replace(run, method=replace(run.method, rank=rank))), 4096)


def _fits(shape: ModelShape, run: TrainingRun) -> bool:
    return rank_memory(shape, run).taken <= run.cluster.device.memory_bytes


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 0 to `most` for which it holds, where it holds for all smaller ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """A change of a run that does not fit, and the run with it; `options` are its words on the command line."""

    what: str
    options: str
    run: TrainingRun


def changes(run: TrainingRun) -> Iterator[RunChange]:
    """From the one that costs least to the one that changes most."""
    if run.recompute != "full":
        yield RunChange(what="recompute all layers", options="--recompute full", run=replace(run, recompute="full"))
    if run.loss == "whole":
        yield RunChange(what="fuse the loss", options="--loss fused", run=replace(run, loss="fused"))
    if run.micro_batch > 1:
        yield RunChange(what="micro batch 1", options="--micro-batch 1", run=replace(run, micro_batch=1))
    plan = run.plan
    if plan.data_ranks > 1 and plan.shard is not Shard.WEIGHTS:
        sharded = replace(plan, shard=Shard.WEIGHTS, degree=plan.data_ranks)
        yield RunChange(what="shard the weights", options=f"--plan {sharded}", run=replace(run, plan=sharded))
    if run.method.kind == FULL:
        adapters = replace(run, method=TrainingMethod(kind="lora", rank=16))
        yield RunChange(what="train adapters", options="--method lora:16", run=adapters)
    if run.method.kind != QLORA:
        rank = run.method.rank or 16
        packed = replace(run, method=TrainingMethod(kind=QLORA, rank=rank))
        yield RunChange(what="adapters on a 4-bit model", options=f"--method qlora:{rank}", run=packed)
    if not run.offloads and run.plan.gpus > 1:
        whole = TrainingPlan(gpus=plan.gpus, shard=Shard.WEIGHTS, degree=plan.gpus)
        yield RunChange(
            what="keep weights and states in the host's memory",
            options=f"--offload --plan {whole}",
            run=replace(run, offloads=True, plan=whole),
        )


def repaired(shape: ModelShape, run: TrainingRun) -> list[RunChange] | None:
    """The single change that makes a run fit; else as many as are needed, in their order; None: all do not suffice."""
    single = next((change for change in changes(run) if _fits(shape, change.run)), None)
    if single is not None:
        return [single]
    made: list[RunChange] = []
    for _ in range(8):
        change = next((change for change in changes(run) if change.options not in [m.options for m in made]), None)
        if change is None:
            return None
        made.append(change)
        run = change.run
        if _fits(shape, run):
            return made
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterRun:
    """A change of a run that fits, made after those before it; `alone_s` is what a step saves by it alone."""

    change: RunChange
    alone_s: float
    after_s: float
    made: Candidate


def faster_changes(shape: ModelShape, run: TrainingRun, clock: StepClock, *, is_plan_free: bool) -> Iterator[RunChange]:
    """What may shorten a step of the same training. The plan is tried where it `is_plan_free`, over all its sizes."""
    for less in ("none", "selective"):
        if run.recompute == "full" or (run.recompute == "selective" and less == "none"):
            yield RunChange(what=_LESS[less], options=f"--recompute {less}", run=replace(run, recompute=less))
    for size in (2 * run.micro_batch, 4 * run.micro_batch):
        if size <= run.sequences // run.plan.data_ranks:
            bigger = replace(run, micro_batch=size)
            yield RunChange(what=f"micro batch {size}", options=f"--micro-batch {size}", run=bigger)
    if run.loss != "fused":
        yield RunChange(what="fuse the loss", options="--loss fused", run=replace(run, loss="fused"))
    if not run.compiled:
        compiled = replace(run, compiled=True, traced=None)
        yield RunChange(what="compile the model", options="--compiled", run=compiled)
    if run.offloads:
        kept = replace(run, offloads=False)
        yield RunChange(what="keep weights and states on the GPU", options="without --offload", run=kept)
    if is_plan_free:
        same = FixedChoices(recompute=run.recompute, micro_batch=run.micro_batch)
        best = fastest(shape, run, same, clock)[0]
        if best.fits and best.run.plan != run.plan:
            yield RunChange(what="split it in another way", options=f"--plan {best.run.plan}", run=best.run)


_LESS = {"none": "recompute nothing", "selective": "keep attention and every second matmul"}
_LEAST_SAVED = 0.01  # of a step: what saves less is not told


def made_faster(shape: ModelShape, best: Candidate, clock: StepClock, *, is_plan_free: bool) -> list[FasterRun]:
    """The changes that save most of a step, one after the other; each run still fits."""
    made: list[FasterRun] = []
    alone: dict[str, float] = {}
    at = best
    while at.time is not None:
        tried = {
            change.options: (change, measured(shape, change.run, clock))
            for change in faster_changes(shape, at.run, clock, is_plan_free=is_plan_free)
            if _fits(shape, change.run)
        }
        before = at.time.seconds
        saved = {name: before - each.time.seconds for name, (_, each) in tried.items() if each.time is not None}
        alone = alone or saved
        first = max(saved, key=lambda name: saved[name], default="")
        if not first or saved[first] < _LEAST_SAVED * before:
            break
        change, at = tried[first]
        own = alone.get(first, saved[first])
        made.append(FasterRun(change=change, alone_s=own, after_s=saved[first], made=at))
    return made
