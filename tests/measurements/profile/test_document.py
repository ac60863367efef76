"""`metrics.json` and the report say the same, and both can be written whatever is unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import MeasuredKernel, OperatorTime
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import BarChart, LineChart, SpanChart
from llm_perf_opt.measurements import profile as profile_analysis
from llm_perf_opt.measurements.profile import WorkloadCosts, join_run, metrics_document, profile_report
from tests.measurements.profile.made_runs import DEVICE, MS, made_costs, made_page, made_pass, made_work

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((Path(profile_analysis.__file__).parent / "metrics.schema.json").read_text("utf-8"))
COSTS = made_costs(
    made_work("sam", 8 * 10**9, 10**8), made_work("prefill", 6 * 10**9, 10**8), made_work("decode", 10**9, 10**9)
)
PAGE = made_page(made_pass(20, 10, (3, 5)), made_pass(22, 12, (4, 6)), cold=made_pass(60, 30, (9, 9)))
OPERATORS = (
    OperatorTime(stage="sam", operator="aten::mm", calls=3, self_ns=9 * MS, total_ns=9 * MS, device_ns=None),
    OperatorTime(stage="decode", operator="aten::mm", calls=4, self_ns=2 * MS, total_ns=2 * MS, device_ns=None),
)
CASES = {
    "all known": ([PAGE, made_page(made_pass(21, 11, (4, 4)), image="b.png")], [COSTS, COSTS], DEVICE),
    "no device": ([PAGE], [COSTS], None),
    "no costs": ([PAGE], [None], DEVICE),
    "no decode": ([made_page(made_pass(20, 10, ()))], [None], None),
}


def document(case: str) -> dict[str, object]:
    pages, costs, device = CASES[case]
    figures = join_run(pages, costs, device, "float32")
    return metrics_document(
        tool_version="0",
        model="made",
        request={name: {} for name in ("model", "workload", "device", "run", "static_analysis", "profiler")},
        device=device,
        dtype="float32",
        figures=figures,
        pages=pages,
        costs=costs,
        notes=["a note"],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_document_follows_the_schema(case: str) -> None:
    found = json.loads(json.dumps(document(case), allow_nan=False))
    jsonschema.validate(found, SCHEMA)


def test_equal_costs_are_written_once() -> None:
    found = json.loads(json.dumps(document("all known")))
    assert len(found["costs"]) == 1
    assert [page["costs_index"] for page in found["pages"]] == [0, 0]


def test_a_key_of_which_nobody_knows_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(json.dumps(document("no costs"))), "speed": 1}, SCHEMA)


def test_the_page_on_the_file_names_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "metrics-file.md").read_text("utf-8")
    assert [key for key in SCHEMA["properties"] if f"`{key}`" not in page] == []


def report(pages: list[object], costs: list[WorkloadCosts | None], device: Device | None):  # type: ignore[no-untyped-def]
    return profile_report(
        model="made",
        figures=join_run(pages, costs, device, "float32"),  # type: ignore[arg-type]
        pages=pages,  # type: ignore[arg-type]
        operators=OPERATORS,
        kernels=(MeasuredKernel(name="gemm<&>", stage=None, calls=2, total_ns=MS),),
        device=device,
        dtype="float32",
        notes=(),
    )


@pytest.mark.parametrize("format_name", REPORTERS.names())
@pytest.mark.parametrize("case", CASES)
def test_every_format_shows_it(case: str, format_name: str) -> None:
    text = REPORTERS.get(format_name)().render(report(*CASES[case]))
    assert "Time by stage" in text
    assert ("Efficiency by stage" in text) == (case == "all known")


def test_figures_that_nobody_verified_are_told() -> None:
    doubtful = ("memory_gb", "bandwidth_gb_per_s", "peak_tflops_dense.bf16", "peak_tflops_dense.fp32")
    pages, costs, _ = CASES["all known"]
    texts = [note.text for note in report(pages, costs, replace(DEVICE, unverified=doubtful)).notes]
    (told,) = [text for text in texts if "not read in a source" in text]
    assert told.endswith(": bandwidth_gb_per_s, peak_tflops_dense.fp32.")  # the run was in float32
    assert not [note for note in report(pages, costs, DEVICE).notes if "source" in note.text]


def test_pictures_of_a_run() -> None:
    made = report(*CASES["all known"])
    charts = {chart.title: chart for chart in made.charts}
    assert list(charts) == [
        *("Stages of page.png", "Roofline", "Latency of a decode step", "Operators by own time", "Memory")
    ]
    waterfall = charts["Stages of page.png"]
    assert isinstance(waterfall, SpanChart)
    ends = [span.end for span in waterfall.spans]
    assert [span.start for span in waterfall.spans[1:]] == pytest.approx(ends[:-1])  # one after the other
    assert [span.name for span in waterfall.spans][-2:] == ["sampling, 3 times", "decode, 2 times"]
    assert ends[-1] == pytest.approx(sum(median_s for median_s in (2e-3, 21e-3, 11e-3, 3e-3, 9e-3)))
    latency = charts["Latency of a decode step"]
    assert isinstance(latency, LineChart)
    assert [share for _, share in latency.lines[0].points] == pytest.approx([place / 6 for place in range(1, 7)])
    bars = charts["Operators by own time"]
    assert isinstance(bars, BarChart)
    assert bars.categories == ("aten::mm",)
    assert {series.name: series.values[0] for series in bars.series} == pytest.approx({"sam": 9e-3, "decode": 2e-3})


def test_the_first_lines_and_the_table_share_out_the_same_time() -> None:
    """20 ms of 50, 7 of them between stages: 40 % in both, and not the 47 % of the time in stages."""
    page = made_page(made_pass(20, 10, (3, 5), gap_ms=7))
    found = report([page], [None], None)
    shares = {row[0]: row[-1] for row in found.tables[0].rows}
    assert shares["sam"] == pytest.approx(20 / 50)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert found.answer[1].endswith("Bottleneck: sam 40 %, prefill 20 % of the time.")
