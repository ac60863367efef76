"""How near does the account of a rank's memory come to vLLM's own start-up? Writes docs/evidence/memory.md with
--docs.

    python -m benchmarks.startup_memory [--docs] [--part developed|set-aside]

Reads the 72 records in tests/facts/serving, traces a decode step of each model without weights. About four minutes.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import llm_perf_opt
from benchmarks.pages import FACTS, show_sections, table, write_data
from benchmarks.records import SERVING, records_of
from benchmarks.runner import parser
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.serving.engines import engine_of_version, total_bytes
from llm_perf_opt.serving.fit import rank_memory, serving_fit
from llm_perf_opt.serving.held_memory import engine_weights
from llm_perf_opt.serving.working_memory import EncoderItem
from llm_perf_opt.tracing.deployed_traces import deployed

# Start-up records of vLLM: how they are split into two parts, and the model behind each of them.

# The split, made before any figure of the part that is set aside was looked at. Developed on: the nine older records,
# whose figures the page had already; of the 63 newer ones the models that the page named, and the first
# eight of the file, which were printed to learn its form. All other models are set aside, and were opened once.
DEVELOPED = frozenset(
    {
        "codellama/CodeLlama-7b-hf",
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        "google/gemma-2-27b-it",
        "google/gemma-2-2b-it",
        "google/gemma-2-9b-it",
        "google/gemma-3-12b-it",
        "google/gemma-3-27b-it",
        "google/gemma-3-4b-it",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Qwen/Qwen3-30B-A3B",
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "openai/gpt-oss-20b",
    }
)
DEVELOPED_PART, SET_ASIDE = "developed", "set-aside"

_UTILISATION = 0.95  # of the newer records: with it weights, activation, non-torch and cache add up where all are given


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What one server printed at its start, per GPU, in GiB; None: the record does not say, nor can it be derived."""

    model: str
    part: str
    version: str
    tp: int
    pp: int
    dtype: str
    quantization: str
    cache_dtype: str
    seen_gib: float
    utilisation: float
    weights_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    cache_gib: float | None
    planner: Mapping[str, float]  # errors of the planner, as ratios; empty in the older records
    tokens: int | None = None  # in the cache, where the engine counted them


def start_ups() -> Iterator[StartUp]:
    """Every record of both files."""
    yield from map(_older, records_of(SERVING / "vllm_startup_memory.json"))
    yield from map(_newer, records_of(SERVING / "vllm_startup_memory_more.json"))


def _older(record: Mapping[str, Any]) -> StartUp:
    # Listed at 0.9, where its parts and its cache add up to more than the share; at 0.95 they add up.
    share = 0.95 if record["model"].startswith("gpt-oss-120b") else record.get("gpu_memory_utilization", 0.95)
    return StartUp(
        model=record["model"],
        part=DEVELOPED_PART,
        version="0.11.0" if record["model"].startswith("Mistral") else "0.11.1",  # test_vllm_records.py says why
        tp=record.get("tensor_parallel", 1),
        pp=1,
        dtype="bf16",
        quantization="",
        cache_dtype="auto",
        seen_gib=79.18,
        utilisation=share,
        weights_gib=record.get("weights_gib"),
        activation_gib=record.get("activation_gib"),
        non_torch_gib=record.get("non_torch_gib"),
        cache_gib=record["kv_cache_gib"],
        planner={},
        tokens=record.get("kv_cache_tokens"),
    )


def _newer(record: Mapping[str, Any]) -> StartUp:
    errors = {
        name: float(record[f"planner_{name}_error"].rstrip("%")) / 100
        for name in ("weight", "activation", "non_torch", "kv")
        if f"planner_{name}_error" in record
    }
    return StartUp(
        model=record["model"],
        part=DEVELOPED_PART if record["model"] in DEVELOPED else SET_ASIDE,
        version=record["engine"].removeprefix("vLLM "),
        tp=record["tp"],
        pp=record["pp"],
        dtype=record.get("dtype") or "bf16",
        quantization=(record.get("quantization") or "").replace("—", ""),
        cache_dtype=record.get("kv_cache_dtype") or "auto",
        seen_gib=79.19,
        utilisation=record.get("gpu_memory_utilization", _UTILISATION),
        weights_gib=record.get("weights_gib"),
        activation_gib=record.get("activation_gib", record.get("activation_gib_derived")),
        non_torch_gib=record.get("non_torch_gib", record.get("non_torch_gib_derived")),
        cache_gib=record.get("kv_cache_gib"),
        planner=errors,
    )


