"""Compare eight recordings of eager PyTorch with predictions; --docs writes docs/evidence/eager-kernels.md.

    python -m benchmarks.eager_kernels [--docs]

Reads tests/facts/gpu_traces, traces the four models without weights, and times every kernel. About a minute.
DeepSeek-OCR is that of an RTX 5090: one page of 2 x 3 crops with 913 tokens, then one decode step. Its records and
their caveats are in tests/facts/deepseek_ocr/measured-gpu.json.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import llm_perf_opt as lpo
from benchmarks import pages
from benchmarks.pages import columns, show_sections
from benchmarks.published_throughput import CONTEXT, GUNDAM_TOKENS, decode_graph, prefill_graph
from benchmarks.runner import parser
from llm_perf_opt.core.callgraph import CallGraph, OpKind
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.ops.kernel_names import kernel_meaning, launch_words
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.kernel_rates import table_rates
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rate_sources import recorded_rates
from llm_perf_opt.timing.rates import Band, RateSource, RateTime, total
from tests.measurements.join.condensed_runs import Row, facts, word_of
from tests.measurements.join.traced_models import CONFIGS, traced

# The rates by which `predict` times eager PyTorch on a device: tables and recordings, or recordings alone.

DEVICES = {"h100": "h100-sxm", "mi300": "mi300x"}  # name in a recording -> device


def eager_source(device: str) -> RateSource:
    """The best rates of a device; its data sheet where nothing was measured or recorded."""
    below = DataSheetRates(find_device(device))
    return table_rates(below) or recorded_rates(below) or below


def durations(device: str) -> Callable[[Kernel], RateTime]:
    """Kernel -> the time of one launch, with its band and origin."""
    source, known = eager_source(device), dict[Kernel, RateTime]()

    def of(kernel: Kernel) -> RateTime:
        if kernel not in known:
            times = source.duration(kernel)
            assert times is not None, kernel
            known[kernel] = times[0]
        return known[kernel]

    return of


FORWARDS = {"owlv2-large": 5}  # in the recorded step, one for each of the texts; 1 where not listed


@cache
def recorded_graph(model: str) -> CallGraph:
    """The call graph of one recorded forward."""
    if model == "owlv2-large":
        with _queries_scaled():
            traced.cache_clear()
            graph = traced(model)
        traced.cache_clear()
        return graph
    if model == "qwen1.5-0.5b":
        return _qwen()
    return traced(model)


@contextmanager
def _queries_scaled() -> Iterator[None]:
    """Attention of OWLv2 as in the recorded release."""
    import torch
    from transformers.models.owlv2.modeling_owlv2 import Owlv2Attention

    def forward(
        self: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        batch, tokens, width = hidden_states.shape

        def heads(values: torch.Tensor) -> torch.Tensor:
            split = values.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2).contiguous()
            return split.view(batch * self.num_heads, tokens, self.head_dim)

        query = heads(self.q_proj(hidden_states) * self.scale)
        key, value = heads(self.k_proj(hidden_states)), heads(self.v_proj(hidden_states))
        scores = torch.bmm(query, key.transpose(1, 2))
        if attention_mask is not None:
            scores = scores.view(batch, self.num_heads, tokens, tokens) + attention_mask
            scores = scores.view(batch * self.num_heads, tokens, tokens)
        mixed = torch.bmm(torch.nn.functional.softmax(scores, dim=-1), value)
        mixed = mixed.view(batch, self.num_heads, tokens, self.head_dim).transpose(1, 2)
        return self.out_proj(mixed.reshape(batch, tokens, width)), None

    with mock.patch.object(Owlv2Attention, "forward", forward):
        yield


def _qwen() -> CallGraph:
    """Without a cache, which did not copy; operands of attention copied, as with a mask at that time."""
    import torch
    from transformers import Qwen2Config, Qwen2Model
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def contiguous(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(module, query.contiguous(), key.contiguous(), value.contiguous(), *args, **kwargs)

    sizes = {
        name: value for name, value in CONFIGS["qwen1.5-0.5b"].items() if name not in ("architectures", "model_type")
    }
    with torch.device("meta"):
        model = Qwen2Model(Qwen2Config(**sizes, attn_implementation="sdpa")).to(torch.bfloat16).eval()
    tokens = torch.zeros(16, 559, dtype=torch.long)
    with mock.patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {"sdpa": contiguous}):
        return lpo.trace(model, kwargs={"input_ids": tokens, "use_cache": False}).graphs[0]


LAYOUT = "convolution, layout"
Duration = Callable[[Kernel], RateTime]
_MICRO = 1e6
_MATMULS = ("aten::addmm", "aten::mm", "aten::bmm")
_SAME = {
    "sub": "add", "rsub": "add", "div": "mul", "softmax": "softmax", "masked_fill": "where",
    "linalg_norm": "linalg_vector_norm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """What pairs: a word, and a size. The size of layout kernels is not recorded: 0."""

    word: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kind of kernel: recorded and ours. Times are in microseconds, of all its launches."""

    key: Key
    recorded: int = 0
    recorded_us: float = 0.0
    ours: int = 0
    expected_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    in_band: int = 0
    rates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    rows: tuple[Compared, ...]

    def total(self, field: str) -> float:
        return float(sum(getattr(row, field) for row in self.rows))

    @property
    def launch_error(self) -> float:
        return self.total("ours") / self.total("recorded") - 1

    @property
    def time_error(self) -> float:
        return self.total("expected_us") / self.total("recorded_us") - 1

    @property
    def share_in_band(self) -> float:
        return self.total("in_band") / self.total("recorded")


