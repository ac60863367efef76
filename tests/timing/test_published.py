"""Predictions for DeepSeek-OCR against the RTX 5090 records and against what was published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published_throughput import (
    DATA,
    PAGE,
    REASONS,
    by_id,
    decode_graph,
    decode_step_row,
    facts,
    predicted_decode,
    predicted_prefill,
    prefill_graph,
    rtx5090_rows,
    sections,
)
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds, ops_of
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.lower_bound import BoundBy

MEASURED = by_id(facts("deepseek_ocr/measured-gpu.json"))
SUMMARY = MEASURED["rtx5090-derived-summary"]["metrics"]
PUBLISHED = facts("published.json")
FAMILY_OF_OP = {  # the families of the kernel summary, and the ops that launch their kernels
    "matmul": ("linear", "matmul"),
    "copy_cat_cast": ("to", "cat", "reshape", "contiguous", "clone", "pad"),
    "index_sort_topk": ("topk", "scatter", "argsort", "index", "index_put", "embedding"),
    "reduce": ("mean", "sum"),
    "attention": ("scaled_dot_product_attention",),
}
FAMILY_ON_PAGE = {
    "matmul": "matmuls",
    "elementwise": "elementwise, softmax",
    "copy_cat_cast": "copies, casts, concatenations",
    "index_sort_topk": "index, sort, top-k",
    "reduce": "reductions",
    "attention": "attention",
}


@pytest.mark.slow
def test_on_an_rtx_5090_the_bound_lies_below_and_the_band_around_every_measured_time() -> None:
    rows = list(rtx5090_rows(MEASURED))
    assert len(rows) == 7
    for row in rows:
        assert row.bound < min(row.published), row.metric
        assert row.is_inside, (row.metric, row.low, row.published, row.high)
    busy = next(row for row in rows if row.metric == "vision and prefill, device busy")
    assert busy.published == (65.692, 68.23)


@pytest.mark.slow
def test_no_timing_record_beats_the_bound() -> None:
    """Traced runs too, warm or cold: a bound is a bound."""
    prefill_ms = sum(stage.lower_bound.seconds for stage in predicted_prefill()) * 1e3
    decode_ms = predicted_decode().lower_bound.seconds * 1e3
    timings = [record for record in MEASURED.values() if record["category"] == "stage_timing"]
    assert len(timings) == 6
    for record in timings:
        assert prefill_ms < record["derived"]["prefill_ms"]["warm_est"] < record["metrics"]["prefill_ms"]["mean"]
        assert decode_ms < record["metrics"]["decode_ms"]["mean"] / 64


@pytest.mark.slow
def test_on_an_rtx_5090_decode_is_bound_by_its_launches() -> None:
    decode = predicted_decode()
    assert decode.bound_by is BoundBy.LAUNCHES
    for milliseconds in SUMMARY["decode_ms_per_token"]["untraced_runs"]:
        assert decode.lower_bound.seconds < milliseconds / 1e3
        assert decode.wall.holds(milliseconds / 1e3)
    assert decode.device_time.high < decode.wall.low * 1.01, "the device waits even at its slowest"
    assert decode.work.must_read_bytes == pytest.approx(
        SUMMARY["decode_bytes_per_token"]["weights"] + 913 * 61_440, rel=1e-3
    )


def launches_by_family(graph: CallGraph) -> Counter[str]:
    """The launches of a trace in the families of the profile; what none of them names is elementwise."""
    kinds = count_kinds(graph, range(preparation(graph).stop, len(ops_of(graph).kind)))
    counted: Counter[str] = Counter()
    for kind, count in kinds.items():
        name = packet_of(kind.name).removeprefix("aten.")
        family = next((family for family, ops in FAMILY_OF_OP.items() if name in ops), "elementwise")
        counted[family] += count * len(kernels_of(kind))
    return counted


def page_section(title: str) -> str:
    """The text below a heading of the page, up to the next one above it."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n### {title}\n")[2]
    return text.partition("\n## ")[0]


