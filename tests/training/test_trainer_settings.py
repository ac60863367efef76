"""Files for axolotl, LLaMA-Factory and torchtitan against the settings of their releases, and read by their parsers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.training.trainer_files import (
    AXOLOTL_SETTINGS,
    FACTORY_SETTINGS,
    LAUNCH,
    SCRIPT,
    TITAN_MODELS,
    write_trainer,
)
from llm_perf_opt.training.training_run import TrainingMethod, read_plan, state_bytes
from tests.training.shapes import run

AXOLOTL, FACTORY, TITAN = "axolotl", "llamafactory", "torchtitan"
RELEASES = json.loads((Path(__file__).parents[1] / "facts" / "training" / "trainer_settings.json").read_text("utf-8"))
KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}
QLORA = TrainingMethod(kind="qlora", rank=8)
OFFLOADED = {"method": QLORA, "recompute": "full", "offloads": True}
# What is asked for: trainer, model, GPUs, plan, states, whether it has an encoder, and the rest of the run.
RUNS: Mapping[str, tuple[str, str, str, str, str, bool, dict[str, Any]]] = {
    "adapters": (AXOLOTL, "Qwen/Qwen3-0.6B", "2x rtx-4090", "fsdp2", "mixed", False, OFFLOADED),
    "experts": (AXOLOTL, "Qwen/Qwen3-30B-A3B", "2x8 h100-sxm", "fsdp8,ep4", "bf16", False, {"loss": "fused"}),
    "context": (AXOLOTL, "Qwen/Qwen3-8B", "8x h100-sxm", "cp2,fsdp4", "bf16", False, {"loss": "chunked"}),
    "images": (AXOLOTL, "Qwen/Qwen2.5-VL-7B-Instruct", "8x h100-sxm", "ddp", "bf16", True, {"compiled": True}),
    "factory adapters": (FACTORY, "Qwen/Qwen3-0.6B", "2x rtx-4090", "fsdp2", "mixed", False, OFFLOADED),
    "factory images": (FACTORY, "Qwen/Qwen2.5-VL-7B-Instruct", "2x8 h100-sxm", "fsdp16", "bf16", True, {}),
    "titan experts": (TITAN, "Qwen/Qwen3-30B-A3B", "8x8 h100-sxm", "fsdp32,ep8", "mixed", False, {"loss": "chunked"}),
    "titan pipeline": (TITAN, "meta-llama/Llama-3.1-70B", "8x8 h100-sxm", "tp4,pp4,vp2,cp2", "bf16", False, {}),
}
PARSED: Mapping[str, dict[str, Any]] = {  # a setting of each run as the library's own parser must give it
    "adapters": {"lora_r": 8, "load_in_4bit": True, "dp_shard_size": 2, "gradient_accumulation_steps": 4},
    "experts": {"expert_parallel_size": 4, "dp_shard_size": 2, "dp_replicate_size": 2, "sequence_len": 512},
    "context": {"context_parallel_size": 2, "dp_shard_size": 4, "chunked_cross_entropy": True},
    "images": {"freeze_mm_modules": True, "torch_compile": True, "micro_batch_size": 2},
    "factory adapters": {"lora_rank": 8, "quantization_bit": 4, "gradient_accumulation_steps": 4, "pure_bf16": False},
    "factory images": {"freeze_vision_tower": True, "cutoff_len": 512, "finetuning_type": "full", "pure_bf16": True},
    "titan experts": {
        "training.global_batch_size": 512,
        "training.dtype": "float32",
        "parallelism.data_parallel_replicate_degree": 2,
        "parallelism.expert_parallel_degree": 8,
        "loss.num_chunks": 8,
    },
    "titan pipeline": {
        "training.local_batch_size": 256,
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
        "parallelism.tensor_parallel_degree": 4,
        "parallelism.context_parallel_degree": 2,
        "parallelism.data_parallel_replicate_degree": 2,
        "training.disable_cuda_graphs": True,
    },
}
# Each runs in a process of its own, with the folder, and prints what its library's parser made of the files.
READERS = {
    AXOLOTL: """
