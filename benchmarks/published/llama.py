"""Two dense text models whose decode speed was published: nothing of DeepSeek-OCR, and no source of any band."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import FOLDERS, TRACERS
from llm_perf_opt.core.workload import Workload

from .cases import Row

PROMPT = 5  # a short context: what is published is the speed of streaming weights
LLAMA_2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
}
LLAMA_3_2_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}


def llama_rows(general: list[dict[str, Any]]) -> Iterator[Row]:
    """A compiled Llama-2-7B on A100, and Llama-3.2-1B on H100 in the usual engines and as one kernel."""
    compiled = _values(general, "gpt-fast")["Llama-2-7B bf16"]
    decode = _decode(LLAMA_2_7B, "a100-sxm-80g")
    yield _row("gpt-fast, Llama-2-7B", (1e3 / compiled["tok_s"],), decode, "a100-sxm-80g", "a card capped at 330 W")
    shares = _values(general, "Small-model batch-1 decode")
    decode = _decode(LLAMA_3_2_1B, "h100-sxm")
    streaming_ms = (decode.work.must_read_bytes or 0) / find_device("h100-sxm").bandwidth_bytes_per_s * 1e3
    times = (streaming_ms / shares["single megakernel"], streaming_ms / float(shares["vLLM/SGLang"].strip("<=")))
    yield _row("Llama-3.2-1B", times, decode, "h100-sxm", "one kernel for all, and the fastest of vLLM and SGLang")


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


def _row(record: str, published: tuple[float, ...], decode: StageTime, device: str, assumed: str) -> Row:
    return Row(
        record=record,
        metric="time per decode step",
        unit="ms",
        published=tuple(round(figure, 2) for figure in published),
        bound=decode.lower_bound.seconds * 1e3,
        low=decode.wall.low * 1e3,
        high=decode.wall.high * 1e3,
        device=device,
        execution=Execution.FUSED,
        assumed=assumed,
    )