CATALOGUE = Path(llm_perf_opt.__file__).parent / "models" / "huggingface" / "catalogue"
CONFIGS = FACTS / "deployment" / "configs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a record's model is written down here: a configuration, what of it is different, and its largest image."""

    config: str  # a folder of the catalogue, or of tests/facts/deployment/configs
    changes: Mapping[str, Any] = field(default_factory=dict)  # `text_config.vocab_size` -> value
    weights: str | None = None  # stored format; None: as the configuration says
    image: EncoderItem | None = None
    beside_bytes: int = 0  # weights that the traced part of the model does not have


def _image(embeddings: int, pixels: int, tokens: int | None = None) -> EncoderItem:
    return EncoderItem(tokens=tokens or embeddings, embeddings=embeddings, input_bytes=3 * pixels * 2)


# As many pixels and tokens as the processor of each model in vLLM makes of the largest image.
_GEMMA_IMAGE = _image(256, 896 * 896)
_PIXTRAL_IMAGE = _image(55 * 55, 1540 * 1540, 55 * 56)  # a separator after each of 55 rows
_QWEN_IMAGE = _image(16_384, 2 * 28 * 28 * 16_384)  # every frame twice
_GRANITE_IMAGE = _image(8019, 11 * 384 * 384)  # ten tiles and the whole
_KIMI_IMAGE = _image(1024, 4096 * 14 * 14)
_LLAMA_IMAGE = _image(17 * 144, 17 * 336 * 336)  # sixteen tiles and the whole

