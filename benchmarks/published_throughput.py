"""Predict what was published about DeepSeek-OCR and two text models, and write the table of both.

    python -m benchmarks.published_throughput [--docs]

Reads the records in tests/facts, traces without weights, and with --docs writes docs/data/published.json and the
tables of docs/evidence/published-throughput.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, columns, facts, replace_section, table, write_data
from benchmarks.runner import parser
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds, ops_in_module
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.plugins import FOLDERS, MODELS, TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.lower_bound import lower_bound
from llm_perf_opt.timing.predict import StageTime, predict, stage_time
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.stage_work import work_of

# Traces of DeepSeek-OCR that the predictions start from, each made once.

GUNDAM_TOKENS = 904  # BOS, and the image tokens of a page cut into 2 x 3 crops
TINY_TOKENS = 74  # BOS, and the image tokens of a page of 512 pixels: a short context that a text can fill


@cache
def decode_graph(context: int, batch: int = 1, dtype: str = "bfloat16") -> CallGraph:
    """One decode step of `batch` sequences with `context` tokens each in the cache; no vision runs in it."""
    is_long = context > GUNDAM_TOKENS
    workload = DeepSeekOcrWorkload(
        mode="gundam" if is_long else "tiny",
        crops=(2, 3) if is_long else None,
        prompt_tokens=context - (GUNDAM_TOKENS if is_long else TINY_TOKENS),
        batch=batch,
        dtype=dtype,
        attention="flash",
    )
    return _trace("decode", workload)


@cache
def prefill_graph(prompt_tokens: int = 9) -> CallGraph:
    """One page of 2 x 3 crops: vision and prefill."""
    return _trace(
        "prefill", DeepSeekOcrWorkload(mode="gundam", crops=(2, 3), prompt_tokens=prompt_tokens, attention="flash")
    )


@cache
def text_graph(tokens: int, dtype: str) -> CallGraph:
    """A prefill of `tokens` tokens; its last stage is the decoder, the others stand for the small page before it."""
    return _trace(
        "prefill", DeepSeekOcrWorkload(mode="tiny", prompt_tokens=tokens - TINY_TOKENS, dtype=dtype, attention="flash")
    )


def _trace(phase: str, workload: Workload) -> CallGraph:
    targets = {target.phase: target for target in MODELS.get("deepseek-ocr")().targets(workload)}
    return TRACERS.get("weightless")().trace(targets[phase])


def step(context: int, device: Device, execution: Execution, batch: int = 1, dtype: str = "bfloat16") -> StageTime:
    (prediction,) = predict(decode_graph(context, batch, dtype), DataSheetRates(device, execution))
    return prediction


def text_prefill(tokens: int, device: Device, dtype: str) -> StageTime:
    """The decoder's part of a prefill."""
    return predict(text_graph(tokens, dtype), DataSheetRates(device, Execution.FUSED))[-1]


def page(device: Device, execution: Execution) -> tuple[Band, float]:
    """Vision and prefill of one page: the band, and the bound."""
    total, bound = Band(0, 0), 0.0
    for prediction in predict(prefill_graph(), DataSheetRates(device, execution)):
        total, bound = total + prediction.wall, bound + prediction.lower_bound.seconds
    return total, bound


