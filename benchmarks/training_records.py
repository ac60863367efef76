"""Fit, step time and FLOP conventions of `train` against published training records, held out by source.

    python -m benchmarks.training_records [--docs] [--judge]

Reads the models without weights and prices 659 published steps through the verb's own function. Without --judge only
the sources that the capability was developed on are opened. With --docs the page and its data are written anew.
"""

from __future__ import annotations

import csv
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from benchmarks.pages import FACTS, share, show_sections, signed, table
from benchmarks.runner import parser
from llm_perf_opt.api.train import clock_of, shape_of
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.timing.lower_bound import fastest_peak
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, Split
from llm_perf_opt.training.model_flops import NECESSARY, SIX_N_WHOLE, TWO_THIRDS, conventions, necessary_flops
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import HeldKind, TrainingMemory, rank_memory
from llm_perf_opt.training.step_kernels import COMPUTE
from llm_perf_opt.training.step_time import step_time
from llm_perf_opt.training.traced_layer import traced_layer
from llm_perf_opt.training.training_run import Shard, StateBytes, TrainingMethod, TrainingPlan, TrainingRun

# Chosen before any prediction was made. A source is a repository that published a table of its own runs.
DEVELOPMENT = ("llm_foundry", "qwen_finetune", "xtuner_megatron", "torchtitan")
JUDGING = ("torchtune", "fsdp_qlora", "fms_fsdp", "automodel", "megatron_bridge", "litgpt")
FIRST_RELEASE = "26.06"  # of megatron_bridge; the same configurations in older releases judge nothing

GIB = 2**30
_FOLDERS = FACTS / "training" / "configs"
_SERVED = FACTS / "serving" / "configs"
_NAMES = {
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-13b": _FOLDERS / "llama-2-13b",
    "llama2-34b": _SERVED / "codellama-34b",
    "llama2-70b": _SERVED / "llama-2-70b",
    "llama3-8b": "meta-llama/Llama-3.1-8B",
    "llama3-70b": "meta-llama/Llama-3.1-70B",
    "llama3-405b": "meta-llama/Llama-3.1-405B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "yi-34b": _SERVED / "yi-34b",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gemma2-9b": "google/gemma-2-9b",
}
# Devices of records that the table does not have: the nearest that it has.
_DEVICES = {"h100-96g-500w": "h100-sxm"}
_SHARDS = {"none": Shard.NOTHING, "ddp": Shard.NOTHING, "zero1": Shard.STATES, "zero2": Shard.GRADIENTS}
_TRANSFORMER_ENGINE = ("megatron_bridge", "xtuner_megatron", "automodel")
# Transformer Engine's kernels; MPT has fused attention, norms in 16 bits and a fused loss.
_FUSED = (*_TRANSFORMER_ENGINE, "llm_foundry")
_MASTER = "2,4,12"  # Megatron's weights, gradients and states, where a record does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A published step: what ran, and what was measured. None is not recorded."""

    id: int
    source: str
    model: str
    release: str
    run: TrainingRun
    tokens_per_s_gpu: float | None
    tflops_gpu: float | None
    peak_bytes: float | None
    counter: str
    is_out_of_memory: bool
    judges_speed: bool
    judges_memory: bool

    @property
    def shape(self) -> ModelShape:
        """Of its model."""
        return shape_of(source_of(self.model))


def source_of(model: str) -> str:
    """What `train` is asked for: a name of the catalogue, or a folder with a configuration."""
    return str(_NAMES.get(model, _FOLDERS / model))


