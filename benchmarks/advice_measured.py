"""Changes that `advise` makes in a trace, next to real runs of changed code on this processor.

    python -m benchmarks.advice_measured            prints the table
    python -m benchmarks.advice_measured --docs     puts it on docs/evidence/advice-measured.md

Six small models, each with sizes of its own family, run with random weights before and after each change that a
processor can run, the two by turns. The processor is calibrated first, and each change is priced by that calibration:
kernels before the change less kernels after it. One thread, and the time that the thread was running, so that other
work on the machine does not count. Takes about ten minutes.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import llm_perf_opt as lpo
from benchmarks.advice_retraced import CONFIGS, join_matmuls
from benchmarks.pages import share, show_sections, signed, table
from benchmarks.runner import parser
from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.pricing import code_kernels
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.hardware.calibration import Calibration, measured_device
from llm_perf_opt.measurements.calibrate.calibrate import calibrate
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.matmuls import weight_matmul_work
from llm_perf_opt.ops.op import CalibratedWork, Kernel, KernelKind
from llm_perf_opt.timing.calibrated_rates import time_at

TOKENS, ROUNDS = 256, 15
HEAD_WIDTH = 64  # that the calibration measures attention with
SMALL = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 8192}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 352, "max_position_embeddings": 4096}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": {**SMALL, **HEADS},
    "qwen2.5-7b": {**SMALL, **HEADS},
    "qwen3-14b": {**SMALL, **HEADS, "layer_types": ["full_attention"] * 4},
    "mixtral-8x7b": {**SMALL, **HEADS, "intermediate_size": 704},
    "qwen3-30b-a3b": {**SMALL, **HEADS, **EXPERTS, "num_experts": 16, "num_experts_per_tok": 4},
    "deepseek-r1": {
        **SMALL,
        **EXPERTS,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
    },
}
WITH_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-r1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change and how the code is built before and after it; `prepare` changes the model that was built."""

    change: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    models: tuple[str, ...] = tuple(MODELS)
    prepare: Callable[[Any], Any] | None = None


