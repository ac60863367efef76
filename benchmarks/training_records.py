"""Fit, step time and FLOP conventions of `train` against published training records, held out by source.

    python -m benchmarks.training_records [--docs] [--judge]

Reads the models without weights and prices 659 published steps through the verb's own function. Without --judge only
the sources that the capability was developed on are opened. With --docs the page and its data are written anew.
"""

from __future__ import annotations

# Chosen before any prediction was made. A source is a repository that published a table of its own runs.
DEVELOPMENT = ("llm_foundry", "qwen_finetune", "xtuner_megatron", "torchtitan")
JUDGING = ("torchtune", "fsdp_qlora", "fms_fsdp", "automodel", "megatron_bridge", "litgpt")
FIRST_RELEASE = "26.06"  # of megatron_bridge; the same configurations in older releases judge nothing

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.pages import FACTS
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.tracing.origin import find_origin
from llm_perf_opt.tracing.traced_run import trace_origin
from llm_perf_opt.training.model_shape import ModelShape, model_shape
from llm_perf_opt.training.training_run import Method, Shard, StateBytes, TrainingPlan, TrainingRun

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
        return shape_of(self.model)


@cache
def shape_of(model: str) -> ModelShape:
    """From a trace of the model's own code, one decode step on ghosts."""
    source = _NAMES.get(model, _FOLDERS / model)
    return model_shape(trace_origin(find_origin(source, torch_device="cuda")).graphs[-1])


def read_runs(sources: tuple[str, ...]) -> list[TrainedRun]:
    """The runs of these sources whose model and device are known and that say enough to be priced."""
    with (FACTS / "training" / "records.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] in sources and row["model"]]
    return [run for row in rows if (run := _trained(row)) is not None]


def _trained(row: dict[str, str]) -> TrainedRun | None:
    needed = ("count", "seq", "micro_batch", "tp", "pp", "precision")
    if any(not row[name] for name in needed) or row["method"] == "lora+emb" and not row["lora_rank"]:
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
        judges_memory=bool(row["peak_gib"]) and not row["lacks_memory"] and not (row["offload"] or "").startswith(("parameters", "optimizer")),
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
        return StateBytes(weights=4, gradients=4, states=8) if row["source"] == "qwen_finetune" else StateBytes(weights=2, gradients=2, states=4)
    weights, gradients, states = (float(part) for part in (row["state_bytes"] or _MASTER).split(","))
    if "8bit" in row["optimizer"]:
        states = 2.03
    return StateBytes(weights=weights, gradients=0 if "in backward" in row["optimizer"] else gradients, states=states)


def _method(row: dict[str, str]) -> Method:
    kind = row["method"]
    if kind in ("pretrain", "full"):
        return Method()
    rank = int(row["lora_rank"] or 16)
    return Method(kind="qlora" if kind == "qlora" else "lora", rank=rank, trains_tables=kind == "lora+emb")


@cache
def _cluster(device: str, gpus: int) -> Cluster:
    return parse_cluster(f"{gpus}x {_DEVICES.get(device, device)}" if gpus > 1 else _DEVICES.get(device, device) or "h100-sxm")