@pytest.mark.slow
def test_the_launches_of_the_trace_are_those_of_the_profiler_but_for_named_families() -> None:
    """Matmuls and reductions agree; casts, sorting and split attention account for what is missing."""
    counted = launches_by_family(decode_graph(913))
    families = MEASURED["rtx5090-kernels-decode"]["metrics"]["by_family"]
    profiled = {family: families[family]["launches"] / 64 for family in families}
    profiled["matmul"] = profiled.pop("gemv") + profiled.pop("gemm")
    profiled["elementwise"] += profiled.pop("softmax")
    assert sum(profiled.values()) == SUMMARY["decode_kernel_launches_per_token"] == 1219
    assert counted.total() == predicted_decode().launches == 1114
    assert abs(counted["matmul"] - profiled["matmul"]) <= 1
    assert abs(counted["reduce"] - profiled["reduce"]) <= 2
    assert profiled["attention"] == 2 * counted["attention"]
    for family, count in profiled.items():
        assert 0 <= count - counted[family] <= 46, family
    section = page_section("Launches on the RTX 5090")
    rows = [line.strip("| ").split(" | ")[:3] for line in section.splitlines() if line.startswith("| ")][1:]
    assert {name: (int(profiler), int(trace)) for name, profiler, trace in rows} == {
        FAMILY_ON_PAGE[family]: (count, counted[family]) for family, count in profiled.items()
    }
    assert "The trace counts 1,114 launches in a decode step; the profiler counted 1,219." in section


@pytest.mark.slow
def test_the_prefill_lacks_copies_and_index_kernels_and_no_others() -> None:
    counted = launches_by_family(prefill_graph(9))
    measured = MEASURED["rtx5090-kernels-prefill"]["metrics"]
    profiled = {family: measured["by_family"][family]["launches"] for family in measured["by_family"]}
    named = ("copy_cat_cast", "index_sort_topk")
    copies, indices = ((counted[family], profiled[family]) for family in named)
    others = [sum(counts[family] for family in counts if family not in named) for counts in (counted, profiled)]
    assert sum(profiled.values()) == measured["kernel_launches"] == SUMMARY["prefill_kernel_launches"]
    assert counted.total() == sum(stage.launches for stage in predicted_prefill())
    assert others[0] >= others[1]
    told = (
        f"The prefill has {counted.total():,} against {measured['kernel_launches']:,}. "
        f"Copies, casts and concatenations are {copies[0]:,} against {copies[1]:,}, "
        f"index, sort and top-k {indices[0]:,} against {indices[1]:,}; "
        f"of all others the trace has {others[0]:,}, the profile {others[1]:,}."
    )
    assert told in " ".join(page_section("Launches on the RTX 5090").split())


@pytest.mark.slow
def test_the_prefill_counts_as_the_closed_form_does() -> None:
    stages = predicted_prefill()
    assert sum(stage.work.flops for stage in stages) == pytest.approx(SUMMARY["prefill_flops"], rel=0.001)
    launches = sum(stage.launches for stage in stages)
    assert launches == pytest.approx(MEASURED["rtx5090-kernels-prefill"]["metrics"]["kernel_launches"], rel=0.15)
    assert prefill_graph(9).workload["context_tokens"] == 913


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dsocr-sglang-mi300x-c1", "dsocr-sglang-mi300x-c100"])
def test_a_decode_step_of_an_optimised_engine_lies_in_the_band(name: str) -> None:
    row = decode_step_row(name, by_id(PUBLISHED["deepseek_ocr"])[name]["metric"])
    assert row.is_possible
    assert row.is_inside
    stored = next(row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"] if row["record"] == name)
    assert (row.bound, row.low, row.high) == pytest.approx((stored["bound"], stored["low"], stored["high"]), rel=1e-3)


def test_every_record_is_predicted_or_has_a_reason() -> None:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    predicted = {row["record"] for row in data["rows"]}
    for record in PUBLISHED["deepseek_ocr"]:
        assert (record["id"] in predicted) != (record["id"] in REASONS), record["id"]
    assert len(PUBLISHED["similar_ocr_vlms"]) == int(data["unusable"][-1]["record"].split()[0])


def test_the_page_shows_the_figures_of_the_data_file() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    for name, text in sections(data).items():
        assert text in page, name
    assert all(row["is_possible"] for row in data["rows"])


def test_the_published_column_is_what_the_facts_say() -> None:
    """The data file repeats figures of the facts; none of them was changed on the way."""
    records = by_id(PUBLISHED["deepseek_ocr"])
    rows = [row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"] if row["record"] in records]
    assert len(rows) >= 20
    for row in rows:
        values = [v for v in records[row["record"]]["metric"].values() if isinstance(v, (int, float))]
        scaled = [*values, *(value * 1e3 for value in values)]
        assert any(row["published"][0] == pytest.approx(value) for value in scaled), row["record"]


def test_the_script_stands_where_the_page_says() -> None:
    assert (Path(__file__).parents[2] / "benchmarks" / "published_throughput.py").is_file()
    assert "python -m benchmarks.published_throughput --docs" in PAGE.read_text(encoding="utf-8")
