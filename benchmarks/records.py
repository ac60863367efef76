"""One reader of what others measured: runs of servers and models from `tests/facts`, typed, after rules for defects.

The first line of a rule says what is known to be wrong with the records of `silicon_sample.csv`. Where a record leaves
a choice, the choice that makes the run easier is taken, so that no bound is higher for what is not known. Of
`published.json` a record is usable if it names a device of the table, a model whose decoder is written down here, and a
time for a token or a rate of tokens. Of a page only what is certain counts: the tokens of one view without crops, and
no vision at all.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pages import FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """How the GPUs of a replica share a model: `tensor` of them share each attention, `experts` share the experts.

    Of more GPUs than `tensor`, each group has an attention and sequences of its own. 1: not shared, or unknown.
    """

    tensor: int = 1
    experts: int = 1

    def describe(self, gpus: int) -> str:
        """As engines write it: `tp8 ep8`, `dp8 ep8`; how many GPUs where nothing is known to be shared."""
        groups = gpus // self.tensor
        parts = {"tp": self.tensor, "dp": groups if self.tensor * self.experts > 1 else 1, "ep": self.experts}
        return " ".join(f"{name}{size}" for name, size in parts.items() if size > 1) or f"{gpus} GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as the bound needs it. None is not recorded.

    `in_flight` are the sequences that `decode_gpus` held at once, at most: an engine may have run fewer of them and
    left the others waiting. Prefill and decode share their GPUs unless `is_disaggregated`. A plan that is not recorded
    shares nothing, so it has nothing to send. `drafts` are tokens that a step may have drafted beyond its own.
    `tokens_per_s_per_gpu` is the output of a run at full load, which has no times of its own. `touched` names the rules
    that changed the record.
    """

    name: str
    source: str
    model: str  # a folder of tests/facts/serving/configs
    device: str
    engine: str
    precision: str  # bf16, fp8, fp4 or int4
    prompt_tokens: int
    output_tokens: int
    prefill_gpus: int
    decode_gpus: int
    in_flight: int | None
    prefill_plan: ServedPlan = ServedPlan()
    decode_plan: ServedPlan = ServedPlan()
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    drafts: int = 0
    is_disaggregated: bool = False
    is_whole_system: bool = False
    is_repeat: bool = False
    touched: tuple[str, ...] = ()
    inferencex_engine: str | None = None  # the version of the engine of an InferenceX server; blank is an older one

    @property
    def e2e_s(self) -> float | None:
        """The time of a request: first token, then one step for each token of the output."""
        if self.ttft_s is None or self.tpot_s is None:
            return None
        return self.ttft_s + self.output_tokens * self.tpot_s

    @property
    def mean_context(self) -> int:
        """Tokens in the cache halfway through the output."""
        return self.prompt_tokens + self.output_tokens // 2 + 1


Row, Record = Mapping[str, str], Mapping[str, Any]
Rule = Callable[[Row, MeasuredRun], MeasuredRun]
TableRule = Callable[[Sequence[Row], Sequence[MeasuredRun]], list[MeasuredRun]]

SERVING = FACTS / "serving"
CONFIGS = SERVING / "configs"
SILICON = SERVING / "silicon_sample.csv"
AGGREGATED = "agg"
INFERENCEX = "InferenceX dump"
GPUS_OF_A_NODE = 8
MEAN_OF_RANGE = 0.9  # lengths are drawn evenly between 0.8 of the nominal length and the whole of it
DRAFTED_FASTER = 1.4  # by which the same configuration differs where one of the runs drafted
DRAFTS = 3  # the most that the benchmark's recipes draft
DRAFTING_MODELS = frozenset({"deepseek-r1", "glm-5"})  # checkpoints with a layer that predicts a further token