def read_runs(sources: tuple[str, ...]) -> list[TrainedRun]:
    """The runs of these sources whose model and device are known and that say enough to be priced."""
    with (FACTS / "training" / "records.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] in sources and row["model"]]
    return [run for row in rows if (run := _trained(row)) is not None]


def _trained(row: dict[str, str]) -> TrainedRun | None:
    needed = ("count", "seq", "micro_batch", "tp", "pp", "precision")
    if any(not row[name] for name in needed):
        return None
    try:
        run = training_run(row)
    except (PerfOptError, UsageError):
        return None
    lacks_speed = {part for part in row["lacks_speed"].split("; ") if part}
    return TrainedRun(
        id=int(row["id"]),
        source=row["source"],
        model=row["model"],
        release=row["release"],
        run=run,
        tokens_per_s_gpu=_number(row["tokens_per_s_gpu"]),
        tflops_gpu=_number(row["tflops_gpu"]),
        peak_bytes=None if not row["peak_gib"] else float(row["peak_gib"]) * GIB,
        counter=row["memory_is"],
        is_out_of_memory=row["oom"] == "yes",
        judges_speed=bool(row["tokens_per_s_gpu"]) and bool(row["device"]) and lacks_speed <= {"recompute"},
        judges_memory=bool(row["peak_gib"])
        and not row["lacks_memory"]
        and not (row["offload"] or "").startswith(("parameters", "optimizer")),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def training_run(row: dict[str, str]) -> TrainingRun:
    """What a record says, in the words of `train`."""
    plan, states = _plan(row), _states(row)
    micro = int(float(row["micro_batch"]))
    return TrainingRun(
        method=_method(row),
        states=states,
        plan=plan,
        cluster=_cluster(row["device"], plan.gpus),
        sequence=int(row["seq"]),
        micro_batch=micro,
        sequences=round(float(row["global_batch"] or micro * plan.data_ranks)),
        recompute={"": "none", "moe": "selective", "select": "selective"}.get(row["recompute"], row["recompute"]),
        precision=row["precision"],
        loss={"": "whole", "fused (liger)": "fused"}.get(row["loss"], row["loss"]),
        compiled=row["compile"] == "yes" or row["source"] in _FUSED,
        has_own_attention=row["source"] in _TRANSFORMER_ENGINE,
    )


def _plan(row: dict[str, str]) -> TrainingPlan:
    gpus, sizes = int(row["count"]), {name: int(row[name] or 1) for name in ("tp", "pp", "cp", "ep")}
    shard = Shard.WEIGHTS if row["shard"] in ("zero3", "hsdp") else _SHARDS.get(row["shard"], Shard.NOTHING)
    ranks = gpus // (sizes["tp"] * sizes["pp"] * sizes["cp"])
    degree = 1 if shard is Shard.NOTHING else min(ranks, int(row["shard_degree"] or ranks))
    return TrainingPlan(gpus=gpus, **sizes, chunks=int(row["vp"] or 1), shard=shard, degree=degree)


def _states(row: dict[str, str]) -> StateBytes:
    if row["method"] in ("lora", "qlora", "lora+emb"):
        # peft's adapters are in 32 bits; torchtune and fsdp_qlora keep theirs in 16.
        return (
            StateBytes(weights=4, gradients=4, states=8)
            if row["source"] == "qwen_finetune"
            else StateBytes(weights=2, gradients=2, states=4)
        )
    weights, gradients, states = (float(part) for part in (row["state_bytes"] or _MASTER).split(","))
    if "8bit" in row["optimizer"]:
        states = 2.03
    return StateBytes(weights=weights, gradients=0 if "in backward" in row["optimizer"] else gradients, states=states)


def _method(row: dict[str, str]) -> TrainingMethod:
    kind = row["method"]
    if kind in ("pretrain", "full"):
        return TrainingMethod()
    rank = int(row["lora_rank"] or 16)
    return TrainingMethod(kind="qlora" if kind == "qlora" else "lora", rank=rank, trains_tables=kind == "lora+emb")


@cache
def _cluster(device: str, gpus: int) -> Cluster:
    return parse_cluster(
        f"{gpus}x {_DEVICES.get(device, device)}" if gpus > 1 else _DEVICES.get(device, device) or "h100-sxm"
    )


# What the verb says of a run, and what was measured.


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run with the answers to it; a figure that was not measured has none."""

    trained: TrainedRun
    memory: TrainingMemory
    tokens_per_s_gpu: float
    low: float
    high: float

    @property
    def predicted_bytes(self) -> float:
        """By the counter of the record: tensors that are active, or with what the allocator reserves beyond them."""
        is_active = "active" in self.trained.counter or "allocated" in self.trained.counter
        return self.memory.needed if is_active else self.memory.needed + self.memory.reserved_allowance

    @property
    def memory_ratio(self) -> float:
        """Predicted over measured."""
        assert self.trained.peak_bytes is not None
        return self.predicted_bytes / self.trained.peak_bytes

    @property
    def speed_ratio(self) -> float:
        """Predicted over measured."""
        assert self.trained.tokens_per_s_gpu is not None
        return self.tokens_per_s_gpu / self.trained.tokens_per_s_gpu


def judged(trained: TrainedRun) -> Judged:
    """Memory and time by the functions that the verb asks."""
    shape, run = trained.shape, trained.run
    if not run.compiled:
        run = replace(run, traced=traced_layer(source_of(trained.model), run.method, shape.linear_names))
    time = step_time(shape, run, clock_of(run.cluster))
    rate = run.step_tokens / run.plan.gpus
    return Judged(
        trained=trained,
        memory=rank_memory(shape, run),
        tokens_per_s_gpu=rate / time.seconds,
        low=rate / time.band.high,
        high=rate / time.band.low,
    )


def closed_form_bytes(shape: ModelShape, run: TrainingRun) -> float:
    """What a careful user writes down: states, a layer of its own architecture, logits and gathered layers."""
    tokens = run.rank_tokens / run.plan.tp
    layers = max(1, shape.layers)
    heads = sum(
        a.layers * 2 * (a.heads * a.v_width + shape.blocks.key_heads(a) * a.qk_width) for a in shape.blocks.attentions
    )
    rows = sum(m.depth * m.layers for m in shape.layer_matmuls if m.part is DecoderPart.MLP and m.split is Split.ROWS)
    rows += sum(block.layers * block.chosen * block.inner for block in shape.blocks.experts)
    width = 4 * shape.hidden + (heads + (3 if run.compiled else 4) * rows) / layers
    layer = tokens * (2 * width + (0 if run.compiled else 8 * shape.hidden))
    kept = {"none": layers * layer, "full": tokens * 2 * shape.hidden * layers + layer}
    saved = kept.get(run.recompute, layers * (layer + tokens * 2 * shape.hidden) / 2)
    logits = tokens * shape.vocabulary * {"whole": 10.0, "chunked": 1.25}.get(run.loss, 0.0)
    static = rank_memory(shape, replace(run, sequence=1, micro_batch=1)).by_kind
    weights, gradients, states = (static[kind] for kind in (HeldKind.WEIGHTS, HeldKind.GRADIENTS, HeldKind.STATES))
    per = 0.53 if run.method.kind == "qlora" else 2
    gathered = 0.0
    if run.plan.shard is Shard.WEIGHTS and run.plan.shard_ranks > 1:
        block = (shape.layer_parameters + shape.expert_parameters) / layers
        own = 0 if run.method.has_adapters else 2 * block
        gathered = (2 * block * per + own + 4 * shape.embedding_parameters) / run.plan.tp
    held = gradients if run.micro_batches > 1 else 0.0
    return max(weights + states + saved + logits + held, weights + gradients + states) + gathered


def errors(ratios: Iterable[float]) -> dict[str, Any]:
    """Of predicted over measured: count, median and 90 % of the distance from 1, and the median itself."""
    values = list(ratios)
    off = sorted(abs(ratio - 1) for ratio in values)
    if not off:
        return {"n": 0, "median": None, "p90": None, "bias": None}
    return {
        "n": len(off),
        "median": median(off),
        "p90": off[min(len(off) - 1, math.floor(0.9 * len(off)))],
        "bias": median(values) - 1,
    }


def memory_rows(runs: list[Judged]) -> dict[str, Any]:
    """By source and counter, with the closed form on the same rows."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for run in runs:
        if run.trained.judges_memory:
            names = (
                f"{run.trained.source}, {run.trained.run.method.kind}, {_counter(run)}",
                f"all, {_counter(run)}",
                "all",
            )
            for name in names:
                groups[name].append(run)
    return {
        name: {**errors(run.memory_ratio for run in group), "closed": errors(_closed(group))}
        for name, group in sorted(groups.items())
    }


def _counter(run: Judged) -> str:
    return next(
        (f"{word} counter" for word in ("active", "reserved") if word in run.trained.counter), "unnamed counter"
    )


def _closed(group: list[Judged]) -> Iterable[float]:
    for run in group:
        assert run.trained.peak_bytes is not None
        yield closed_form_bytes(run.trained.shape, run.trained.run) / run.trained.peak_bytes


def speed_rows(runs: list[Judged]) -> dict[str, Any]:
    """By source, and dense models apart from mixtures of experts."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for run in runs:
        if run.trained.judges_speed:
            kind = "mixture of experts" if run.trained.shape.blocks.experts else "dense"
            groups[f"{run.trained.source}, {kind}"].append(run)
            groups[f"all, {kind}"].append(run)
    return {
        name: {
            **errors(run.speed_ratio for run in group),
            "held": sum(run.low <= (run.trained.tokens_per_s_gpu or 0.0) <= run.high for run in group) / len(group),
        }
        for name, group in sorted(groups.items())
    }


def bound_rows(runs: list[Judged]) -> dict[str, Any]:
    """Necessary FLOPs at the measured rate over the peak; above 1 there is a fault in one of them."""
    reached = [
        (
            necessary_flops(run.trained.shape, run.trained.run) * run.trained.tokens_per_s_gpu / _peak(run.trained.run),
            run.trained.id,
        )
        for run in runs
        if run.trained.tokens_per_s_gpu
    ]
    return {
        "n": len(reached),
        "above": sum(part > 1 for part, _ in reached),
        "highest": max(reached, default=(0.0, 0))[0],
    }


def _peak(run: TrainingRun) -> int:
    return fastest_peak(COMPUTE[run.precision], run.cluster.device)


# How each source counts the FLOPs behind its TFLOP/s.
_CONVENTIONS: Mapping[str, str] = {"llm_foundry": SIX_N_WHOLE, "megatron_bridge": NECESSARY, "automodel": NECESSARY}


def flops_rows(runs: list[Judged]) -> dict[str, Any]:
    """Published TFLOP/s against tokens/s times the FLOPs of the source's own convention."""
    groups: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        trained = run.trained
        if trained.source not in _CONVENTIONS or not trained.tflops_gpu or not trained.tokens_per_s_gpu:
            continue
        name = TWO_THIRDS if trained.run.method.has_adapters else _CONVENTIONS[trained.source]
        each = conventions(trained.shape, trained.run)[name].flops_per_token
        groups[f"{trained.source}, {trained.model}: {name}"].append(
            each * trained.tokens_per_s_gpu / trained.tflops_gpu / 1e12
        )
    return {name: errors(ratios) for name, ratios in sorted(groups.items())}


def out_of_memory_rows(runs: list[Judged]) -> list[dict[str, Any]]:
    """Runs that did not fit, and what the verb says of them."""
    return [
        {
            "model": run.trained.model,
            "device": str(run.trained.run.cluster),
            "method": str(run.trained.run.method),
            "taken": run.memory.taken / GIB,
            "memory": run.trained.run.cluster.device.memory_bytes / GIB,
        }
        for run in runs
        if run.trained.is_out_of_memory
    ]


def data_of(runs: list[Judged]) -> dict[str, Any]:
    """All figures of one set of sources."""
    return {
        "memory": memory_rows(runs),
        "speed": speed_rows(runs),
        "bound": bound_rows(runs),
        "flops": flops_rows(runs),
        "out of memory": out_of_memory_rows(runs),
    }


def judged_runs(sources: tuple[str, ...], chosen: Callable[[TrainedRun], bool]) -> list[Judged]:
    """Every run of the sources that the verb can price."""
    return [judged(run) for run in read_runs(sources) if chosen(run)]


def is_judging(run: TrainedRun) -> bool:
    """Of Bridge the newest releases alone."""
    return run.source != "megatron_bridge" or run.release >= FIRST_RELEASE


_OFF = "off by: median / p90"


def sections(data: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Name of a section -> its text."""
    return {name: text for part, figures in data.items() for name, text in _sections(part, figures).items()}


def _sections(part: str, data: dict[str, Any]) -> dict[str, str]:
    speed = table(
        ("tokens/s", "records", _OFF, "bias", "in the band"),
        ((name, row["n"], _off(row), signed(row["bias"]), share(row["held"])) for name, row in data["speed"].items()),
    )
    memory = table(
        ("peak memory", "records", _OFF, "bias", f"closed form, {_OFF}"),
        ((name, row["n"], _off(row), signed(row["bias"]), _off(row["closed"])) for name, row in data["memory"].items()),
    )
    flops = table(
        ("published TFLOP/s", "records", _OFF),
        ((name, row["n"], _off(row)) for name, row in data["flops"].items()),
    )
    bound = data["bound"]
    said = (
        f"Of {bound['n']} measured rates {bound['above']} are above the bound of necessary FLOPs at the peak. "
        f"The highest is at {share(bound['highest'])} of it."
    )
    rows = data["out of memory"]
    full = table(
        ("ran out of memory", "method", "on", "predicted", "memory", "predicted not to fit"),
        (
            (
                r["model"],
                r["method"],
                r["device"],
                f"{r['taken']:.1f} GiB",
                f"{r['memory']:.1f} GiB",
                "yes" if r["taken"] > r["memory"] else "no",
            )
            for r in rows
        ),
    )
    return {
        f"{part}-speed": speed,
        f"{part}-memory": memory,
        f"{part}-flops": f"{flops}\n\n{said}",
        **({f"{part}-out-of-memory": full} if rows else {}),
    }


def _off(row: Mapping[str, Any]) -> str:
    return f"{share(row['median'])} / {share(row['p90'])}"


def main() -> None:
    flags = {"docs": "write the page and its data file", "judge": "open the judging sources too"}
    options = parser(__doc__, **flags).parse_args()
    logging.disable(logging.WARNING)
    data = {"development": data_of(judged_runs(DEVELOPMENT, lambda run: True))}
    if options.judge:
        data["judging"] = data_of(judged_runs(JUDGING, is_judging))
    show_sections("evidence/training-records", sections(data), is_written=options.docs, data=data)


if __name__ == "__main__":
    main()