GROUPED = {"experts_implementation": "grouped_mm"}
CASES = (
    Case(change="fused-attention", before={"attn_implementation": "eager"}, after={}),
    Case(change="last-logits", before={"logits_to_keep": 0, "use_cache": True}, after={"use_cache": True}),
    Case(change="grouped-experts", before={"experts_implementation": "eager"}, after=GROUPED, models=WITH_EXPERTS),
    Case(change="half-precision", before={}, after={"dtype": "bfloat16"}),
    Case(change="joined-matmuls", before={}, after={}, prepare=join_matmuls),
    Case(change="compiled", before={}, after={}, prepare=torch.compile),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One change of one model: seconds of a forward before it, shares of them that it saves, and the spread of that."""

    change: str
    model: str
    before_s: float
    measured: float
    spread: float
    predicted: float

    @property
    def is_told_apart(self) -> bool:
        """Whether the measured change is beyond its spread."""
        return abs(self.measured) > self.spread

    @property
    def has_right_sign(self) -> bool:
        """Whether it is faster or slower as predicted."""
        return (self.measured > 0) == (self.predicted > 0)


def build(name: str, folder: Path, settings: Mapping[str, Any], device: str) -> Any:
    """A small model of the family, with random weights or, on the meta device, with none."""
    config = json.loads((CONFIGS / name / "config.json").read_text())
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config | MODELS[name]))
    built = {"attn_implementation": "sdpa", **settings}
    for name_of_call in ("logits_to_keep", "use_cache"):
        built.pop(name_of_call, None)
    if name in WITH_EXPERTS:
        built = GROUPED | built
    dtype = getattr(torch, built.pop("dtype", "float32"))
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype, **built).eval()


def arguments(settings: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The prompt, and which logits are made of it."""
    ids = torch.arange(TOKENS).reshape(1, TOKENS) * 31 % SMALL["vocab_size"]
    return ids, {"use_cache": settings.get("use_cache", False), "logits_to_keep": settings.get("logits_to_keep", 1)}


def measured(case: Case, name: str, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of forwards before and after the change, by turns."""
    runs = []
    for settings in (case.before, case.after):
        model = build(name, folder, settings, "cpu")
        if settings is case.after and case.prepare is not None:
            prepared = case.prepare(model)
            model = model if prepared is None else prepared
        ids, options = arguments(settings)
        runs.append((model, ids, options))
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for model, ids, options in runs:
            for _ in range(2):
                model(ids, **options)
        for _ in range(ROUNDS):
            for (model, ids, options), times in zip(runs, seconds, strict=True):
                started = time.thread_time()
                model(ids, **options)
                times.append(time.thread_time() - started)
    return seconds


def predicted(case: Case, name: str, folder: Path, calibration: Calibration) -> tuple[float, float]:
    """Seconds of all kernels before and after the change, as the calibration prices them."""
    model = build(name, folder, case.before, "meta")
    ids, options = arguments(case.before)
    graph = lpo.trace(model, (ids,), options).graphs[0]
    graph.workload["dtype"] = "float32"  # what a named model says of itself
    before = Setup(graphs=(graph,), hardware=measured_device(calibration))
    after = CHANGES.get(case.change).apply(before)
    if after is None:
        raise SystemExit(f"{case.change} does not apply to {name}")
    first, second = (
        sum(
            kernel_s(kernel, calibration) * count
            for counts in code_kernels(setup.graphs[0], setup.rules).values()
            for kernel, count in counts.items()
        )
        for setup in (before, after)
    )
    return first, second


def kernel_s(kernel: Kernel, calibration: Calibration) -> float:
    """The time of one launch, by the family of work that is like it."""
    work = work_of(kernel)
    found = calibration.table(work.family, work.dtype)
    if found is None:
        raise SystemExit(f"The calibration has no {work.family} in {work.dtype}.")
    return time_at(found, work.sizes).median_s * work.times


def work_of(kernel: Kernel) -> CalibratedWork:
    """Matmuls and attention by their shapes; all else as a copy of as many bytes as are left to move."""
    shape = kernel.shape
    if isinstance(shape, MatmulShape) and shape.count == 1:
        return weight_matmul_work(kernel.dtype, shape.rows, shape.columns, shape.depth)
    if isinstance(shape, MatmulShape):
        sizes = {"batch": shape.count, "rows": shape.rows, "columns": shape.columns, "depth": shape.depth}
        return CalibratedWork(family="batched_matmul", dtype=kernel.dtype, sizes=sizes)
    if isinstance(shape, AttentionShape):
        sizes = {"heads": shape.sequences * shape.heads, "tokens": (shape.queries * shape.keys) ** 0.5}
        times = shape.width / HEAD_WIDTH
        return CalibratedWork(family="attention", dtype=kernel.dtype, sizes=sizes, times=times)
    if kernel.kind is not KernelKind.VECTOR and kernel.rows and kernel.weights:
        side = max(1, round(kernel.weights**0.5))
        return weight_matmul_work(kernel.dtype, kernel.rows, side, side)
    moved = kernel.bytes_moved - kernel.avoidable_bytes
    return CalibratedWork(family="copy", dtype="float32", sizes={"elements": max(1.0, moved / 2 / 4)})


def rows(calibration: Calibration) -> Iterator[Row]:
    """Every change of every model that has the code for it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for case in CASES:
            for name in case.models:
                before, after = measured(case, name, folder)
                saved = [1 - new / old for old, new in zip(before, after, strict=True)]
                low, _, high = statistics.quantiles(saved, n=4)
                first, second = predicted(case, name, folder, calibration)
                row = Row(
                    change=case.change,
                    model=name,
                    before_s=statistics.median(before),
                    measured=statistics.median(saved),
                    spread=high - low,
                    predicted=1 - second / first,
                )
                logging.info("%s", row)
                yield row


def ranks(values: list[float]) -> list[float]:
    """The place of each value in order."""
    order = sorted(values)
    return [float(order.index(value)) for value in values]


def text_of(compared: list[Row]) -> str:
    """Markdown: how many signs are right, how alike the orders are, and every pair."""
    told = [row for row in compared if row.is_told_apart]
    right = sum(row.has_right_sign for row in told)
    order = statistics.correlation(
        *map(ranks, ([row.measured for row in compared], [row.predicted for row in compared]))
    )
    apart = statistics.median(abs(row.measured - row.predicted) for row in compared)
    return (
        f"{len(compared)} pairs of real runs. {len(told)} differ by more than their spread, and {right} of these "
        f"change in the predicted direction. The rank correlation of predicted and measured savings is {order:.2f}. "
        f"Half of the predictions are within {100 * apart:.0f} percentage points.\n\n"
        + table(
            ("change", "model", "before", "saved, measured", "spread", "saved, predicted", "sign"),
            (
                (
                    row.change,
                    row.model,
                    f"{1e3 * row.before_s:.1f} ms",
                    signed(row.measured),
                    share(row.spread),
                    signed(row.predicted),
                    "within the spread" if not row.is_told_apart else "right" if row.has_right_sign else "wrong",
                )
                for row in compared
            ),
            "llrrrrl",
        )
    )


def main() -> None:
    options = parser(__doc__, docs="write the page").parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    half, single = (calibrate(threads=1, clock="cpu", rounds=1, dtype=dtype) for dtype in ("bfloat16", "float32"))
    compared = list(rows(replace(half, tables=(*half.tables, *single.tables))))
    show_sections("evidence/advice-measured", {"measured": text_of(compared)}, is_written=options.docs)


if __name__ == "__main__":
    main()