EAGER, FUSED = Execution.EAGER, Execution.FUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure next to its prediction, both in `unit`; `bound` is the best that no run can beat."""

    record: str
    metric: str
    unit: str
    published: tuple[float, ...]  # one figure, or the ends of a range
    bound: float
    low: float
    high: float
    device: str
    execution: str
    assumed: str

    @classmethod
    def of_time(
        cls, record: str, metric: str, published_ms: Iterable[float], bound_s: float, band: Band, **more: str
    ) -> Row:
        """In milliseconds; `more` are the device, how it ran and what is assumed."""
        figures, ends = tuple(map(float, published_ms)), {"low": band.low * 1e3, "high": band.high * 1e3}
        return cls(record=record, metric=metric, unit="ms", published=figures, bound=bound_s * 1e3, **ends, **more)

    @property
    def is_inside(self) -> bool:
        """Whether the band holds every published figure."""
        return all(self.low <= figure <= self.high for figure in self.published)

    @property
    def is_possible(self) -> bool:
        """Whether the bound holds: below a time, above a rate."""
        is_rate = self.unit.endswith("/s")
        return all(figure <= self.bound if is_rate else figure >= self.bound for figure in self.published)


DECODE_STEPS = {  # record -> device, context, sequences in a step, dtype, metric, what is assumed
    "dsocr-sglang-mi300x-c1": ("mi300x", 336, 1, "float16", "tpot_ms_mean", "197 tokens in, half of 278 out"),
    "dsocr-sglang-mi300x-c100": ("mi300x", 396, 86, "float16", "itl_ms_median", "302 in, half of 188 out, 86 at once"),
    "dsocr2-sglang-h200-c1": ("h200-sxm", 336, 1, "bfloat16", "tpot_ms_mean", "lengths as on MI300X"),
    "dsocr2-sglang-h200-c100": ("h200-sxm", 396, 87, "bfloat16", "itl_ms_median", "lengths as on MI300X, 87 at once"),
    "dsocr2-hf-rtx3090": ("rtx-3090", 1400, 1, "bfloat16", "ms_per_token", "a page of 2 x 3 crops, half of 1,000 out"),
}
TEXT_FIRST_TOKENS = ("dsocr-sglang-mi300x-c1", "dsocr2-sglang-h200-c1")
SERVED = "; published with server, network and image preprocessing, which are not predicted"
JINA_OUT, JINA_DEVICE = 620, "rtx-pro-6000-bw-server"
README_OUT, README_AT_ONCE = 1080, 100

REASONS = {
    "dsocr-paper-1xA100-40G": "workload not stated; the README's figure for the same pipeline is in the table",
    "dsocr-paper-160xA100-40G": "likewise, for 160 devices",
    "dsocr-vllm-a100-80g-hf": "output tokens per page not stated",
    "dsocr-vllm-l40s-sagemaker": "output tokens per page not stated",
    "dsocr-vllm-l4-cloudrun": "output tokens per page not stated",
    "dsocr-kvcache-capacity": "memory, not time: see the table of capacities",
    "dsocr-lightonocr-h100": "a ratio of two figures; mode and concurrency not given",
    "dsocr-unlimitedocr-omnidocbench": "device not stated",
    "dsocr-unlimitedocr-table4": "device not stated",
    "dsocr-hf-rtx5090-llmperfopt": "the same runs as the RTX 5090 records above, less precise",
    "dsocr-flops-llmperfopt": "FLOPs, no time",
    "dsocr-candle-a100-40g": "an engine that is neither eager PyTorch nor optimised; its launches are unknown",
    "dsocr-vllm-ascend-910b": "the device's public figures differ by a factor of four",
    "dsocr-iluvatar-mrv100": "device not in the table",
    "dsocr-vllm-b200-smoke": "output tokens of each image not stated",
    "dsocr-mlx-swift": "device not stated",
    "dsocr-rs-macos": "device not stated",
    "dsocr-4090-design-claim": "a claim, not a measurement",
    "dsocr-encoder-cudagraph": "no figure",
}
OTHER_MODELS = "models that are not DeepSeek-OCR: their code and configurations are not part of this project"


def usable_rows(records: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Every figure that can be predicted, in the order of the records."""
    for name, record in records.items():
        if name in DECODE_STEPS:
            yield decode_step_row(name, record["metric"])
            if name in TEXT_FIRST_TOKENS:
                yield _text_first_token(name, record["metric"])
        elif name == "dsocr-readme-pdf-2500tps":
            yield _readme(name, record["metric"])
        elif name.startswith("jinaocr"):
            yield from _jina(name, record["metric"])


def decode_step_row(name: str, metric: dict[str, Any]) -> Row:
    """One step of the record's engine."""
    device, context, sequences, dtype, key, assumed = DECODE_STEPS[name]
    execution = EAGER if "-hf-" in name else FUSED
    decode_step = step(context, find_device(device), execution, sequences, dtype)
    more = {"device": device, "execution": execution, "assumed": assumed}
    return Row.of_time(
        name, "time per decode step", (metric[key],), decode_step.lower_bound.seconds, decode_step.wall, **more
    )


def _text_first_token(name: str, metric: dict[str, Any]) -> Row:
    device, _, _, dtype, _, _ = DECODE_STEPS[name]
    prefill_pass = text_prefill(197, find_device(device), dtype)
    more = {"device": device, "execution": FUSED, "assumed": "197 tokens in" + SERVED}
    figures = (metric["ttft_ms_mean"],)
    return Row.of_time(
        name, "time to first token", figures, prefill_pass.lower_bound.seconds, prefill_pass.wall, **more
    )