_GRANITE_2B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
_LLAMA_8B, _QWEN_72B, _QWEN_7B = "meta-llama--Llama-3.1-8B", "Qwen--Qwen2.5-72B", "Qwen--Qwen2.5-7B"
_MISTRAL_24B = "mistral-small-3.2-24b"
# Kimi-VL's language model has the layers of DeepSeek-V3; its encoder: 27 layers of 1,152 and 4,304, then two matrices.
_KIMI_VL = {
    "hidden_size": 2048,
    "intermediate_size": 11_264,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 163_840,
    "max_position_embeddings": 131_072,
    "rope_scaling": None,
    "quantization_config": None,
}
_KIMI_ENCODER_BYTES = 2 * (27 * (4 * 1152**2 + 2 * 1152 * 4304) + 4608 * (4608 + 2048))
_MIMO = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151_680,
    "vision_config.out_hidden_size": 4096,
}
MODELS = {
    "gpt-oss-20b (MoE)": Served(config="gpt-oss-20b-mxfp4"),
    "gpt-oss-120b (MoE)": Served(config="gpt-oss-120b-mxfp4"),
    "Llama-3.3-70B-FP8": Served(config="llama33-70b-fp8ct"),
    "Llama-3.1-8B": Served(config=_LLAMA_8B),
    "Qwen3-0.6B": Served(config="Qwen--Qwen3-0.6B"),
    "Qwen3-32B": Served(config="Qwen--Qwen3-32B"),
    "Mistral-Small-3.2-24B": Served(config=_MISTRAL_24B, image=_PIXTRAL_IMAGE),
    "Mistral-Small-3.2-24B-Instruct-2506": Served(config=_MISTRAL_24B, image=_PIXTRAL_IMAGE),
    "codellama/CodeLlama-7b-hf": Served(
        config="meta-llama--Llama-2-7b-hf", changes={"vocab_size": 32_016, "max_position_embeddings": 16_384}
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": Served(config="deepseek-ai--DeepSeek-V2-Lite"),
    "google/gemma-2-27b-it": Served(config="google--gemma-2-27b"),
    "google/gemma-2-2b-it": Served(config="google--gemma-2-2b"),
    "google/gemma-2-9b-it": Served(config="google--gemma-2-9b"),
    "google/gemma-3-12b-it": Served(config="google--gemma-3-12b-it", image=_GEMMA_IMAGE),
    "google/gemma-3-27b-it": Served(config="google--gemma-3-27b-it", image=_GEMMA_IMAGE),
    "google/gemma-3-4b-it": Served(config="google--gemma-3-4b-it", image=_GEMMA_IMAGE),
    "google/gemma-7b": Served(
        config="google--gemma-2-9b",
        changes={
            "model_type": "gemma",
            "architectures": ["GemmaForCausalLM"],
            "hidden_size": 3072,
            "intermediate_size": 24_576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "vocab_size": 256_000,
        },
    ),
    "ibm-granite/granite-3.1-2b-instruct": Served(
        config="ibm-granite--granite-3.3-8b-instruct", changes={**_GRANITE_2B, "vocab_size": 49_155}
    ),
    "ibm-granite/granite-3.1-8b-instruct": Served(
        config="ibm-granite--granite-3.3-8b-instruct", changes={"vocab_size": 49_155}
    ),
    "ibm-granite/granite-3.3-8b-instruct": Served(config="ibm-granite--granite-3.3-8b-instruct"),
    # The language model alone is traced: 27 layers of 1,152 and 4,304, and two matrices, are next to it.
    "ibm-granite/granite-vision-3.3-2b": Served(
        config="ibm-granite--granite-3.3-8b-instruct",
        changes={**_GRANITE_2B, "vocab_size": 49_156},
        image=_GRANITE_IMAGE,
        beside_bytes=2 * (27 * (4 * 1152**2 + 2 * 1152 * 4304) + 2048 * (4 * 1152 + 2048)),
    ),
    "meta-llama/Llama-3.1-8B-Instruct": Served(config=_LLAMA_8B),
    "microsoft/phi-2": Served(
        config="microsoft--phi-4",
        changes={
            "model_type": "phi",
            "architectures": ["PhiForCausalLM"],
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "partial_rotary_factor": 0.4,
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 2048,
            "rope_theta": 10_000.0,
            "vocab_size": 51_200,
            "pad_token_id": None,
        },
    ),
    "microsoft/phi-4": Served(config="microsoft--phi-4"),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": Served(config=_MISTRAL_24B, image=_PIXTRAL_IMAGE),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": Served(config="mistralai--Mixtral-8x7B-v0.1"),
    "moonshotai/Kimi-Dev-72B": Served(config=_QWEN_72B),
    "moonshotai/Kimi-VL-A3B-Instruct": Served(
        config="deepseek-ai--DeepSeek-V3", changes=_KIMI_VL, image=_KIMI_IMAGE, beside_bytes=_KIMI_ENCODER_BYTES
    ),
    "openai/gpt-oss-20b": Served(config="gpt-oss-20b-mxfp4"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": Served(
        config="meta-llama--Llama-4-Scout-17B-16E-Instruct", image=_LLAMA_IMAGE
    ),
    "Qwen/Qwen2.5-72B-Instruct": Served(config=_QWEN_72B),
    "Qwen/Qwen2.5-7B-Instruct": Served(config=_QWEN_7B),
    "Qwen/Qwen3-30B-A3B": Served(config="Qwen--Qwen3-30B-A3B"),
    "Qwen/Qwen1.5-MoE-A2.7B": Served(config="Qwen--Qwen1.5-MoE-A2.7B"),
    "Qwen/Qwen3-8B": Served(config="Qwen--Qwen3-8B"),
    "Qwen/Qwen3-14B": Served(config="Qwen--Qwen3-14B"),
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": Served(config="llama33-70b-fp8ct"),
    "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8": Served(config="llama33-70b-fp8ct"),  # one byte each as well
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": Served(config="llama31-8b-gptq"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": Served(config="llama31-8b-fp8ct"),
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8": Served(
        config=_MISTRAL_24B, weights="int8", image=_PIXTRAL_IMAGE
    ),
    "RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic": Served(config=_QWEN_7B, weights="fp8"),
    "RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8": Served(config=_QWEN_7B, weights="int8"),
    "XiaomiMiMo/MiMo-VL-7B-SFT": Served(config="Qwen--Qwen2.5-VL-7B-Instruct", changes=_MIMO, image=_QWEN_IMAGE),
}


def decode_step(config: str, changes: Mapping[str, Any], dtype: str, weights: str | None) -> CallGraph:
    """One decode step of a model, traced without weights."""
    folder = next(place / config for place in (CATALOGUE, CONFIGS) if (place / config).exists())
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, value in changes.items():
        *path, last = name.split(".")
        part = document
        for step in path:
            part = part[step]
        part[last] = value
    with scratch_folder() as changed:
        (changed / "config.json").write_text(json.dumps(document), encoding="utf-8")
        adapter = HuggingFaceAdapter(changed, False)
        *_, target = adapter.targets(Workload(prompt_tokens=64, batch=1, dtype=dtype))
        return deployed(adapter, [WeightlessTracer().trace(target)], Deployment.make(weights=weights))[0]


GIB = 2**30
# The planner whose errors the newer records print: 95 % of 80 GiB, and constants by kind of model.
_PLANNER_SHARE_GIB = 0.95 * 80


@cache
def _traced(config: str, changes: str, dtype: str, weights: str | None) -> CallGraph:
    return decode_step(config, json.loads(changes), dtype, weights)


