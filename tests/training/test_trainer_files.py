from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.training.trainer_files import LAUNCH, SCRIPT, SETTINGS, write_trainer
from llm_perf_opt.training.training_run import Shard, TrainingMethod, TrainingPlan
from tests.training.shapes import run

FSDP = TrainingPlan(gpus=2, shard=Shard.WEIGHTS, degree=2)
# Runs in a process of its own: TRL and accelerate set up logging and devices when they are imported.
READ_BACK = """
import sys
from accelerate.commands.config.config_args import load_config_from_file
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

folder = sys.argv[1]
launch = load_config_from_file(folder + "/accelerate.yaml")
assert (launch.distributed_type.value, launch.num_processes) == ("FSDP", 2), launch
assert launch.fsdp_config["fsdp_offload_params"] is True
words = ["--config", folder + "/sft.yaml", "--dataset_name", "any", "--bf16", "False", "--use_cpu", "True"]
_, sft, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(
    args=words, fail_with_unknown_args=True
)
assert (sft.max_length, sft.per_device_train_batch_size, sft.gradient_accumulation_steps) == (512, 2, 4), sft
assert (model.lora_r, model.load_in_4bit, model.use_peft) == (8, True, True), model
print("read back")
"""


def write(folder: Path, **changed: object) -> tuple[Path, ...]:
    settings = {
        "method": TrainingMethod(kind="qlora", rank=8),
        "cluster": parse_cluster("2x rtx-4090"),
        "sequence": 512,
        "micro_batch": 2,
        "sequences": 16,
        "recompute": "full",
        "offloads": True,
    }
    plan = changed.pop("plan", FSDP)
    assert isinstance(plan, TrainingPlan)
    return write_trainer(folder, "trl", "Qwen/Qwen3-0.6B", run(plan, **(settings | changed)))


def test_the_files_say_what_the_run_says(tmp_path: Path) -> None:
    assert [path.name for path in write(tmp_path / "run")] == [SCRIPT, LAUNCH, SETTINGS]
    settings = (tmp_path / "run" / SETTINGS).read_text("utf-8").splitlines()
    assert {"lora_r: 8", "load_in_4bit: true", "gradient_checkpointing: true", "max_length: 512"} <= set(settings)
    assert "  fsdp_offload_params: true" in (tmp_path / "run" / LAUNCH).read_text("utf-8")


def test_files_are_never_overwritten_without_being_told(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(PerfOptError, match="overwrite"):
        write(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"plan": TrainingPlan(gpus=2, tp=2)},
        {"plan": TrainingPlan(gpus=2, shard=Shard.STATES, degree=2)},
        {"recompute": "selective"},
        {"precision": "fp8"},
        {"optimizer": "sgd-momentum"},
    ],
)
def test_what_trl_has_no_setting_for_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="TRL"):
        write(tmp_path, **changed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("trl", "accelerate", "peft")),
    reason="TRL, accelerate and peft are not installed: nothing else can say whether they read the files",
)
def test_trls_own_parser_reads_the_files_back(tmp_path: Path) -> None:
    write(tmp_path)
    done = subprocess.run([sys.executable, "-c", READ_BACK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "read back" in done.stdout, done.stderr[-2000:]
