"""Changes that `advise` makes in a trace, next to real runs of changed code on this processor.

    python -m benchmarks.advice_measured                        measures what is not measured yet, prints the table
    python -m benchmarks.advice_measured --docs                 puts it on docs/evidence/advice-measured.md
    python -m benchmarks.advice_measured --calibration FILE...  prices by these calibrations

Six small models, each with sizes of its own family, run with random weights before and after each change that a
processor can run, the two by turns: six changes of a forward of 256 tokens, and six of a decode step behind 256 tokens.
Each change is priced by a calibration of the processor, kernels before it less kernels after it. One thread, and the
time that the thread was running, so that other work on the machine does not count. What was measured is kept in
docs/data/advice_measured.json as it comes, so a run can be continued. Takes about twenty minutes of one core.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import llm_perf_opt as lpo
from benchmarks.advice_retraced import CONFIGS, join_matmuls
from benchmarks.pages import DOCS, share, show_sections, signed, table
from benchmarks.runner import load_records, parser, save_records
from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.pricing import code_kernels
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.hardware.calibration import Calibration, measured_device, read_calibration
from llm_perf_opt.measurements.calibrate.calibrate import calibrate, device_name
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.matmuls import weight_matmul_work
from llm_perf_opt.ops.op import CalibratedWork, Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.calibrated_rates import CalibratedRates, scattered_inputs, time_at
from llm_perf_opt.timing.rates import OpRun, Overhead, RateTime

RECORD = DOCS / "data" / "advice_measured.json"
TOKENS, ROUNDS, WARM_UP = 256, 11, 2
HEAD_WIDTH = 64  # that the calibration measures attention with
MOST_SEQUENCES = 8
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
    """A change and how the code is built before and after it; `prepare` changes the model that was built.

    `is_step`: of a decode step behind `TOKENS` tokens; else of a forward of as many. `sequences` run together after it.
    """

    change: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    models: tuple[str, ...] = tuple(MODELS)
    prepare: Callable[[Any], Any] | None = None
    is_step: bool = False
    sequences: int = 1

    @property
    def name(self) -> str:
        """As the table says it."""
        return f"{self.change}, decode step" if self.is_step else self.change


GROUPED = {"experts_implementation": "grouped_mm"}
_FORWARD = (
    Case(change="fused-attention", before={"attn_implementation": "eager"}, after={}),
    Case(change="grouped-experts", before={"experts_implementation": "eager"}, after=GROUPED, models=WITH_EXPERTS),
    Case(change="half-precision", before={}, after={"dtype": "bfloat16"}),
    Case(change="joined-matmuls", before={}, after={}, prepare=join_matmuls),
)
_COMPILED = Case(change="compiled", before={}, after={}, prepare=torch.compile)
CASES = (
    *_FORWARD,
    Case(change="last-logits", before={"logits_to_keep": 0, "use_cache": True}, after={"use_cache": True}),
    *(replace(case, is_step=True) for case in _FORWARD),
    Case(change="larger-batch", before={}, after={}, is_step=True, sequences=MOST_SEQUENCES),
    _COMPILED,
    replace(_COMPILED, is_step=True),
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


class DecodeStep(torch.nn.Module):
    """A model that decodes one token of each sequence, behind keys and values that are handed in."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *cached: torch.Tensor) -> Any:
        """The logits of the next token."""
        cache = DynamicCache()
        for layer in range(len(cached) // 2):
            cache.update(cached[2 * layer], cached[2 * layer + 1], layer)
        return self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


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


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def call_of(case: Case, model: Any, settings: Mapping[str, Any], sequences: int = 1) -> Call:
    """What is called and with what: the prompt and which logits are made of it, or a step behind it."""
    ids = torch.arange(sequences * TOKENS).reshape(sequences, TOKENS) * 31 % SMALL["vocab_size"]
    if not case.is_step:
        keep = {"use_cache": settings.get("use_cache", False), "logits_to_keep": settings.get("logits_to_keep", 1)}
        return model, (ids,), keep
    device = next(model.parameters()).device
    with torch.inference_mode(), ExitStack() as patched:
        for layer in model.model.layers if device.type == "meta" else ():  # the cache does not depend on experts
            patched.enter_context(mock.patch.object(layer.mlp, "forward", lambda states: states))
        cache = model(ids.to(device), use_cache=True, logits_to_keep=1).past_key_values
    cached = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    if device.type == "meta":
        cached = [torch.zeros_like(tensor, device="cpu") for tensor in cached]
    return DecodeStep(model), (ids[:, -1:], *cached), {}


def measured(case: Case, name: str, folder: Path) -> dict[str, list[float]]:
    """Seconds of forwards before and after the change, by turns."""
    runs: dict[str, Call] = {}
    for side, settings, sequences in (("before", case.before, 1), ("after", case.after, case.sequences)):
        model = build(name, folder, settings, "cpu")
        called, ids, options = call_of(case, model, settings, sequences)
        if side == "after" and case.prepare is not None:
            prepared = case.prepare(called)
            called = called if prepared is None else prepared
        runs[side] = called, ids, options
    seconds: dict[str, list[float]] = {side: [] for side in runs}
    gc.collect()
    gc.disable()
    with torch.inference_mode():
        for turn in range(-WARM_UP, ROUNDS):
            for side, (called, ids, options) in runs.items():
                started = time.thread_time()
                called(*ids, **options)
                if turn >= 0:
                    seconds[side].append(time.thread_time() - started)
    gc.enable()
    return seconds


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of kernels on the calibrated machine: those of the code by their ops, all others by their work."""

    rates: CalibratedRates

    def of(self, setup: Setup, *, calls_modules: bool = True) -> float:
        """One forward of the changed code."""
        graph = setup.graphs[0]
        own = self._own(graph)
        kernels: Counter[Kernel] = Counter()
        for counts in code_kernels(graph, setup.rules).values():
            kernels += counts
        calls = len(calls_of(graph).path) * _seconds(self.rates.duration(Overhead.MODULE_CALL))
        return (calls if calls_modules else 0.0) + sum(
            (own[kernel] if kernel in own else self._by_work(kernel)) * count for kernel, count in kernels.items()
        )

    def _own(self, graph: CallGraph) -> Mapping[Kernel, float]:
        """Each kernel of the code as it is written: what its ops take on average."""
        ops, times = ops_of(graph).kind, defaultdict[Kernel, list[float]](list)
        for row, scattered in enumerate(scattered_inputs(graph)):
            kind = graph.op_kinds[ops[row]]
            kernels, known = kernels_of(kind), self.rates.duration(OpRun(kind, scattered))
            for kernel in kernels if known is not None else ():
                times[kernel].append(_seconds(known) / len(kernels))
        return {kernel: statistics.mean(seconds) for kernel, seconds in times.items()}

    def _by_work(self, kernel: Kernel) -> float:
        work, calibration = work_of(kernel), self.rates.calibration
        rate = calibration.table(work.family, work.dtype)
        if rate is None:
            raise SystemExit(f"The calibration has no {work.family} in {work.dtype}.")
        return time_at(rate, work.sizes).median_s * work.times


def _seconds(times: Sequence[RateTime] | None) -> float:
    return sum(time.band.expected or 0.0 for time in times or ())


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


def predicted(case: Case, name: str, folder: Path, calibration: Calibration) -> float:
    """The share that the change saves, by the prices of all kernels before and after it."""
    prices, device = Prices(CalibratedRates(calibration)), measured_device(calibration)

    def setup_of(sequences: int) -> Setup:
        called, ids, options = call_of(case, build(name, folder, case.before, "meta"), case.before, sequences)
        graph = lpo.trace(called, ids, options).graphs[0]
        named = replace(graph, workload={**graph.workload, "dtype": "float32"})  # what a named model says of itself
        return Setup(graphs=(named,), hardware=device)

    before = setup_of(1)
    if case.sequences > 1:  # another batch is another trace
        return 1 - prices.of(setup_of(case.sequences)) / prices.of(before) / case.sequences
    after = CHANGES.get(case.change).apply(before)
    if after is None:
        raise SystemExit(f"{case.change} does not apply to {name}")
    is_compiled = case.change == "compiled"
    return 1 - prices.of(after, calls_modules=not is_compiled) / prices.of(before)


def measure(folder: Path) -> dict[str, dict[str, Any]]:
    """Every change of every model that has the code for it; what was measured before is kept."""
    header = {"machine": device_name("cpu"), "torch": torch.__version__}
    for case in CASES:
        for name in case.models:
            key = f"{case.name}: {name}"
            if key in load_records(RECORD):
                continue
            torch.compiler.reset()
            seconds = measured(case, name, folder)
            save_records(RECORD, header, {**load_records(RECORD), key: seconds})
            logging.info("%s: %s", key, {side: statistics.median(times) for side, times in seconds.items()})
    return load_records(RECORD)


def rows(records: Mapping[str, Mapping[str, Any]], folder: Path, calibration: Calibration) -> Iterator[Row]:
    """What was measured so far, next to what is predicted."""
    for case in CASES:
        for name in case.models:
            record = records.get(f"{case.name}: {name}")
            if record is None:
                continue
            sides = zip(record["before"], record["after"], strict=True)
            saved = [1 - new / old / case.sequences for old, new in sides]
            low, _, high = statistics.quantiles(saved, n=4)
            row = Row(
                change=case.name,
                model=name,
                before_s=statistics.median(record["before"]),
                measured=statistics.median(saved),
                spread=high - low,
                predicted=predicted(case, name, folder, calibration),
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
    pairs = sum(len(case.models) for case in CASES)
    whole = "" if len(compared) == pairs else f" of {pairs}, the others are not measured yet"
    return (
        f"{len(compared)} pairs of real runs{whole}. {len(told)} differ by more than their spread, and {right} of "
        f"these change in the predicted direction. The rank correlation of predicted and measured savings is "
        f"{order:.2f}. Half of the predictions are within {100 * apart:.0f} percentage points.\n\n"
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


def calibration_of(files: Sequence[Path]) -> Calibration:
    """The tables of these files together; without files the processor is calibrated in both types."""
    parts = [read_calibration(file) for file in files] or [
        calibrate(threads=1, clock="cpu", rounds=1, dtype=dtype) for dtype in ("bfloat16", "float32")
    ]
    return replace(parts[0], tables=tuple(table for part in parts for table in part.tables))


def main() -> None:
    made: argparse.ArgumentParser = parser(__doc__, docs="write the page")
    made.add_argument("--calibration", type=Path, nargs="*", default=(), metavar="FILE", help="of this processor")
    made.add_argument("--kept", action="store_true", help="measure nothing more")
    options = made.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core, so that its caches stay its own
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        records = load_records(RECORD) if options.kept else measure(folder)
        compared = list(rows(records, folder, calibration_of(options.calibration)))
    show_sections("evidence/advice-measured", {"measured": text_of(compared)}, is_written=options.docs)


if __name__ == "__main__":
    main()