import json, sys, types, yaml
sys.modules["ring_flash_attn"] = types.ModuleType("ring_flash_attn")  # cannot be imported without a GPU
from axolotl.utils.config import prepare_plugins, validate_config
from axolotl.utils.dict import DictDefault
written = DictDefault(yaml.safe_load(open(sys.argv[1] + "/with-data.yaml")))
prepare_plugins(written)
card = {"bf16": True, "n_gpu": 8, "compute_capability": "sm_90"}
read = validate_config(written, capabilities=card, env_capabilities={"torch_version": "2.11.0"})
assert set(written) <= set(read), set(written) - set(read)
print("read back", json.dumps({name: value for name, value in read.items() if isinstance(value, (int, str))}))
""",
    FACTORY: """
import json, sys
from omegaconf import OmegaConf
from transformers import HfArgumentParser
from llamafactory.hparams.parser import _TRAIN_ARGS
written = OmegaConf.to_container(OmegaConf.load(sys.argv[1] + "/llamafactory.yaml"))
read = HfArgumentParser(_TRAIN_ARGS).parse_dict(written | {"dataset": "any", "use_cpu": True, "bf16": False})
names = {name: value for each in read for name, value in vars(each).items()}
print("read back", json.dumps({name: names[name] for name in written if isinstance(names[name], (int, str))}))
""",
    TITAN: """