def _graph(start: StartUp, *, as_checkpoint: bool = False) -> CallGraph:
    """The decode step as it was served, or in the format of the checkpoint, from which the engine converts."""
    served = MODELS[start.model]
    dtype = "float32" if start.dtype == "f32" and not as_checkpoint else "bfloat16"  # float16 has the same sizes
    weights = "fp8" if start.quantization == "fp8" and not as_checkpoint else served.weights
    return _traced(served.config, json.dumps(dict(served.changes)), dtype, weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A record next to the account of its rank, in GiB."""

    start: StartUp
    weights_gib: float
    activation_gib: float
    moment: str
    outside_gib: float
    cache_gib: float
    measured_cache_gib: float
    is_derived: bool  # the measured cache follows from other figures of the record
    planner_cache_gib: float | None  # a second derivation, from the planner's own error
    tokens: int | None

    @property
    def cache_error(self) -> float:
        return self.cache_gib / self.measured_cache_gib - 1

    @property
    def activation_error(self) -> float | None:
        measured = self.start.activation_gib
        return None if measured is None else self.activation_gib / measured - 1


def judged(start: StartUp) -> Judged:
    """The account with the record's own memory and share of it, and our defaults for everything else."""
    served, device = MODELS[start.model], find_device("h100-sxm")
    plan, engine = ParallelPlan(tp=start.tp, pp=start.pp), engine_of_version(start.version)
    # Of a pipeline the records hold the log of a stage that does not sample: the first.
    needs = rank_memory([_graph(start)], device, plan=plan, engine=engine, encoder=served.image)
    assert needs.working is not None
    fit = serving_fit(
        weights_bytes=total_bytes(needs.weights) + served.beside_bytes // (start.tp * start.pp),
        working_bytes=needs.working.bytes,
        cache=needs.cache,
        device=device,
        batch=1,
        context=8192,
        utilisation=start.utilisation,
        outside_torch_bytes=engine.outside_torch(plan),
        memory_bytes=round(start.seen_gib * GIB),
    )
    assert fit.weights_bytes is not None
    assert fit.working_bytes is not None
    cache = start.cache_gib if start.cache_gib is not None else _derived_cache_gib(start)
    return Judged(
        start=start,
        weights_gib=fit.weights_bytes / GIB,
        activation_gib=fit.working_bytes / GIB,
        moment=needs.working.moment,
        outside_gib=(fit.outside_torch_bytes or 0) / GIB,
        cache_gib=(fit.room_bytes or 0) / GIB,
        measured_cache_gib=cache,
        is_derived=start.cache_gib is None,
        planner_cache_gib=_planner_cache_gib(start) if start.planner else None,
        tokens=fit.cache_tokens,
    )


def _checkpoint_gib(start: StartUp) -> float:
    """Of all ranks, as the checkpoint stores it: what the planner took for the weights."""
    device, engine = find_device("h100-sxm"), engine_of_version(start.version)
    stored, *_ = engine_weights(_graph(start, as_checkpoint=True), device, engine=engine, plan=ParallelPlan())
    return (stored.bytes + MODELS[start.model].beside_bytes) / GIB


def _derived_cache_gib(start: StartUp) -> float:
    """What vLLM computes: its share of the memory less weights, activation and what is outside PyTorch.

    Where the record does not have the weights, they follow from the checkpoint and the planner's error.
    """
    weights = start.weights_gib or _checkpoint_gib(start) / (start.tp * start.pp) / (1 + start.planner["weight"])
    return start.utilisation * start.seen_gib - weights - (start.activation_gib or 0) - (start.non_torch_gib or 0)


def _planner_cache_gib(start: StartUp) -> float:
    """From the planner's cache and its error: 95 % of 80 GiB on each GPU, less weights and its two constants.

    It takes the activation off once for all GPUs, and what is outside PyTorch on each of several tensor-parallel ones.
    """
    gpus, errors = start.tp * start.pp, start.planner
    activation = (start.activation_gib or 0) * (1 + errors["activation"])
    outside = (start.non_torch_gib or 0) * (1 + errors["non_torch"]) * start.tp
    planned = gpus * _PLANNER_SHARE_GIB - _checkpoint_gib(start) - activation - outside
    return planned / (1 + errors["kv"]) / gpus


def figures(records: Sequence[Judged]) -> dict[str, Any]:
    """Medians and 90th percentiles of the errors, without their signs."""
    caches = [abs(record.cache_error) for record in records]
    activations = [abs(error) for record in records if (error := record.activation_error) is not None]
    return {
        "records": len(records),
        "models": len({record.start.model for record in records}),
        "cache": {"judged": len(caches), "median": median(caches), "p90": _p90(caches)},
        "activation": {"judged": len(activations), "median": median(activations), "p90": _p90(activations)},
    }


def _p90(values: Sequence[float]) -> float:
    """The smallest value that nine tenths do not exceed."""
    return sorted(values)[max(0, math.ceil(0.9 * len(values)) - 1)]


def memory_data(parts: Sequence[str]) -> dict[str, Any]:
    """All that the page says."""
    records = [judged(start) for start in start_ups() if start.part in parts]
    by_part = {part: [record for record in records if record.start.part == part] for part in parts}
    derivations = [
        abs(record.planner_cache_gib / record.measured_cache_gib - 1)
        for record in records
        if record.planner_cache_gib is not None
    ]
    return {
        "parts": {**{part: figures(some) for part, some in by_part.items()}, "all": figures(records)},
        "derivations": {"records": len(derivations), "median": median(derivations), "p90": _p90(derivations)},
        "records": [_row(record) for record in records],
    }


def _row(judged: Judged) -> dict[str, Any]:
    start, error = judged.start, judged.activation_error
    return {
        "model": start.model,
        "part": start.part,
        "vllm": start.version,
        "plan": ParallelPlan(tp=start.tp, pp=start.pp).describe(),
        "as": " ".join(filter(None, (start.dtype, start.quantization, start.cache_dtype.replace("auto", "")))),
        "weights_gib": round(judged.weights_gib, 3),
        "activation_gib": round(judged.activation_gib, 3),
        "moment": judged.moment,
        "outside_gib": round(judged.outside_gib, 3),
        "cache_gib": round(judged.cache_gib, 3),
        "measured_activation_gib": start.activation_gib,
        "measured_outside_gib": start.non_torch_gib,
        "measured_cache_gib": round(judged.measured_cache_gib, 3),
        "is_derived": judged.is_derived,
        "cache_error": round(judged.cache_error, 5),
        "activation_error": None if error is None else round(error, 5),
    }


TITLES = {DEVELOPED_PART: "developed on", SET_ASIDE: "set aside", "all": "**all**"}
_SHOWN = 12
_FORMS = {"cache": ".2%", "activation": ".1%"}


def sections(data: Mapping[str, Any]) -> dict[str, str]:
    """Name of a section of the page -> its text, from the data file alone."""
    return {"start-up": _errors(data), "start-up-largest": _largest(data)}


def _errors(data: Mapping[str, Any]) -> str:
    rows = []
    for part, errors_of in data["parts"].items():
        errors = (f"{errors_of[what][rank]:{form}}" for what, form in _FORMS.items() for rank in ("median", "p90"))
        rows.append((TITLES[part], errors_of["models"], errors_of["records"], *errors))
    twice = data["derivations"]
    said = (
        f"Two derivations of the measured cache, where both are possible ({twice['records']} records), differ by "
        f"{twice['median']:.2%} (median) and {twice['p90']:.2%} (p90)."
    )
    titles = ("records", "models", "number", "KV cache: median", "p90", "activation: median", "p90")
    return f"{table(titles, rows)}\n\n{said}"


def _largest(data: Mapping[str, Any]) -> str:
    """The records with the largest error of either figure."""

    def worst(row: Mapping[str, Any]) -> float:
        return max(abs(row["cache_error"]), abs(row["activation_error"] or 0))

    rows = []
    for row in sorted(data["records"], key=worst, reverse=True)[:_SHOWN]:
        names = (row["model"], row["plan"], row["as"], TITLES[row["part"]])
        rows.append((*names, *(_both(row, what) for what in _FORMS), row["moment"]))
    figures = (f"{what}, ours and measured" for what in ("KV cache", "activation"))
    return table(("model", "plan", "stored as", "records", *figures, "moment"), rows, "llllrrl")


def _both(row: Mapping[str, Any], what: str) -> str:
    if row[f"{what}_error"] is None:
        return "-"
    return f"{row[f'{what}_gib']:.2f} / {row[f'measured_{what}_gib']:.2f} ({row[f'{what}_error']:+.1%})"


def main() -> None:
    asked = parser(__doc__, docs="write the page's sections and its data file")
    asked.add_argument("--part", choices=(DEVELOPED_PART, SET_ASIDE), help="judge on these records alone")
    options = asked.parse_args()
    data = memory_data([options.part] if options.part else [DEVELOPED_PART, SET_ASIDE])
    show_sections("evidence/memory", sections(data), is_written=options.docs)
    if options.docs:
        write_data("startup_memory", data)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    main()
