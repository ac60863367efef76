"""The RTX 5090 records: prefill, decode and single calls of one profiled run of the released code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.lower_bound import lower_bound
from llm_perf_opt.analyses.time.predict import StageTime, predict, stage_time
from llm_perf_opt.analyses.time.rates import Band
from llm_perf_opt.analyses.time.stage_work import work_of
from llm_perf_opt.core.callgraph.queries import count_kinds, ops_in_module
from llm_perf_opt.core.hardware import find_device

from .cases import Row
from .traced import decode_graph, prefill_graph

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
    return Row(
        record=record,
        metric=metric,
        unit="ms",
        published=tuple(round(figure, 3) for figure in published),
        bound=bound_s * 1e3,
        low=band.low * 1e3,
        high=band.high * 1e3,
        device=DEVICE,
        execution=Execution.EAGER,
        assumed="913 tokens, flash attention",
    )


def _sum(bands: list[Band]) -> Band:
    return Band(sum(band.low for band in bands), sum(band.high for band in bands))


def _ends(figures: list[float]) -> tuple[float, ...]:
    return min(figures), max(figures)
