"""Rows of the page but for OCR servers: an RTX 5090, two dense text models, and tokens of cache beside the weights.

The RTX 5090 records are prefill, decode and single calls of one profiled run of the released code. The text models are
nothing of DeepSeek-OCR, and no source of any band.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.published.cases import Row, decode_graph, prefill_graph
from llm_perf_opt.core.callgraph.queries import count_kinds, ops_in_module
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import FOLDERS, TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.lower_bound import lower_bound
from llm_perf_opt.timing.predict import StageTime, predict, stage_time
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.stage_work import work_of

DEVICE = "rtx-5090"
CONTEXT = 913
FIRST_CALLS = {  # the record of the first call, the module, and how much of that call the record holds
    "rtx5090-kernels-sam": ("model.sam_model", 1.0),
    "rtx5090-kernels-clip": ("model.vision_model", 22 / 24),
    "rtx5090-kernels-projector": ("model.projector", 1.0),
}


def predicted_prefill() -> tuple[StageTime, ...]:
    """Vision and prefill of the profiled page."""
    return predict(prefill_graph(CONTEXT - 904), DataSheetRates(find_device(DEVICE)))


def predicted_decode() -> StageTime:
    """One step of the profiled decode, which ran from 914 to 977 tokens of context."""
    (prediction,) = predict(decode_graph(CONTEXT), DataSheetRates(find_device(DEVICE)))
    return prediction


def first_call(path: str) -> StageTime:
    """The first call of a module: the six crops, before the whole page."""
    graph = prefill_graph(CONTEXT - 904)
    work = work_of(path, count_kinds(graph, ops_in_module(graph, path)[0]))
    return stage_time(work, tuple(work.kernels.items()), DataSheetRates(find_device(DEVICE)))


def rtx5090_rows(records: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Every time in the records that a prediction speaks of; cold runs and runs under a tracer are left out."""
    summary = records["rtx5090-derived-summary"]["metrics"]
    stages, decode = predicted_prefill(), predicted_decode()
    bound = sum(stage.lower_bound.seconds for stage in stages)
    busy = _sum([stage.device_time for stage in stages])
    gpu = (
        records["rtx5090-kernels-prefill"]["metrics"]["gpu_kernel_ms_total"],
        records["rtx5090-crosscheck-prefill-gpu"]["metrics"]["prefill_gpu_busy_ms_per_image"],
    )
    yield _row("rtx5090-kernels-prefill", "vision and prefill, device busy", gpu, bound, busy)
    warm = _ends(summary["prefill_ms_warm"]["five_untraced_runs"])
    wall = _sum([stage.wall for stage in stages])
    yield _row("rtx5090-derived-summary", "vision and prefill, wall", warm, bound, wall)
    tokens = _ends(summary["decode_ms_per_token"]["untraced_runs"])
    yield _row("rtx5090-derived-summary", "decode step, wall", tokens, decode.lower_bound.seconds, decode.wall)
    per_token = (records["rtx5090-kernels-decode"]["metrics"]["gpu_kernel_ms_total"] / 64,)
    yield _row(
        "rtx5090-kernels-decode", "decode step, device busy", per_token, decode.lower_bound.seconds, decode.device_time
    )
    for name, (path, share) in FIRST_CALLS.items():
        call = first_call(path)
        figure = (records[name]["metrics"]["gpu_kernel_ms_total"],)
        what = f"first call of {path.rpartition('.')[2]}, device busy"
        # Vision uses every position and hides no pair: as written is what is necessary.
        bound_s = lower_bound(call.work.flops_by_dtype, 0, find_device(DEVICE)).seconds
        yield _row(name, what, figure, bound_s * share, call.device_time.times(share))


def _row(record: str, metric: str, published: tuple[float, ...], bound_s: float, band: Band) -> Row:
    more = {"device": DEVICE, "execution": Execution.EAGER, "assumed": "913 tokens, flash attention"}
    return Row.of_time(record, metric, (round(figure, 3) for figure in published), bound_s, band, **more)


def _sum(bands: list[Band]) -> Band:
    return Band(sum(band.low for band in bands), sum(band.high for band in bands))


def _ends(figures: list[float]) -> tuple[float, ...]:
    return min(figures), max(figures)


PROMPT = 5  # a short context: what is published is the speed of streaming weights
LLAMA_2_7B = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_2_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


def llama_rows(general: list[dict[str, Any]]) -> Iterator[Row]:
    """A compiled Llama-2-7B on A100, and Llama-3.2-1B on H100 in the usual engines and as one kernel."""
    compiled = _values(general, "gpt-fast")["Llama-2-7B bf16"]
    decode = _decode(LLAMA_2_7B, "a100-sxm-80g")
    yield _llama_row(
        "gpt-fast, Llama-2-7B", (1e3 / compiled["tok_s"],), decode, "a100-sxm-80g", "a card capped at 330 W"
    )
    shares = _values(general, "Small-model batch-1 decode")
    decode = _decode(LLAMA_3_2_1B, "h100-sxm")
    streaming_ms = (decode.work.must_read_bytes or 0) / find_device("h100-sxm").bandwidth_bytes_per_s * 1e3
    times = (streaming_ms / shares["single megakernel"], streaming_ms / float(shares["vLLM/SGLang"].strip("<=")))
    yield _llama_row(
        "Llama-3.2-1B", times, decode, "h100-sxm", "one kernel for all, and the fastest of vLLM and SGLang"
    )


def _values(general: list[dict[str, Any]], beginning: str) -> dict[str, Any]:
    values: dict[str, Any] = next(entry for entry in general if entry["what"].startswith(beginning))["values"]
    return values


def _decode(sizes: dict[str, Any], device: str) -> StageTime:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **sizes}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        adapter = FOLDERS.get("huggingface")(Path(folder), False)
        targets = adapter.targets(Workload(prompt_tokens=PROMPT, attention="sdpa"))
        graph = TRACERS.get("weightless")().trace(next(target for target in targets if target.phase == "decode"))
    (prediction,) = predict(graph, DataSheetRates(find_device(device), Execution.FUSED))
    return prediction


def _llama_row(record: str, published: tuple[float, ...], decode: StageTime, device: str, assumed: str) -> Row:
    figures, bound_s = (round(figure, 2) for figure in published), decode.lower_bound.seconds
    more = {"device": device, "execution": Execution.FUSED, "assumed": assumed}
    return Row.of_time(record, "time per decode step", figures, bound_s, decode.wall, **more)


USED_SHARE = 0.9  # vLLM's gpu_memory_utilization
GIBI_OVER_GIGA = 2**30 / 10**9
DEVICES = {"A100-80G": "a100-sxm-80g", "L40S": "l40s", "L4": "l4"}


def capacity_rows(metric: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Per device: tokens by our count, if a nominal gigabyte is 10^9 bytes and if it is 2^30, and as reported."""
    held = run_memory((prefill_graph(),)).total_bytes
    assert held is not None
    for name, identifier in DEVICES.items():
        device = find_device(identifier)
        nominal = (device.nominal_memory_bytes or device.memory_bytes) * USED_SHARE
        low, high = ((nominal * unit - held) // metric["kv_bytes_per_token_theory"] for unit in (1, GIBI_OVER_GIGA))
        reported = metric[f"{name}_kv_tokens"]
        yield {
            "device": identifier,
            "published": reported,
            "low": int(low),
            "high": int(high),
            "is_inside": low <= reported <= high,
        }