def compared(gpu: str, model: str, duration: Duration) -> Run:
    """A recording next to the trace of its model."""
    _, rows = facts(f"{gpu}-{model}")
    by_key: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[_recorded_key(row)].append(row)
    forwards = FORWARDS.get(model, 1)
    ours: dict[Key, Counter[Kernel]] = defaultdict(Counter)
    for key, kernel, count in _launches(recorded_graph(model)):
        ours[key][kernel] += count * forwards
    compared_rows = [_row(key, by_key[key], ours[key], duration) for key in dict.fromkeys((*by_key, *ours))]
    return Run(
        name=f"{gpu}-{model}", rows=tuple(sorted(compared_rows, key=lambda row: -max(row.recorded_us, row.expected_us)))
    )


def _row(key: Key, recorded: Sequence[Row], ours: Counter[Kernel], duration: Duration) -> Compared:
    times = {kernel: duration(kernel) for kernel in ours}
    bands = [time.band for time in times.values()]
    return Compared(
        key=key,
        recorded=sum(row.count for row in recorded),
        recorded_us=sum(row.count * row.median_us for row in recorded),
        ours=ours.total(),
        expected_us=sum(count * _expected(times[kernel]) for kernel, count in ours.items()),
        low_us=_MICRO * sum(count * times[kernel].band.low for kernel, count in ours.items()),
        high_us=_MICRO * sum(count * times[kernel].band.high for kernel, count in ours.items()),
        in_band=sum(row.count for row in recorded if any(band.holds(row.median_us / _MICRO) for band in bands)),
        rates=tuple(dict.fromkeys(f"{time.source}: {time.rate}" for time in times.values())),
    )


def _expected(time: RateTime) -> float:
    return _MICRO * (time.band.middle if time.band.expected is None else time.band.expected)


def _recorded_key(row: Row) -> Key:
    meaning = kernel_meaning(row.kernel)
    if row.op.endswith("convolution"):
        is_layout = meaning is not None and "convolution" in meaning.helps
        return Key(LAYOUT, 0) if is_layout else Key("convolution", 0)
    if row.op in _MATMULS:
        left, right = row.shapes[-2:]
        return Key("matmul", 2 * math.prod(left) * right[-1])
    word = row.op.removeprefix("aten::").strip("_")
    if "attention" in word:
        return Key("attention", max(map(math.prod, row.shapes)))
    words = word_of(row.op) - {"elementwise", "reduction"}
    word = next(iter(sorted(words)), word)
    return Key(_SAME.get(word, word), max(map(math.prod, row.shapes), default=1))


