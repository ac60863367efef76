"""A training run as the files that start it in a trainer: a launch script and the settings that trainer reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import make_folder, require_free, write_together
from llm_perf_opt.training.training_run import METHODS, QLORA, Shard, TrainingRun

SCRIPT, LAUNCH, SETTINGS = "train.sh", "accelerate.yaml", "sft.yaml"
AXOLOTL_SETTINGS, FACTORY_SETTINGS = "axolotl.yaml", "llamafactory.yaml"
Value = str | int | float | bool | list[str]
Settings = dict[str, Value | dict[str, Value]]
# The names that transformers' trainer has, and with it TRL, axolotl and LLaMA-Factory.
_OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}
_LOSS_CHUNKS = 8  # of `--loss chunked`


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a trainer has settings for, in the words of the options, and the texts of its files.

    `axes` are parts of plans beyond ddp and fsdp. `has_groups`: copies of a model that is itself sharded.
    `keeps_towers`: an encoder of images or sound can be frozen.
    """

    name: str
    texts: Callable[[str, TrainingRun, bool], dict[str, str]]
    methods: Sequence[str] = METHODS
    states: Sequence[str] = ("mixed", "bf16")
    adapter_states: Sequence[str] = ("mixed", "bf16")
    recompute: Sequence[str] = ("none", "full")
    losses: Sequence[str] = ("whole", "fused")
    optimizers: Sequence[str] = tuple(_OPTIMIZERS)
    axes: Sequence[str] = ()
    has_groups: bool = False
    keeps_towers: bool = True

    def require_settings(self, run: TrainingRun, *, has_tower: bool) -> None:
        """Refuse what the trainer would run in another way."""
        choices = {
            "--method": (run.method.kind, self.methods),
            "--states": (run.states.kind, self.adapter_states if run.method.has_adapters else self.states),
            "--recompute": (run.recompute, self.recompute),
            "--precision": (run.precision, ("bf16",)),
            "--loss": (run.loss, self.losses),
            "--optimizer": (run.optimizer, self.optimizers),
        }
        for option, (value, known) in choices.items():
            if value not in known:
                raise UsageError(
                    f"{self.name} has no setting for {option} {value}.",
                    why=f"files for it are written with {option} {', '.join(known)}",
                    fix=f"choose one of these with {option}, or another --trainer",
                )
        if lacking := self._lacking(run):
            raise UsageError(
                f"{self.name} has no settings for {', '.join(lacking)}, of the plan {run.plan}.",
                why=f"files for it are written for {', '.join(('ddp', 'fsdp', *self.axes))}",
                fix=f"add --plan fsdp{run.plan.gpus}, or --plan ddp",
            )
        if has_tower and not run.trains_towers and not self.keeps_towers:
            raise UsageError(
                f"{self.name} has no setting that freezes the encoder of images or sound.",
                why="it would train the encoder too, with more memory than is shown",
                fix=f"add --trainer {FACTORY}, or --train-towers",
            )

    def _lacking(self, run: TrainingRun) -> list[str]:
        plan = run.plan
        sizes = {"tp": plan.tp, "pp": plan.pp, "vp": plan.chunks, "cp": plan.cp, "ep": plan.ep}
        words = {f"{name}{size}": name for name, size in sizes.items() if size > 1}
        lacking = [word for word, name in words.items() if not {word, name} & set(self.axes)]
        if plan.shard in (Shard.STATES, Shard.GRADIENTS):
            lacking.append(plan.shard.value)
        if _is_sharded(run) and plan.degree < plan.data_ranks and not self.has_groups:
            lacking.append(f"groups of {plan.degree} GPUs")
        if plan.ep > 1 and (plan.shard is not Shard.WEIGHTS or plan.degree % plan.ep) and not lacking:
            lacking.append(f"ep{plan.ep} outside the ranks of fsdp")
        return lacking


def write_trainer(
    folder: Path, trainer: str, model: str, run: TrainingRun, *, has_tower: bool = False, force: bool = False
) -> tuple[Path, ...]:
    """Write the files of a run; what the trainer has no setting for is refused."""
    if trainer not in TRAINERS:
        raise UsageError(
            f"Files for {trainer[:60]!r} are not written here.",
            why=f"known trainers are {', '.join(TRAINERS)}",
            fix="name one of them with --trainer",
        )
    TRAINERS[trainer].require_settings(run, has_tower=has_tower)
    texts = TRAINERS[trainer].texts(model, run, has_tower)
    files = {folder / name: text for name, text in texts.items()}
    require_free(files, force=force)
    make_folder(folder)
    write_together({path: [text.encode()] for path, text in files.items()})
    return tuple(files)