def _pages_per_s(device: Device, at_once: int, out_tokens: int) -> tuple[Band, float]:
    """A page costs its own vision and prefill, and its share of steps that `at_once` pages make together."""
    decode = step(904 + 9 + out_tokens // 2, device, FUSED, at_once)
    vision_and_prefill, bound = page(device, FUSED)
    seconds = vision_and_prefill + decode.wall.times(out_tokens / at_once)
    return Band(1 / seconds.high, 1 / seconds.low), 1 / (bound + decode.lower_bound.seconds * out_tokens / at_once)


def _readme(name: str, metric: dict[str, Any]) -> Row:
    device = "a100-sxm-40g"
    pages, bound = _pages_per_s(find_device(device), README_AT_ONCE, README_OUT)
    return Row(
        record=name,
        metric="output",
        unit="tokens/s",
        published=(float(metric["output_tokens_per_s"]),),
        bound=bound * README_OUT,
        low=pages.low * README_OUT,
        high=pages.high * README_OUT,
        device=device,
        execution=FUSED,
        assumed="2 x 3 crops, 1,080 tokens out, 100 sequences at once, SXM card",
    )


def _jina(name: str, metric: dict[str, Any]) -> Iterator[Row]:
    """A step of one page while others wait for their prefill: each page in flight stops the steps once."""
    device, at_once = find_device(JINA_DEVICE), int(name.rpartition("-c")[2])
    pages, best = _pages_per_s(device, at_once, JINA_OUT)
    shared = {"device": JINA_DEVICE, "execution": FUSED, "assumed": "2 x 3 crops, 620 tokens out, Server Edition"}
    rate = (float(metric["pages_per_s"]),)
    ends = {"bound": best, "low": pages.low, "high": pages.high}
    yield Row(record=name, metric="pages", unit="pages/s", published=rate, **ends, **shared)
    if metric["tpot_ms"] is None:
        return
    decode = step(904 + 9 + JINA_OUT // 2, device, FUSED, at_once)
    vision_and_prefill, bound = page(device, FUSED)
    if at_once == 1:
        assumed = {**shared, "assumed": shared["assumed"] + SERVED}
        yield Row.of_time(
            name, "time to first token", (metric["ttft_s_mean"] * 1e3,), bound, vision_and_prefill, **assumed
        )
    waits = (at_once - 1) / JINA_OUT
    band, bound_s = decode.wall + vision_and_prefill.times(waits), decode.lower_bound.seconds + bound * waits
    yield Row.of_time(name, "time per output token", (metric["tpot_ms"],), bound_s, band, **shared)


# Rows of the page but for OCR servers: an RTX 5090, two dense text models, and tokens of cache next to the weights.

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


DATA, PAGE = DOCS / "data" / "published.json", DOCS / "evidence" / "published-throughput.md"


def by_id(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in records}


def measure() -> dict[str, Any]:
    """Every prediction next to what was published, as the data file holds it."""
    published, measured = facts("published.json"), by_id(facts("deepseek_ocr/measured-gpu.json"))
    records = by_id(published["deepseek_ocr"])
    general = published["efficiency_priors"]["general"]
    rows = [*rtx5090_rows(measured), *usable_rows(records), *llama_rows(general)]
    stages = predicted_prefill()
    return {
        "rows": [_rounded(asdict(row) | {"is_inside": row.is_inside, "is_possible": row.is_possible}) for row in rows],
        "capacity": list(capacity_rows(records["dsocr-kvcache-capacity"]["metric"])),
        "launches": {
            "prefill": {
                "counted": sum(stage.launches for stage in stages),
                "measured": measured["rtx5090-kernels-prefill"]["metrics"]["kernel_launches"],
            },
            "decode": {
                "counted": predicted_decode().launches,
                "measured": measured["rtx5090-derived-summary"]["metrics"]["decode_kernel_launches_per_token"],
            },
        },
        "bound_by": {stage.name: str(stage.bound_by) for stage in (*stages, predicted_decode())},
        "unusable": [{"record": name, "reason": reason} for name, reason in REASONS.items()]
        + [{"record": f"{len(published['similar_ocr_vlms'])} records of other models", "reason": OTHER_MODELS}],
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Four significant digits: the bands are not known better."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else list(value) if isinstance(value, tuple) else value
        for name, value in row.items()
    }


def sections(data: dict[str, Any]) -> dict[str, str]:
    """The marked sections of the page."""
    rows = data["rows"]
    inside = sum(row["is_inside"] for row in rows)
    possible = sum(row["is_possible"] for row in rows)
    said = {True: "yes", False: "**no**"}
    shown = [
        {**row, "figures": " - ".join(f"{figure:g}" for figure in row["published"]), "inside": said[row["is_inside"]]}
        for row in rows
    ]
    published = columns(
        shown,
        {
            "record": "`{record}`",
            "what": "{metric}",
            "device": "`{device}`",
            "run as": "{execution}",
            "published": "{figures} {unit}",
            "bound": "{bound:.3g}",
            "band": "{low:.3g} - {high:.3g}",
            "inside": "{inside}",
            "assumed": "{assumed}",
        },
        "llllrrrl",
    )
    forms = {"device": "`{device}`", "reported by vLLM": "{published:,}", "band": "{low:,} - {high:,}"}
    capacity = ({**row, "inside": said[row["is_inside"]]} for row in data["capacity"])
    unusable = [(row["record"], row["reason"]) for row in data["unusable"]]
    return {
        "published": f"{len(rows)} figures: the bound holds for {possible}, the band holds {inside}.\n\n{published}",
        "capacity": columns(capacity, {**forms, "inside": "{inside}"}, "lrrl"),
        "unusable": table(("record", "why it cannot be predicted"), unusable, "l"),
    }


def main() -> None:
    options = parser(__doc__, docs="write the data file and the tables of the page").parse_args()
    data = measure()
    for name, text in sections(data).items():
        print(text, end="\n\n")
        if options.docs:
            replace_section(PAGE, name, text)
    if options.docs:
        write_data("published", data)


if __name__ == "__main__":
    main()