def expert_parallelism_counted_once(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Aggregated InferenceX rows multiply expert parallelism in twice: `tp8 ep8` is 8 GPUs, not 64."""
    if row["mode"] != AGGREGATED or row["origin"] != INFERENCEX:
        return run
    tensor, data = number(row, "tp_size"), number(row, "attention_dp_size")
    expert_tensor, experts = number(row, "moe_tp_size"), number(row, "moe_ep_size")
    gpus = math.isqrt(tensor * data)
    if gpus * gpus != tensor * data or gpus == 1:
        return run
    is_squared = expert_tensor == experts == gpus
    is_squared_data = tensor == data == gpus and (expert_tensor, experts) == (1, gpus * gpus)
    if not is_squared and not is_squared_data:
        return run
    plan = ServedPlan(tensor=1 if data > 1 else gpus, experts=gpus)
    return replace(run, prefill_gpus=gpus, decode_gpus=gpus, prefill_plan=plan, decode_plan=plan)


def attention_parallelism_left_blank(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Experts on more GPUs than attention means that attention ran data-parallel and the record says nothing of it."""
    if row["mode"] != AGGREGATED or row["origin"] == INFERENCEX:
        return run
    gpus = max(run.decode_gpus, number(row, "moe_tp_size") * number(row, "moe_ep_size"))
    return replace(run, prefill_gpus=gpus, decode_gpus=gpus)


def whole_system_labelled_aggregated(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Aggregated rows on 12 to 72 GPUs are whole disaggregated systems: all of their GPUs count for both phases."""
    is_system = row["mode"] == AGGREGATED and row["origin"] == INFERENCEX and run.decode_gpus > GPUS_OF_A_NODE
    return replace(run, is_whole_system=True, prefill_plan=ServedPlan(), decode_plan=ServedPlan()) if is_system else run


def batch_of_one_replica(row: Row, run: MeasuredRun) -> MeasuredRun:
    """A replica held its batch times its attention ranks, where that is below the concurrency or none is recorded."""
    if row["mode"] != AGGREGATED:
        return run
    held = number(row, "batch_size") * number(row, "attention_dp_size")
    return replace(run, in_flight=held if run.in_flight is None else min(held, run.in_flight))


def concurrency_over_workers(row: Row, run: MeasuredRun) -> MeasuredRun:
    """The concurrency of a disaggregated system is spread over its decode workers, where their number is recorded."""
    if row["mode"] == AGGREGATED or not row["decode_num_workers"] or run.in_flight is None:
        return run
    return replace(run, in_flight=max(1, run.in_flight // number(row, "decode_num_workers")))


def workers_not_recorded(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Without the number of decode workers a worker's batch is unknown: one sequence is all that is certain."""
    if row["mode"] == AGGREGATED or row["decode_num_workers"]:
        return run
    return replace(run, in_flight=1)


def lengths_drawn_from_a_range(row: Row, run: MeasuredRun) -> MeasuredRun:
    """InferenceX draws prompt and output between 0.8 of the nominal length and the whole of it: 0.9 on average."""
    if row["origin"] != INFERENCEX:
        return run
    return replace(
        run,
        prompt_tokens=math.floor(MEAN_OF_RANGE * run.prompt_tokens),
        output_tokens=math.floor(MEAN_OF_RANGE * run.output_tokens),
    )


def precision_not_recorded(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Rows without a precision serve the checkpoint as published, in bfloat16."""
    return run if row["precision"] else replace(run, precision="bf16")


ROW_RULES: tuple[Rule, ...] = (
    expert_parallelism_counted_once,
    attention_parallelism_left_blank,
    whole_system_labelled_aggregated,
    batch_of_one_replica,
    concurrency_over_workers,
    workers_not_recorded,
    lengths_drawn_from_a_range,
    precision_not_recorded,
)


def unmarked_drafts(rows: Sequence[Row], runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Of equal configurations of a model with a draft layer, those 1.4 times faster drafted 3 tokens, unmarked."""
    pairs = list(zip(rows, runs, strict=True))
    same = [(*(getattr(run, name) for name in _ALIKE), *(row[name] for name in _SAME)) for row, run in pairs]
    slowest: dict[object, float] = defaultdict(float)
    for configuration, run in zip(same, runs, strict=True):
        slowest[configuration] = max(slowest[configuration], run.tpot_s or 0)
    return [
        replace(run, drafts=DRAFTS)
        if run.model in DRAFTING_MODELS and (run.tpot_s or 0) * DRAFTED_FASTER < slowest[configuration]
        else run
        for configuration, run in zip(same, runs, strict=True)
    ]


def repeated_measurement(rows: Sequence[Row], runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """A row with the TTFT and TPOT of an earlier one is the same measurement: checked, but counted once in a median."""
    seen: set[tuple[str, str]] = set()
    marked = []
    for row, run in zip(rows, runs, strict=True):
        times = (row["ttft_ms"], row["tpot_ms"])
        marked.append(replace(run, is_repeat=times in seen))
        seen.add(times)
    return marked


TABLE_RULES: tuple[TableRule, ...] = (unmarked_drafts, repeated_measurement)


def number(row: Row, column: str) -> int:
    """A size as recorded; blank and 0 both mean that nothing is split so."""
    return int(row[column] or 1) or 1


_ALIKE = ("model", "device", "engine", "precision", "prefill_gpus", "decode_gpus")
_SAME = (
    "mode", "input_tokens", "output_tokens", "concurrency", "moe_tp_size", "moe_ep_size", "attention_dp_size",
    "decode_num_workers", "decode_attention_dp_size", "decode_moe_tp_size", "decode_moe_ep_size", "prefill_num_workers",
    "prefill_moe_ep_size",
)  # fmt: skip


SOURCE = "silicon_sample"
DEVICES = {name: name.replace("_", "-") for name in ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")}
MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",  # the same shapes
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-r1",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "zhipuai/GLM-5": "glm-5",
}


def read_silicon(file: Path = SILICON, without: str | None = None) -> list[MeasuredRun]:
    """Every row of the file, none left out, after all rules but the one named by `without`."""
    with file.open(encoding="utf-8", newline="") as lines:
        return ruled(list(csv.DictReader(lines)), without)


def ruled(rows: Sequence[Row], without: str | None = None) -> list[MeasuredRun]:
    """The rows as runs, after all rules but the one named by `without`."""
    runs = [as_recorded(row) for row in rows]
    for rule in ROW_RULES:
        if rule.__name__ != without:
            runs = _noting(rule.__name__, runs, (rule(row, run) for row, run in zip(rows, runs, strict=True)))
    for table_rule in TABLE_RULES:
        if table_rule.__name__ != without:
            runs = _noting(table_rule.__name__, runs, table_rule(rows, runs))
    return runs


def as_recorded(row: Row) -> MeasuredRun:
    """What the row says, taken at its word."""
    is_split = row["mode"] != AGGREGATED
    prefill, decode = (
        {name: number(row, f"{phase * is_split}{name}_size") for name in ("tp", "attention_dp", "moe_ep")}
        for phase in ("prefill_", "decode_")
    )
    return MeasuredRun(
        name=row["id"],
        source=SOURCE,
        model=MODELS[row["model"]],
        device=DEVICES[row["gpu"]],
        engine=row["engine"],
        precision=row["precision"] or "fp4",  # of a blank the least, until a rule says more
        prompt_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        prefill_gpus=prefill["tp"] * prefill["attention_dp"],
        decode_gpus=decode["tp"] * decode["attention_dp"],
        in_flight=int(row["concurrency"]) if row["concurrency"] else None,
        prefill_plan=ServedPlan(tensor=prefill["tp"], experts=prefill["moe_ep"]),
        decode_plan=ServedPlan(tensor=decode["tp"], experts=decode["moe_ep"]),
        ttft_s=float(row["ttft_ms"]) / 1e3,
        tpot_s=float(row["tpot_ms"]) / 1e3,
        is_disaggregated=is_split,
        inferencex_engine=row["engine_version"] if row["origin"] == INFERENCEX else None,
    )


def _noting(name: str, before: Iterable[MeasuredRun], after: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    return [
        new if new == old else replace(new, touched=(*new.touched, name))
        for old, new in zip(before, after, strict=True)
    ]


OVERVIEW_MODELS = {
    "DeepSeek-R1-0528": "deepseek-r1",
    "GPT-OSS-120B": "gpt-oss-120b",
    "GPT-OSS-20B": "gpt-oss-20b",
    "Llama-3.3-70B": "llama-3.1-70b",  # the same shapes
    "Llama-4-Maverick": "llama-4-maverick",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
}
OVERVIEW_DEVICES = {
    "B200": "b200-sxm",
    "GB200": "gb200",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "RTX-PRO-6000-Server": "rtx-pro-6000-bw-server",
}
VLLM_MODELS = {
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "llama-4-scout",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "01-ai/Yi-34B": "yi-34b",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mixtral-8x22b",
    "Qwen/Qwen3-14B": "qwen3-14b",
}
PRECISIONS = {"fp16": "bf16", "fp8": "fp8", "fp4": "fp4"}  # 16-bit types are alike here
ONE_TOKEN = 1  # of a prompt whose length is not recorded


def configuration(model: str) -> dict[str, Any]:
    """The decoder's part of a configuration of `CONFIGS`."""
    fields: dict[str, Any] = json.loads((CONFIGS / model / "config.json").read_text(encoding="utf-8"))
    return {**fields, **fields.get("text_config", {})}


def records_of(file: Path) -> list[Record]:
    """The records of a file of facts."""
    return list(json.loads(file.read_text(encoding="utf-8"))["records"])


def shared(gpus: int, plan: str = "") -> dict[str, Any]:
    """Both phases on the same GPUs; `TP8` is a plan, of any other text nothing is certain to be sent."""
    size = plan.removeprefix("TP")
    made = ServedPlan(tensor=int(size)) if size != plan and size.isdigit() else ServedPlan()
    return {"prefill_gpus": gpus, "decode_gpus": gpus, "prefill_plan": made, "decode_plan": made}


def lengths(record: Record) -> dict[str, int]:
    return {"prompt_tokens": record["input_tokens"], "output_tokens": record["output_tokens"]}


def read_overview(file: Path) -> Iterator[MeasuredRun]:
    """TensorRT-LLM's own table: output per GPU with every request queued at once."""
    for record in records_of(file):
        yield MeasuredRun(
            name=f"{record['model']} {record['gpu']} {record['parallel']} "
            f"{record['input_tokens']}/{record['output_tokens']}",
            source=file.stem,
            model=OVERVIEW_MODELS[record["model"]],
            device=OVERVIEW_DEVICES[record["gpu"]],
            engine="trtllm",
            precision=PRECISIONS[record["precision"]],
            in_flight=None,
            **lengths(record),
            **shared(record["gpus"], record["parallel"]),
            tokens_per_s_per_gpu=record["output_tokens_per_s_per_gpu"],
        )


def read_vllm_latencies(file: Path) -> Iterator[MeasuredRun]:
    """Mean latencies of vLLM under mixes of requests."""
    for record in records_of(file):
        yield lengths_not_recorded(
            record,
            MeasuredRun(
                name=f"{record['experiment']} {record['model']} {record['workload']}",
                source=file.stem,
                model=VLLM_MODELS[record["model"]],
                device="h100-sxm",
                engine="vllm",
                precision=PRECISIONS[record["precision"]],
                prompt_tokens=0,
                output_tokens=0,
                in_flight=None,
                **shared(record["tensor_parallel"], f"TP{record['tensor_parallel']}"),
                ttft_s=record["ttft_mean_ms"] / 1e3,
                tpot_s=record["itl_mean_ms"] / 1e3,
            ),
        )


def lengths_not_recorded(record: Record, run: MeasuredRun) -> MeasuredRun:
    """Where neither lengths nor load are recorded: one prompt token, alone on its GPUs, output from the latencies."""
    decode_ms = record["e2e_mean_ms"] - record["ttft_mean_ms"]
    return replace(
        run,
        prompt_tokens=ONE_TOKEN,
        output_tokens=int(decode_ms / record["itl_mean_ms"]),
        in_flight=1,
        touched=(*run.touched, "lengths_not_recorded"),
    )


def read_nim(file: Path) -> Iterator[MeasuredRun]:
    """One model over concurrencies, past the point where the cache is full."""
    for record in records_of(file):
        yield MeasuredRun(
            name=f"{record['model']} {record['parallel']} c{record['concurrency']}",
            source=file.stem,
            model="llama-3.1-70b",
            device="h100-sxm",
            engine="trtllm",
            precision=record["precision"],
            in_flight=record["concurrency"],
            **lengths(record),
            **shared(record["gpus"], record["parallel"]),
            ttft_s=record["ttft_ms"] / 1e3,
            tpot_s=record["itl_ms"] / 1e3,
        )


def read_two_nodes(file: Path) -> Iterator[MeasuredRun]:
    """DeepSeek-R1 on 16 GPUs, one request at a time, in the checkpoint's own fp8."""
    for record in records_of(file):
        yield MeasuredRun(
            name=f"{record['model']} {record['engine']} {record['input_tokens']}/{record['output_tokens']}",
            source=file.stem,
            model="deepseek-r1",
            device="h100-sxm",
            engine="sglang" if record["engine"].startswith("SGLang") else "not named",
            precision="fp8",
            in_flight=record["concurrency"],
            **lengths(record),
            **shared(record["gpus"]),
            ttft_s=record["ttft_ms"] / 1e3,
            tpot_s=record["tpot_ms"] / 1e3,
        )


DEEPSEEK_OCR = "deepseek-ocr"
PAGE_TOKENS = 274  # BOS and the tokens of one view of 1024 x 1024
JINA_OUT = 605  # the fewest of its pages
README_OUT, README_AT_ONCE = 1080, 100
GUNDAM_TOKENS, PROFILED_OUT = 904, 64

DeepseekRun = tuple[str, int, int, int]  # device, prompt, output, sequences at once
DEEPSEEK_RUNS: dict[str, DeepseekRun] = {
    "dsocr-sglang-mi300x-c1": ("mi300x", 197, 278, 1),
    "dsocr-sglang-mi300x-c100": ("mi300x", 302, 188, 85),
    "dsocr2-sglang-h200-c1": ("h200-sxm", 197, 278, 1),
    "dsocr2-sglang-h200-c100": ("h200-sxm", 302, 188, 86),
    "dsocr-readme-pdf-2500tps": ("a100-sxm-40g", PAGE_TOKENS, README_OUT, README_AT_ONCE),
    "dsocr-hf-rtx5090-llmperfopt": ("rtx-5090", GUNDAM_TOKENS, PROFILED_OUT, 1),
    "dsocr2-hf-rtx3090": ("rtx-3090", PAGE_TOKENS, 1000, 1),
    "dsocr-candle-a100-40g": ("a100-sxm-40g", PAGE_TOKENS, 2000, 1),
}
JINA_DEVICE = "rtx-pro-6000-bw-server"
DECODERS = {
    "MinerU2-VLM 0.9B": "qwen2-0.5b",
    "MinerU2.5": "qwen2-0.5b",
    "MinerU2.5 (untuned vLLM)": "qwen2-0.5b",
    "dots.ocr": "dots-ocr",
    "MonkeyOCR-pro-3B": "qwen2.5-3b",
    "Nanonets-OCR-s": "qwen2.5-3b",
    "PaddleOCR-VL 0.9B": "paddleocr-vl",
    "olmOCR 7B": "qwen2.5-7b",
}
PUBLISHED_DEVICES = {
    "A100-80G": "a100-sxm-80g",
    "A100 (single)": "a100-sxm-80g",  # of the two A100 the faster memory
    "H200 141G": "h200-sxm",
    "RTX 4090 48G": "rtx-4090",
    "RTX 4090": "rtx-4090",
}
NO_RATE = "no time for a token and no rate of tokens"
NO_DEVICE = "the device is not named, or not in the table of devices"
NO_DECODER = "the decoder's hyper-parameters are not written down here"
NO_MEASUREMENT = "a claim, a capacity or a fact, not a measured time"
_UNUSABLE = {
    NO_RATE: "paper-1xA100-40G paper-160xA100-40G vllm-a100-80g-hf vllm-l40s-sagemaker vllm-l4-cloudrun "
    "lightonocr-h100 vllm-b200-smoke",
    NO_MEASUREMENT: "kvcache-capacity flops-llmperfopt 4090-design-claim encoder-cudagraph",
    NO_DEVICE: "unlimitedocr-omnidocbench unlimitedocr-table4 iluvatar-mrv100 mlx-swift rs-macos",
    "the device's public figures differ by a factor of four": "vllm-ascend-910b",
}
UNUSABLE = {f"dsocr-{name}": reason for reason, names in _UNUSABLE.items() for name in names.split()}


def read_published(file: Path) -> tuple[list[MeasuredRun], dict[str, str]]:
    """The runs that a bound can be held to, and for each other record the reason."""
    published = json.loads(file.read_text(encoding="utf-8"))
    runs = [_gpt_fast(published), *(run for record in published["deepseek_ocr"] for run in _deepseek(record))]
    unusable = {record["id"]: UNUSABLE[record["id"]] for record in published["deepseek_ocr"] if _is_unusable(record)}
    for number, record in enumerate(published["similar_ocr_vlms"]):
        name = f"{record['model']}, {record.get('hardware', 'device not named')}, {number}"
        reason = _reason(record)
        if reason is None:
            runs.append(_other_model(name, record))
        else:
            unusable[name] = reason
    return runs, unusable


def _gpt_fast(published: Record) -> MeasuredRun:
    """A compiled model alone on its device, the closest to the bandwidth of all: its context is not stated."""
    general = published["efficiency_priors"]["general"]
    values = next(entry for entry in general if entry["what"].startswith("gpt-fast"))["values"]
    return _published(
        "gpt-fast Llama-2-7B",
        "llama-2-7b",
        "a100-sxm-80g",
        "torch.compile",
        (1, 1, 1),
        tpot_s=1 / values["Llama-2-7B bf16"]["tok_s"],
    )


def _published(
    name: str, model: str, device: str, engine: str, load: tuple[int, int, int | None], **times: float | None
) -> MeasuredRun:
    """On one GPU in bfloat16; the load is prompt, output and sequences at once."""
    prompt, output, at_once = load
    return MeasuredRun(
        name=name,
        source="published",
        model=model,
        device=device,
        engine=engine,
        precision="bf16",
        prompt_tokens=prompt,
        output_tokens=output,
        in_flight=at_once,
        **shared(1),
        **times,
    )


def _is_unusable(record: Record) -> bool:
    return record["id"] not in DEEPSEEK_RUNS and not record["id"].startswith("jinaocr")


def _deepseek(record: Record) -> Iterator[MeasuredRun]:
    name, metric = record["id"], record["metric"]
    if _is_unusable(record):
        return
    jina = (JINA_DEVICE, PAGE_TOKENS, JINA_OUT, int(name.rpartition("-c")[2])) if "jinaocr" in name else None
    device, *load = jina or DEEPSEEK_RUNS[name]
    profiled = metric.get("decode_ms_for_64_tokens")
    yield _published(
        name,
        DEEPSEEK_OCR,
        device,
        _engine(record),
        tuple(load),
        ttft_s=_seconds(metric, ("ttft_ms_mean", "ttft_s_mean", "prefill_ms_mean_incl_vision")),
        tpot_s=_seconds(metric, ("tpot_ms_mean", "tpot_ms", "ms_per_token", "ms_per_token_derived"))
        or (None if profiled is None else min(profiled) / 1e3 / PROFILED_OUT),
        tokens_per_s_per_gpu=metric.get("output_tokens_per_s"),
    )


def _seconds(metric: Record, names: tuple[str, ...]) -> float | None:
    """The first of these that is recorded; of a range the fastest."""
    for name in names:
        if (value := metric.get(name)) is not None:
            fastest = min(value) if isinstance(value, list) else value
            return float(fastest) * (1 if "_s_" in name else 1e-3)
    return None


def _engine(record: Record) -> str:
    text = str(record.get("engine", "")).lower()
    return next((name for name in ("sglang", "vllm", "transformers", "candle") if name in text), "not named")


def _reason(record: Record) -> str | None:
    if "tokens_per_s" not in record:
        return NO_RATE
    if record["model"] not in DECODERS:
        return NO_DECODER
    return None if record["hardware"] in PUBLISHED_DEVICES else NO_DEVICE


def _other_model(name: str, record: Record) -> MeasuredRun:
    load = (1, record.get("tokens_per_page_derived", 1100), None)
    model, device = DECODERS[record["model"]], PUBLISHED_DEVICES[record["hardware"]]
    return _published(name, model, device, _engine(record), load, tokens_per_s_per_gpu=record["tokens_per_s"])


def read_answers(file: Path = SERVING / "aiconfigurator_answers.csv") -> dict[str, tuple[float, float]]:
    """What aiconfigurator 0.12.0 answers: name of the run -> TTFT and TPOT in seconds."""
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["id"]: (float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3) for row in csv.DictReader(lines)}