def _launches(graph: CallGraph) -> Iterator[tuple[Key, Kernel, int]]:
    assert graph.ops is not None
    for number, count in Counter(graph.ops.kind).items():
        kind = graph.op_kinds[number]
        for place, kernel in enumerate(kernels_of(kind)):
            yield _key(kind, kernel, place), kernel, count


def _key(kind: OpKind, kernel: Kernel, place: int) -> Key:
    largest = max((elements(meta) for meta in kind.inputs), default=1)
    if kind.name.startswith("aten.conv"):
        if kernel.kind is KernelKind.MATMUL:
            return Key("convolution", 0)
        return Key("add", elements(kind.outputs[0])) if place == 4 else Key(LAYOUT, 0)
    if kernel.kind is KernelKind.MATMUL:
        return Key("matmul", kernel.flops)
    if kernel.is_helper:
        return Key("copy", kernel.bytes_moved // 4)
    words = launch_words(kind)
    word = words[0].word if words else kind.name
    return Key(_SAME.get(word, word), largest)


RECORDED_ON = "rtx-5090"
OCR_DEVICES = (RECORDED_ON, "h100-sxm", "a100-sxm-40g")
PHASES = ("prefill", "decode")


def measured_rows() -> Iterator[dict[str, Any]]:
    """Per device and phase the band of device and wall, by data sheet and by the best rates, and what was measured."""
    measured = _measured()
    for device in OCR_DEVICES:
        below = DataSheetRates(find_device(device))
        for phase in PHASES:
            plain, best = (_predicted(phase, source) for source in (below, eager_source(device)))
            for what, field in {"device busy": "device_time", "wall": "wall"}.items():
                was, now = (total(getattr(stage, field) for stage in stages) for stages in (plain, best))
                figures = measured.get((phase, what), ()) if device == RECORDED_ON else ()
                yield {
                    "device": device,
                    "phase": phase,
                    "what": what,
                    "measured_ms": list(figures),
                    "by_data_sheet_ms": _ends(was),
                    "band_ms": _ends(now),
                    "width": round(now.high / now.low, 2),
                    "is_inside": all(now.holds(figure / 1e3) for figure in figures) if figures else None,
                }


def _measured() -> dict[tuple[str, str], tuple[float, ...]]:
    records = {record["id"]: record["metrics"] for record in pages.facts("deepseek_ocr/measured-gpu.json")}
    summary = records["rtx5090-derived-summary"]
    busy = records["rtx5090-kernels-prefill"]["gpu_kernel_ms_total"]
    prefills = summary["prefill_ms_warm"]["five_untraced_runs"]
    decodes = summary["decode_ms_per_token"]["untraced_runs"]
    again = records["rtx5090-crosscheck-prefill-gpu"]["prefill_gpu_busy_ms_per_image"]
    return {
        ("prefill", "device busy"): (busy, again),
        ("prefill", "wall"): (min(prefills), max(prefills)),
        ("decode", "device busy"): (summary["decode_gpu_busy_ms_per_token"],),
        ("decode", "wall"): (min(decodes), max(decodes)),
    }


def _predicted(phase: str, source: RateSource) -> tuple[StageTime, ...]:
    graph = prefill_graph(CONTEXT - GUNDAM_TOKENS) if phase == "prefill" else decode_graph(CONTEXT)
    return predict(graph, source)


def _ends(band: Band) -> list[float]:
    return [float(f"{edge * 1e3:.4g}") for edge in (band.low, band.high)]


def ocr_table(rows: Sequence[dict[str, Any]]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    shown = (
        {
            **row,
            "measured": " - ".join(f"{figure:g}" for figure in row["measured_ms"]) or "not measured",
            "inside": words[row["is_inside"]],
        }
        for row in rows
    )
    return columns(
        shown,
        {
            "device": "`{device}`",
            "phase": "{phase}",
            "time": "{what}",
            "measured, ms": "{measured}",
            "band by data sheet": "{by_data_sheet_ms[0]:g} - {by_data_sheet_ms[1]:g}",
            "band": "{band_ms[0]:g} - {band_ms[1]:g}",
            "high / low": "{width:.2f}",
            "inside": "{inside}",
        },
        "lllrrrrl",
    )


DEVELOPED_ON = frozenset({"h100-timesformer-base", "mi300-timesformer-base"})
_LISTED_SHARE = 0.995  # of the recorded time; the rest of a run is one row
_COLUMNS = ("recorded", "recorded_us", "ours", "expected_us", "low_us", "high_us", "in_band")


def as_data(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The runs as the data file holds them: by word, the longest first."""
    return [
        {
            "run": run.name,
            "is_developed_on": run.name in DEVELOPED_ON,
            **{name: round(run.total(name), 1) for name in _COLUMNS},
            "launch_error": round(run.launch_error, 4),
            "time_error": round(run.time_error, 4),
            "share_in_band": round(run.share_in_band, 4),
            "ops": _by_word(run),
        }
        for run in runs
    ]


def _by_word(run: Run) -> list[dict[str, Any]]:
    words = dict.fromkeys(row.key.word for row in run.rows)
    ops: list[dict[str, Any]] = []
    for word in words:
        rows = [row for row in run.rows if row.key.word == word]
        sums = {name: round(float(sum(getattr(row, name) for row in rows)), 1) for name in _COLUMNS}
        origins = dict.fromkeys(rate for row in rows for rate in row.rates)
        ops.append({"op": word, **sums, "origins": list(origins)[:4]})
    return sorted(ops, key=lambda op: -max(op["recorded_us"], op["expected_us"]))


def sections(data: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The marked sections of the page."""
    recordings = ({**run, "mark": " (developed on)" if run["is_developed_on"] else ""} for run in map(_in_ms, data))
    summary = columns(
        recordings,
        {
            "recording": "{run}{mark}",
            "launches recorded": "{recorded:,.0f}",
            "ours": "{ours:,.0f} ({launch_error:+.1%})",
            "kernel time recorded, ms": "{recorded_ms:.2f}",
            "expected": "{expected_ms:.2f} ({time_error:+.1%})",
            "band": "{low_ms:.2f} - {high_ms:.2f}",
            "kernels in band": "{share_in_band:.0%}",
        },
    )
    return {"summary": summary, "by-op": "\n\n".join(_ops(run) for run in data)}


def _in_ms(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, **{name.replace("_us", "_ms"): run[name] / 1e3 for name in _COLUMNS if name.endswith("_us")}}


def _ops(run: dict[str, Any]) -> str:
    listed, seen = _LISTED_SHARE * run["recorded_us"], 0.0
    rows: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for op in run["ops"]:
        (rows if seen < listed else rest).append({**op, "origin": "; ".join(op["origins"])})
        seen += op["recorded_us"] if seen < listed else 0.0
    if rest:
        sums = {name: sum(op[name] for op in rest) for name in _COLUMNS}
        rows.append({"op": f"{len(rest)} others", **sums, "origin": ""})
    forms = {
        "op": "{op}",
        "launches recorded": "{recorded:,.0f}",
        "ours": "{ours:,.0f}",
        "recorded, us": "{recorded_us:,.0f}",
        "expected, us": "{expected_us:,.0f}",
        "band, us": "{low_us:,.0f} - {high_us:,.0f}",
        "in band": "{in_band:,.0f}",
        "origin": "{origin}",
    }
    return f"### {run['run']}\n\n{columns(rows, forms, 'lrrrrrrl')}"


MODELS = ("timesformer-base", "vit-base-224", "qwen1.5-0.5b", "owlv2-large")


def main() -> None:
    options = parser(__doc__, docs="write the tables of the page and its data file").parse_args()
    by_gpu = {gpu: durations(device) for gpu, device in DEVICES.items()}
    runs = as_data(compared(gpu, model, by_gpu[gpu]) for gpu in DEVICES for model in MODELS)
    ocr = list(measured_rows())
    texts = {**sections(runs), "deepseek-ocr": ocr_table(ocr)}
    data = {"runs": runs, "deepseek_ocr": ocr}
    show_sections("evidence/eager-kernels", texts, is_written=options.docs, data=data)


if __name__ == "__main__":
    main()