def _is_sharded(run: TrainingRun) -> bool:
    return run.plan.shard is Shard.WEIGHTS and run.plan.gpus > 1


def launch_settings(run: TrainingRun) -> Settings:
    """What `accelerate launch` reads."""
    kind = "FSDP" if _is_sharded(run) else "MULTI_GPU" if run.plan.gpus > 1 else "NO"
    settings: Settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": "bf16",
        "num_machines": run.cluster.nodes,
        "num_processes": run.plan.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if _is_sharded(run):
        own = {"fsdp_version": 2, "fsdp_activation_checkpointing": False}  # the trainer's own checkpointing is on
        settings["fsdp_config"] = own | {f"fsdp_{name}": value for name, value in _sharding(run).items()}
    return settings


def _sharding(run: TrainingRun) -> dict[str, Value]:
    return {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": run.is_resharded,
        "offload_params": run.offloads,
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": run.method.kind != QLORA,  # 4-bit weights cannot be scattered from one rank
    }


def trainer_settings(model: str, run: TrainingRun) -> Settings:
    """What `trl sft --config` reads, but for the data, which the script names."""
    settings: Settings = {
        "model_name_or_path": model,
        "dtype": "float32" if run.states.weights > 2 and not run.method.has_adapters else "bfloat16",
        "max_length": run.sequence,
        "packing": True,
        **_transformers_settings(run),
        "gradient_checkpointing": run.recompute == "full",
        "use_liger_kernel": run.loss == "fused",
    }
    if run.method.has_adapters:
        settings |= {"use_peft": True, "lora_r": run.method.rank, "lora_target_modules": "all-linear"}
    if run.method.kind == QLORA:
        settings |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    return settings


def _transformers_settings(run: TrainingRun) -> Settings:
    """Of the trainer of transformers, which TRL and LLaMA-Factory build on."""
    return {
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
        "bf16": True,
        "optim": _OPTIMIZERS[run.optimizer],
        "torch_compile": run.compiled,
        "output_dir": "output",
    }


def _trl_texts(model: str, run: TrainingRun, has_tower: bool) -> dict[str, str]:
    nodes = "" if run.cluster.nodes == 1 else f" {_ACCELERATE_NODES}"
    command = f'trl sft --config {SETTINGS} --accelerate_config {LAUNCH}{nodes} --dataset_name "$dataset" "$@"'
    return {
        SCRIPT: _script(run, command, "trl sft"),
        LAUNCH: _yaml(launch_settings(run)),
        SETTINGS: _yaml(trainer_settings(model, run)),
    }


def factory_settings(model: str, run: TrainingRun, *, has_tower: bool) -> Settings:
    """What LLaMA-Factory reads, but for the data, which the script names."""
    settings: Settings = {
        "model_name_or_path": model,
        "stage": "sft",
        "do_train": True,
        "cutoff_len": run.sequence,
        "packing": not has_tower,
        **_transformers_settings(run),
        "pure_bf16": run.states.kind == "bf16",
        "disable_gradient_checkpointing": run.recompute == "none",
        "enable_liger_kernel": run.loss == "fused",
        "finetuning_type": "lora" if run.method.has_adapters else "full",
    }
    if run.method.has_adapters:
        settings |= {"lora_rank": run.method.rank, "lora_target": "all"}
    if run.method.kind == QLORA:
        settings |= {"quantization_bit": 4, "quantization_method": "bnb", "quantization_type": "nf4"}
        settings |= {"double_quantization": True}
    if has_tower:
        frozen = not run.trains_towers
        settings |= {"freeze_vision_tower": frozen, "freeze_multi_modal_projector": frozen}
    return settings


