"""The command that starts an engine as it was assumed: every limit, size and format in the flags of vLLM and others.

Words of a command are a tuple, so that no name of a model can become a second word. Who writes them into a file quotes
them for that file. A name that an engine would take for a flag is refused.

**Data-parallel attention.** The limits in `EngineSettings` belong to one of the `attention_dp` groups. vLLM takes
the limits of one group too. SGLang takes the limits of all groups together and divides them, and its `--tp-size` counts
the ranks of all groups. In TensorRT-LLM every rank is a group, with limits of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import MAX_RANKS
from llm_perf_opt.core.tensor_formats import stored_dtype
from llm_perf_opt.serving.engine_process.environment import checked_versions
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.engines import DEFAULT_SERVING_ENGINE, ServingEngine

EngineName = Literal["vllm", "sglang", "trtllm"]
SGLANG_VERSION = "0.5.18"
TRTLLM_VERSION = "1.3.0rc11"
FLAG_SOURCES = {
    "vllm": "checked with vLLM's own argument parser",
    "sglang": f"SGLang {SGLANG_VERSION}: docs/advanced_features/server_arguments and python/sglang/srt/server_args.py",
    "trtllm": f"TensorRT-LLM {TRTLLM_VERSION}: commands/trtllm-serve and examples/deepseek_r1_reasoning_parser",
}
TRTLLM_FILE = "trtllm.yaml"  # what trtllm-serve takes from a file alone
FOLDER_IN_CONTAINER = "/model"
_SIXTEEN_BITS = ("bfloat16", "float16")
# What an engine makes of a 16-bit checkpoint while it loads it, by the stored format that it then has.
_QUANTISED_ON_LOADING: dict[str, dict[str, str]] = {
    "vllm": {
        "fp8": "fp8",
        "fp8-channel": "fp8_per_channel",
        "fp8-block128": "fp8_per_block",
        "mxfp8": "mxfp8",
        "mxfp4": "mxfp4",
    },
    "sglang": {"fp8": "fp8"},
    "trtllm": {},
}
_CACHE_TYPES: dict[str, dict[str, str]] = {  # from the words of vLLM, which the settings have
    "sglang": {"auto": "auto", "bfloat16": "bf16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"},
    "trtllm": {"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDeployment:
    """Equal replicas of one engine, each on GPUs of its own, and how clients reach them.

    `weights` is a stored format that was assumed and that the checkpoint does not have. `weight_bytes` belong to one
    rank: without them the share of memory is left to SGLang and TensorRT-LLM, which count it in another way than vLLM.
    """

    settings: EngineSettings
    model: str  # a name on the Hugging Face hub, or a folder
    device: Device
    is_folder: bool = False
    replicas: int = 1
    engine: EngineName = "vllm"
    weights: str | None = None
    weight_bytes: int | None = None
    gpus_per_machine: int | None = None
    serving_engine: ServingEngine = DEFAULT_SERVING_ENGINE
    port: int = 8000

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0 < self.port < 65_536:
            raise ValueError(f"{self.replicas} replicas at port {self.port}")
        if self.settings.plan.dp not in (1, self.replicas):
            raise ValueError(f"a plan of {self.settings.plan.dp} replicas for {self.replicas}")
        if self.engine not in FLAG_SOURCES:
            raise UsageError(
                f"There is no command for an engine {self.engine!r}.",
                why=f"known are {', '.join(FLAG_SOURCES)}",
                fix="choose one of these",
            )
        _require_name(self.model)
        _require_plan(self)
        if self.replicas * self.gpus > MAX_RANKS:
            raise UsageError(
                f"{self.replicas * self.gpus:,} GPUs are too many for files of a deployment.",
                why=f"at most {MAX_RANKS:,} are taken",
                fix="lower the number of replicas",
            )
        _require_device(self)

    @property
    def source(self) -> str:
        """The model as an engine on this machine is given it: a folder by its whole path."""
        return str(Path(self.model).absolute()) if self.is_folder else self.model

    @property
    def gpus(self) -> int:
        """The GPUs of one replica."""
        return self.settings.plan.replica_ranks

    @property
    def version(self) -> str:
        """The version of the engine that takes these flags."""
        return {"vllm": checked_versions()[0].version, "sglang": SGLANG_VERSION, "trtllm": TRTLLM_VERSION}[self.engine]

    @property
    def image(self) -> str:
        """The container of that version."""
        vllm = "vllm/vllm-openai-rocm" if self.device.vendor == "AMD" else "vllm/vllm-openai"
        return {
            "vllm": f"{vllm}:v{self.version}",
            "sglang": f"lmsysorg/sglang:v{self.version}",
            "trtllm": f"nvcr.io/nvidia/tensorrt-llm/release:{self.version}",
        }[self.engine]

    @property
    def quantisation(self) -> str | None:
        """What the engine is told to make of the weights; None: nothing, or it cannot."""
        return _QUANTISED_ON_LOADING[self.engine].get(stored_dtype(self.weights)) if self.weights else None

    @property
    def dtype(self) -> str:
        """The type of the activations, and of weights that are not quantised."""
        stored = stored_dtype(self.weights) if self.weights else ""
        return stored if stored in _SIXTEEN_BITS else self.settings.dtype

    def notes(self) -> tuple[str, ...]:
        """What the files alone do not do."""
        notes = []
        if self.weights and self.quantisation is None and stored_dtype(self.weights) not in _SIXTEEN_BITS:
            notes.append(f"The plan assumes weights in {self.weights}: name a checkpoint that stores them so.")
        if self.gpus_per_machine is not None and self.gpus > self.gpus_per_machine:
            notes.append(
                f"A replica has {self.gpus} GPUs and a machine has {self.gpus_per_machine}: "
                "these files start a replica on one machine only."
            )
        if self.engine != "vllm" and _memory_share(self) is None:
            notes.append("The share of memory for weights and cache is left to the engine.")
        return tuple(notes)


def _require_name(model: str) -> None:
    try:
        model.encode()
        is_text = "\0" not in model
    except UnicodeEncodeError:  # bytes of a file name that are not UTF-8
        is_text = False
    if not is_text or not model.strip() or model.startswith("-"):
        raise UsageError(
            f"An engine cannot take the model name {model!r}.",
            why="the name is empty, is not text, or begins with a dash and would be read as a flag",
            fix="rename the folder, or write ./ before its name",
        )


def _require_plan(deployment: EngineDeployment) -> None:
    plan, engine = deployment.settings.plan, deployment.engine
    reason = None
    if plan.fsdp > 1:
        reason = "no engine shards the weights and gathers them to run (fsdp)"
    elif engine == "vllm" and 1 < plan.ep < plan.stage_ranks:
        reason = f"vLLM divides the experts among all {plan.stage_ranks} ranks of a stage, not among {plan.ep} of them"
    elif engine == "trtllm" and plan.attention_dp > 1 and plan.tp > 1:
        reason = "with data-parallel attention, every rank of TensorRT-LLM is a group: tp must be 1"
    elif engine != "vllm" and (deployment.settings.more or deployment.settings.cache_blocks):
        reason = "the settings have arguments of vLLM"
    elif engine != "vllm" and deployment.settings.cache_dtype not in _CACHE_TYPES[engine]:
        reason = f"a cache of {deployment.settings.cache_dtype} is known of vLLM alone"
    if reason:
        raise UsageError(
            f"There is no {engine} command for {plan.describe()}.", why=reason, fix="choose another plan or engine"
        )


def _require_device(deployment: EngineDeployment) -> None:
    vendor, engine = deployment.device.vendor, deployment.engine
    if vendor != "NVIDIA" and (vendor, engine) != ("AMD", "vllm"):
        raise UsageError(
            f"There are no files to run {engine} on {deployment.device.name}.",
            why="containers are known for GPUs of NVIDIA, and of AMD with vLLM",
            fix="choose another GPU, or vLLM",
        )


def engine_command(deployment: EngineDeployment, *, in_container: bool = False) -> tuple[str, ...]:
    """The words that start one replica. In a container a folder is `/model`, and the port is open to others."""
    is_mounted = in_container and deployment.is_folder
    taken = FOLDER_IN_CONTAINER if is_mounted else deployment.source
    start = {
        "vllm": ("vllm", "serve", taken),
        "sglang": ("python3", "-m", "sglang.launch_server", "--model-path", taken),
        "trtllm": ("trtllm-serve", taken),
    }[deployment.engine]
    flags = {"vllm": _vllm_flags, "sglang": _sglang_flags, "trtllm": _trtllm_flags}[deployment.engine]
    words = [*start, *flags(deployment), "--port", str(deployment.port)]
    if trtllm_options(deployment):
        words += ["--config", f"/{TRTLLM_FILE}" if in_container else TRTLLM_FILE]
    if in_container:
        words += ["--host", "0.0.0.0"]  # a port of the container alone until somebody publishes it
    if is_mounted and deployment.engine != "trtllm":
        words += ["--served-model-name", deployment.source]
    return tuple(words)


def _given(*pairs: tuple[str, object]) -> Iterator[str]:
    """Flags with a value; one without a value is on or off."""
    for flag, value in pairs:
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield from (flag, str(value))


def _vllm_flags(deployment: EngineDeployment) -> Iterator[str]:
    settings, plan = deployment.settings, deployment.settings.plan
    yield from _given(
        ("--tensor-parallel-size", plan.tp),
        ("--pipeline-parallel-size", plan.pp),
        ("--data-parallel-size", plan.attention_dp),
        ("--enable-expert-parallel", plan.ep > 1),
        ("--max-num-seqs", settings.max_sequences),
        ("--max-num-batched-tokens", settings.max_batched_tokens),
        ("--max-model-len", settings.max_model_tokens),
        ("--dtype", deployment.dtype),
        ("--quantization", deployment.quantisation),
        ("--kv-cache-dtype", settings.cache_dtype),
        ("--gpu-memory-utilization", deployment.serving_engine.utilisation),
        ("--num-gpu-blocks-override", settings.cache_blocks),
        ("--trust-remote-code", settings.trust_remote_code),
    )
    for name, value in settings.more.items():
        flag = name.replace("_", "-")
        if value is False:
            yield f"--no-{flag}"
        elif value is not None:
            yield from _given((f"--{flag}", value if isinstance(value, bool | str) else json.dumps(value)))


def _sglang_flags(deployment: EngineDeployment) -> Iterator[str]:
    settings, plan = deployment.settings, deployment.settings.plan
    groups = plan.attention_dp
    yield from _given(
        ("--tp-size", plan.tp * groups),
        ("--pp-size", plan.pp),
        ("--dp-size", groups if groups > 1 else None),
        ("--enable-dp-attention", groups > 1),
        ("--ep-size", plan.ep if plan.ep > 1 else None),
        ("--max-running-requests", _times(settings.max_sequences, groups)),
        ("--chunked-prefill-size", _times(settings.max_batched_tokens, groups)),
        ("--context-length", settings.max_model_tokens),
        ("--dtype", deployment.dtype),
        ("--quantization", deployment.quantisation),
        ("--kv-cache-dtype", _CACHE_TYPES["sglang"][settings.cache_dtype]),
        ("--mem-fraction-static", _memory_share(deployment)),
        ("--trust-remote-code", settings.trust_remote_code),
    )


def _trtllm_flags(deployment: EngineDeployment) -> Iterator[str]:
    settings, plan = deployment.settings, deployment.settings.plan
    yield from _given(
        ("--tp_size", plan.tp * plan.attention_dp),
        ("--pp_size", plan.pp),
        ("--ep_size", plan.ep if plan.ep > 1 else None),
        ("--max_batch_size", settings.max_sequences),
        ("--max_num_tokens", settings.max_batched_tokens),
        ("--max_seq_len", settings.max_model_tokens),
        ("--enable_chunked_prefill", True),
        ("--kv_cache_free_gpu_memory_fraction", _memory_share(deployment)),
        ("--trust_remote_code", settings.trust_remote_code),
    )


def trtllm_options(deployment: EngineDeployment) -> dict[str, object]:
    """Options that trtllm-serve takes from a file alone; empty for other engines."""
    settings = deployment.settings
    if deployment.engine != "trtllm":
        return {}
    options: dict[str, object] = {} if deployment.dtype == "auto" else {"dtype": deployment.dtype}
    if settings.plan.attention_dp > 1:
        options["enable_attention_dp"] = True
    if (cache := _CACHE_TYPES["trtllm"][settings.cache_dtype]) != "auto":
        share = _memory_share(deployment)  # said again: the table in the file replaces the flag
        options["kv_cache_config"] = {"dtype": cache, **({} if share is None else {"free_gpu_memory_fraction": share})}
    return options


def _times(limit: int | None, groups: int) -> int | None:
    return None if limit is None else limit * groups


def _memory_share(deployment: EngineDeployment) -> float | None:
    """Of the whole memory for weights and cache (SGLang), or of what weights leave for the cache (TensorRT-LLM).

    Rounded down, so that no more cache is taken than was assumed. None where the weights or the cache are not known.
    """
    weights, cache, memory = deployment.weight_bytes, deployment.settings.cache_bytes, deployment.device.memory_bytes
    if weights is None or cache is None or weights + cache >= memory:
        return None
    share = (weights + cache) / memory if deployment.engine == "sglang" else cache / (memory - weights)
    return math.floor(share * 1000) / 1000