import dataclasses, json, sys
from torchtitan.config import ConfigManager
read = ConfigManager().parse_args(open(sys.argv[1] + "/words").read().splitlines())
parts = {part: dataclasses.asdict(getattr(read, part)) for part in ("training", "parallelism", "compile", "loss")}
values = {f"{part}.{name}": value for part, settings in parts.items() for name, value in settings.items()}
print("read back", json.dumps({name: value for name, value in values.items() if isinstance(value, (int, str))}))
""",
}


def written(folder: Path, name: str, **changed: object) -> dict[str, object]:
    """The settings in the files of a run."""
    trainer, model, gpus, plan, states, has_tower, rest = RUNS[name]
    cluster = parse_cluster(gpus)
    settings = {"cluster": cluster, "sequence": 512, "micro_batch": 2, "sequences": 8 * cluster.count}
    settings |= {"states": state_bytes("adamw", states), **rest, **changed}
    plan_read = read_plan(str(settings.pop("plan", plan)), cluster.count)
    write_trainer(folder, trainer, model, run(plan_read, **settings), has_tower=has_tower)
    if trainer == TITAN:
        return words_of(started(folder, "torchrun"))
    return dict(yaml.safe_load((folder / {AXOLOTL: AXOLOTL_SETTINGS, FACTORY: FACTORY_SETTINGS}[trainer]).read_text()))


def started(folder: Path, program: str) -> list[str]:
    """The words that the script starts a program with, from a stand-in that writes them down."""
    (stand_in := folder / "bin" / program).parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    names = os.environ | {"PATH": f"{stand_in.parent}:/usr/bin:/bin", "MASTER_ADDR": "first", "NODE_RANK": "1"}
    command = ["sh", str(folder / SCRIPT), "my data", "--seed=7"]
    return subprocess.run(command, capture_output=True, text=True, env=names, check=True).stdout.splitlines()


def words_of(words: list[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if match := re.fullmatch(r"--(\w+)\.(no-)?(\w+)", word):
            is_switch = after.startswith("--") or ":" in after
            settings[f"{match[1]}.{match[3]}"] = match[2] is None if is_switch else yaml.safe_load(after)
    return settings


def flat(settings: dict[str, object]) -> dict[str, object]:
    rows: dict[str, object] = {}
    for name, value in settings.items():
        rows |= {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
    return rows


@pytest.mark.parametrize("name", RUNS)
def test_every_setting_is_one_of_the_release(tmp_path: Path, name: str) -> None:
    settings = flat(written(tmp_path, name))
    known = RELEASES[RUNS[name][0]]["settings"]
    wrong = {
        setting: value
        for setting, value in settings.items()
        if KINDS[type(value)] not in known[setting] and value not in known[setting]
    }
    assert wrong == {}
    assert PARSED[name].items() <= settings.items()


def test_models_have_the_configurations_of_the_release() -> None:
    configurations = RELEASES[TITAN]["configurations"]
    assert all(name in configurations[module] for module, name in TITAN_MODELS.values())


@pytest.mark.parametrize(("name", "kind"), [("none", "none"), ("selective", "selective"), ("full", "full")])
def test_torchtitan_recomputes_as_it_was_told(tmp_path: Path, name: str, kind: str) -> None:
    written(tmp_path, "titan experts", recompute=name)
    assert (tmp_path / SCRIPT).read_text().rstrip().endswith(f"activation-checkpoint:{kind}")
    assert kind in RELEASES[TITAN]["activation_checkpoint"]


def test_scripts_hand_over_the_data_and_more_options(tmp_path: Path) -> None:
    written(tmp_path / "axolotl", "experts")
    words = started(tmp_path / "axolotl", "axolotl")
    assert words[:3] == ["train", "with-data.yaml", "--seed=7"]
    assert words[-4:] == ["--rdzv_backend", "c10d", "--rdzv_endpoint", "first:29500"]
    data = yaml.safe_load((tmp_path / "axolotl" / "with-data.yaml").read_text())["datasets"]
    assert data == [{"path": "my data", "type": "chat_template"}]
    written(tmp_path / "factory", "factory images")
    words = started(tmp_path / "factory", "accelerate")
    assert words[-4:] == ["llamafactory.launcher", FACTORY_SETTINGS, "dataset=my data", "--seed=7"]
    assert words[1:5] == ["--config_file", LAUNCH, "--machine_rank", "1"]


@pytest.mark.parametrize(
    ("name", "changed", "what"),
    [
        ("experts", {"plan": "tp2,fsdp8"}, "tp2"),
        ("experts", {"plan": "zero1"}, "zero1"),
        ("experts", {"plan": "ep4,ddp"}, "ep4 outside"),
        ("experts", {"recompute": "selective"}, "--recompute selective"),
        ("experts", {"states": state_bytes("adamw", "mixed")}, "--states mixed"),
        ("experts", {"states": state_bytes("adamw", "master")}, "--states master"),
        ("experts", {"precision": "mxfp8"}, "--precision mxfp8"),
        ("factory adapters", {"plan": "cp2,fsdp1"}, "cp2"),
        ("factory images", {"plan": "fsdp8"}, "groups of 8 GPUs"),
        ("factory adapters", {"loss": "chunked"}, "--loss chunked"),
        ("factory adapters", {"optimizer": "sgd-momentum"}, "--optimizer sgd-momentum"),
        ("titan experts", {"method": QLORA}, "--method qlora"),
        ("titan experts", {"optimizer": "lion"}, "--optimizer lion"),
        ("titan experts", {"loss": "fused"}, "--loss fused"),
        ("titan pipeline", {"plan": "pp4,vp4,ddp"}, "vp4"),
        ("titan pipeline", {"plan": "pp4,zero1"}, "zero1"),
    ],
)
def test_what_a_trainer_has_no_setting_for_is_refused(
    tmp_path: Path, name: str, changed: dict[str, object], what: str
) -> None:
    with pytest.raises(UsageError) as refused:
        written(tmp_path, name, **changed)
    assert what in refused.value.what
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_known_is_named_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not written") as refused:
        write_trainer(tmp_path, "nemo", "tiny", run())
    assert "axolotl" in str(refused.value.why)
    with pytest.raises(UsageError, match="no configuration of mine"):
        write_trainer(tmp_path, TITAN, "mine", run())
    with pytest.raises(UsageError, match="freezes the encoder"):
        write_trainer(tmp_path, "trl", "tiny", run(), has_tower=True)


@pytest.mark.parametrize("name", RUNS)
def test_the_librarys_own_parser_reads_the_files_back(tmp_path: Path, name: str) -> None:
    trainer = RUNS[name][0]
    if importlib.util.find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed: its recorded settings are compared instead")
    written(tmp_path, name)
    if trainer == AXOLOTL:
        started(tmp_path, "axolotl")
    if trainer == TITAN:
        (tmp_path / "words").write_text(titan_words(tmp_path))
    names = os.environ | {"DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    command = [sys.executable, "-c", READERS[trainer], str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=names, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("read back ")), "")
    assert line, done.stderr[-2000:]
    assert PARSED[name].items() <= json.loads(line.removeprefix("read back ")).items()


def titan_words(folder: Path) -> str:
    """The options behind the name of the program, without the one that is not torchtitan's."""
    words = started(folder, "torchrun")
    return "\n".join(word for word in words[words.index("torchtitan.train") + 1 :] if word != "--seed=7")