def _factory_texts(model: str, run: TrainingRun, has_tower: bool) -> dict[str, str]:
    nodes = "" if run.cluster.nodes == 1 else f"{_ACCELERATE_NODES} "
    started = f'-m llamafactory.launcher {FACTORY_SETTINGS} dataset="$dataset" "$@"'
    return {
        SCRIPT: _script(run, f"accelerate launch --config_file {LAUNCH} {nodes}{started}", "llamafactory-cli train"),
        LAUNCH: _yaml(launch_settings(run)),
        FACTORY_SETTINGS: _yaml(factory_settings(model, run, has_tower=has_tower)),
    }


def axolotl_settings(model: str, run: TrainingRun, *, has_tower: bool) -> Settings:
    """What `axolotl train` reads, but for the data, which the script adds."""
    plan = run.plan
    settings: Settings = {
        "base_model": model,
        "sequence_len": run.sequence,
        "sample_packing": not has_tower and (plan.cp == 1 or run.micro_batch == 1),  # ring attention packs one row
        "attn_implementation": "flash_attention_2",
        "micro_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
        "gradient_checkpointing": run.recompute == "full",
        "bf16": True,
        "optimizer": _OPTIMIZERS[run.optimizer],
        "learning_rate": 0.0001,
        "torch_compile": run.compiled,
        "output_dir": "output",
    }
    if run.method.has_adapters:
        settings |= {"adapter": run.method.kind, "lora_r": run.method.rank, "lora_target_linear": True}
        settings |= {"lora_alpha": 2 * run.method.rank, "peft_autocast_adapter_dtype": run.states.kind == "mixed"}
    if run.method.kind == QLORA:
        settings |= {"load_in_4bit": True}
    if has_tower:
        settings |= {"freeze_mm_modules": not run.trains_towers}
    if run.loss == "chunked":
        settings |= {"chunked_cross_entropy": True, "chunked_cross_entropy_num_chunks": _LOSS_CHUNKS}
    plugins = ["axolotl.integrations.liger.LigerPlugin"] if run.loss == "fused" else []
    if plugins:
        settings |= {"liger_fused_linear_cross_entropy": True}
    if _is_sharded(run):
        settings |= {"fsdp_version": 2, "fsdp_config": _sharding(run), "dp_shard_size": plan.degree // plan.ep}
        settings |= {"dp_replicate_size": plan.data_ranks // plan.degree}
    if plan.cp > 1:
        settings |= {"context_parallel_size": plan.cp}
    if plan.ep > 1:
        plugins.append("axolotl.integrations.expert_parallel.ExpertParallelPlugin")
        settings |= {"expert_parallel_size": plan.ep}
    return settings | ({"plugins": plugins} if plugins else {})


def _axolotl_texts(model: str, run: TrainingRun, has_tower: bool) -> dict[str, str]:
    data = r"""printf 'datasets:\n  - path: "%s"\n    type: chat_template\n' "$dataset" """.strip()
    joined = f"{{ cat {AXOLOTL_SETTINGS}; {data}; }} > with-data.yaml"
    command = f'axolotl train with-data.yaml "$@" --launcher torchrun -- {_torchrun_words(run)}'
    return {
        SCRIPT: _script(run, command, "axolotl train", before=joined),
        AXOLOTL_SETTINGS: _yaml(axolotl_settings(model, run, has_tower=has_tower)),
    }


# The configurations of models that torchtitan 0.3.0 has for pre-training on text.
TITAN_MODELS = {
    "Llama-3.1-8B": ("llama3", "llama3_8b"),
    "Llama-3.1-70B": ("llama3", "llama3_70b"),
    "Llama-3.1-405B": ("llama3", "llama3_405b"),
    "Qwen3-0.6B": ("qwen3", "qwen3_0_6b"),
    "Qwen3-1.7B": ("qwen3", "qwen3_1_7b"),
    "Qwen3-14B": ("qwen3", "qwen3_14b"),
    "Qwen3-32B": ("qwen3", "qwen3_32b"),
    "Qwen3-30B-A3B": ("qwen3", "qwen3_30b_a3b"),
    "DeepSeek-V3": ("deepseek_v3", "deepseek_v3_671b"),
    "DeepSeek-R1": ("deepseek_v3", "deepseek_v3_671b"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
}


def titan_settings(run: TrainingRun) -> Settings:
    """The options of `torchtitan.train` by section; one step's batch of a rank goes through a pipeline at once."""
    plan = run.plan
    shards = plan.degree if _is_sharded(run) else 1
    return {
        "training": {
            "local_batch_size": run.micro_batch * (run.micro_batches if plan.pp > 1 else 1),
            "global_batch_size": run.micro_batch * run.micro_batches * plan.data_ranks,
            "seq_len": run.sequence,
            "dtype": "bfloat16" if run.states.kind == "bf16" else "float32",
            "enable_cpu_offload": run.offloads,
            "disable_cuda_graphs": plan.pp * plan.ep > 1,
        },
        "parallelism": {
            "data_parallel_replicate_degree": plan.data_ranks // shards,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if run.is_resharded else "never",
            "tensor_parallel_degree": plan.tp,
            "pipeline_parallel_degree": plan.pp,
            "pipeline_parallel_schedule": "Interleaved1F1B" if plan.chunks > 1 else "1F1B",
            "pipeline_parallel_microbatch_size": run.micro_batch,
            "context_parallel_degree": plan.cp,
            "expert_parallel_degree": plan.ep,
        },
        "compile": {"enable": run.compiled},
        "loss": {"num_chunks": _LOSS_CHUNKS if run.loss == "chunked" else 1},
    }


def _titan_texts(model: str, run: TrainingRun, has_tower: bool) -> dict[str, str]:
    names = TITAN_MODELS.get(re.sub("-(Base|Instruct)$", "", model.rpartition("/")[2].removeprefix("Meta-")))
    if names is None:
        raise UsageError(
            f"torchtitan has no configuration of {model}.",
            why=f"it has one of {', '.join(TITAN_MODELS)}",
            fix="name one of these models, or another --trainer",
        )
    words = [f"--module {names[0]} --config {names[1]}", '--dataloader.dataset "$dataset" "$@"']
    for section, settings in titan_settings(run).items():
        assert isinstance(settings, dict)
        for name, value in settings.items():
            is_switch = isinstance(value, bool)
            words.append(
                f"--{section}.{'' if value or not is_switch else 'no-'}{name}{'' if is_switch else f' {value}'}"
            )
    words.append(f"activation-checkpoint:{run.recompute}")
    command = " \\\n  ".join([f"torchrun {_torchrun_words(run)} -m torchtitan.train", *words])
    return {SCRIPT: _script(run, command, "torchtitan.train")}


def _yaml(settings: Settings) -> str:
    lines = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {inner}: {json.dumps(each)}" for inner, each in value.items())]
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


_ACCELERATE_NODES = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500'


def _torchrun_words(run: TrainingRun) -> str:
    nodes = run.cluster.nodes
    words = f"--nnodes {nodes} --nproc_per_node {run.cluster.per_node}"
    meeting = ' --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:29500"'
    return words + (meeting if nodes > 1 else " --standalone")


def _script(run: TrainingRun, command: str, program: str, before: str = "") -> str:
    nodes = run.cluster.nodes
    where = f"# Start it on each of the {nodes} nodes, with MASTER_ADDR and NODE_RANK set.\n" if nodes > 1 else ""
    return (
        "#!/bin/sh\n"
        f"# Usage: sh train.sh DATASET [more options of {program}]\n"
        f"{where}"
        "set -eu\n"
        'cd "$(dirname "$0")"\n'
        'dataset="$1"; shift\n'
        f"{before + chr(10) if before else ''}"
        f"exec {command}\n"
    )


FACTORY = "llamafactory"
TRAINERS: Mapping[str, Trainer] = {
    "trl": Trainer(name="TRL", texts=_trl_texts, adapter_states=("mixed",), keeps_towers=False),
    "axolotl": Trainer(
        name="axolotl",
        texts=_axolotl_texts,
        states=("bf16",),
        losses=("whole", "chunked", "fused"),
        axes=("cp", "ep"),
        has_groups=True,
    ),
    FACTORY: Trainer(name="LLaMA-Factory", texts=_factory_texts),
    "torchtitan": Trainer(
        name="torchtitan",
        texts=_titan_texts,
        methods=("full",),
        recompute=("none", "selective", "full"),
        losses=("whole", "chunked"),
        optimizers=("adamw",),
        axes=("tp", "pp", "vp2", "cp", "ep"),
        has_groups=True,
        keeps_towers=False,
    ),
}
