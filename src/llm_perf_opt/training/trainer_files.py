"""A training run as the files that start it in TRL: a launch script, accelerate's configuration and TRL's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import make_folder, require_free, write_together
from llm_perf_opt.training.training_run import QLORA, Shard, TrainingRun

TRL = "trl"
SCRIPT, LAUNCH, SETTINGS = "train.sh", "accelerate.yaml", "sft.yaml"
Value = str | int | float | bool


def write_trainer(folder: Path, trainer: str, model: str, run: TrainingRun, *, force: bool = False) -> tuple[Path, ...]:
    """Write the files of a run; a plan that the trainer does not have is refused."""
    if trainer != TRL:
        raise UsageError(
            f"Files for {trainer[:60]!r} are not written here.", why="only TRL's are", fix="write --trainer trl"
        )
    _refuse(run)
    texts = {SCRIPT: _script(), LAUNCH: _yaml(launch_settings(run)), SETTINGS: _yaml(trainer_settings(model, run))}
    files = {folder / name: text for name, text in texts.items()}
    require_free(files, force=force)
    make_folder(folder)
    write_together({path: [text.encode()] for path, text in files.items()})
    return tuple(files)


def _refuse(run: TrainingRun) -> None:
    plan = run.plan
    if plan.tp * plan.pp * plan.cp * plan.ep > 1 or plan.shard in (Shard.STATES, Shard.GRADIENTS):
        raise UsageError(
            f"TRL has no settings for the plan {plan}.",
            why="accelerate's launcher is written here for data parallel plans: ddp and fsdp",
            fix=f"add --plan fsdp{plan.gpus}, or --plan ddp",
        )
    if run.recompute == "selective" or run.precision != "bf16":
        what = "--recompute selective" if run.recompute == "selective" else f"--precision {run.precision}"
        raise UsageError(
            f"TRL has no setting for {what}.",
            why="its trainer recomputes whole layers and multiplies in bf16",
            fix="add --recompute full --precision bf16",
        )
    if run.optimizer not in _OPTIMIZERS:
        raise UsageError(
            f"TRL has no name for the optimizer {run.optimizer}.",
            why=f"it has names for {', '.join(_OPTIMIZERS)}",
            fix="choose one of them with --optimizer",
        )


def launch_settings(run: TrainingRun) -> dict[str, Value | dict[str, Value]]:
    """What `accelerate launch` reads."""
    cluster, is_sharded = run.cluster, run.plan.shard is Shard.WEIGHTS and run.plan.gpus > 1
    kind = "FSDP" if is_sharded else "MULTI_GPU" if run.plan.gpus > 1 else "NO"
    settings: dict[str, Value | dict[str, Value]] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": "bf16",
        "num_machines": cluster.nodes,
        "num_processes": run.plan.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if is_sharded:
        settings["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": run.is_resharded,
            "fsdp_offload_params": run.offloads,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_activation_checkpointing": False,  # the trainer's own is on
        }
    return settings


_OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}


def trainer_settings(model: str, run: TrainingRun) -> dict[str, Value]:
    """What `trl sft --config` reads, but for the data, which the script names."""
    settings: dict[str, Value] = {
        "model_name_or_path": model,
        "dtype": "float32" if run.states.weights > 2 and not run.method.has_adapters else "bfloat16",
        "max_length": run.sequence,
        "packing": True,
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
        "gradient_checkpointing": run.recompute == "full",
        "bf16": True,
        "optim": _OPTIMIZERS[run.optimizer],
        "use_liger_kernel": run.loss == "fused",
        "torch_compile": run.compiled,
        "output_dir": "output",
    }
    if run.method.has_adapters:
        settings |= {"use_peft": True, "lora_r": run.method.rank, "lora_target_modules": "all-linear"}
    if run.method.kind == QLORA:
        settings |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    return settings


def _yaml(settings: Mapping[str, Value | dict[str, Value]]) -> str:
    lines = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {inner}: {json.dumps(each)}" for inner, each in value.items())]
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _script() -> str:
    return (
        "#!/bin/sh\n"
        "# Usage: sh train.sh DATASET [more options of trl sft]\n"
        "set -eu\n"
        'cd "$(dirname "$0")"\n'
        'dataset="$1"; shift\n'
        f'exec trl sft --config {SETTINGS} --accelerate_config {LAUNCH} --dataset_name "$dataset" "$@"\n'
    )
