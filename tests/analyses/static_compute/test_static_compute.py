"""The static compute report: which source a figure is taken from, what the file holds, and what stays unknown."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from llm_perf_opt.analyses.counted import counted
from llm_perf_opt.analyses.static_compute import StaticCompute, static_compute, static_compute_document, static_report
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.testimony import BlindSpot, Family, Method, Testimony
from tests.analyses.small_run import PROJECT_FLOPS, small_run

SCHEMA = json.loads(
    files("llm_perf_opt.analyses.static_compute").joinpath("static_compute.schema.json").read_text("utf-8")
)
STAGE_FLOPS = {"vision": 2 * PROJECT_FLOPS, "prefill": PROJECT_FLOPS}


def other(source: str, stage: str, flops: int | None, method: Method = Method.ISOLATED, **more: Any) -> Testimony:
    return Testimony(source=source, phase="prefill", stage=stage, method=method, flops=flops, **more)


def put_together(*testimonies: Testimony, graph: CallGraph | None = None) -> StaticCompute:
    graph = graph or small_run()
    return static_compute(
        model="small", workload={"batch": 1}, graphs=[graph], testimonies=(*counted(graph), *testimonies)
    )


def test_the_count_alone_fills_every_stage() -> None:
    static = put_together()
    assert {stage.name: stage.flops for stage in static.stages} == STAGE_FLOPS
    assert static.flops == sum(STAGE_FLOPS.values())


def test_isolated_wins_over_extracted_and_extracted_over_a_closed_form() -> None:
    closed = other("closed-form", "vision", 7, Method.CLOSED_FORM)
    static = put_together(closed)
    assert static.stages[0].preferred.source == "counted"
    static = put_together(closed, other("torch-counter", "vision", STAGE_FLOPS["vision"]))
    assert static.stages[0].preferred.source == "torch-counter"


def test_an_isolated_source_with_a_blind_spot_is_not_preferred() -> None:
    spot = BlindSpot(cause="fused-attention-uncounted", operator="aten._flash", calls=1)
    static = put_together(other("torch-counter", "vision", 1, blind_spots=(spot,)))
    assert static.stages[0].preferred.source == "counted"
    assert static.stages[0].by_method(Method.ISOLATED) is None


def test_an_unknown_stage_makes_the_total_unknown() -> None:
    static = static_compute(
        model="small",
        workload={},
        graphs=[],
        testimonies=[other("a", "one", 5), Testimony(source="a", phase="prefill", stage="two", method=Method.ISOLATED)],
    )
    assert static.flops is None
    assert static.coverage is None
    assert static_compute_document(static, tool_version="0", memory=None)["coverage"] is None


def test_the_document_is_what_the_schema_says() -> None:
    failed = other("fvcore", "vision", None, failure="not installed")
    static = put_together(
        failed, other("closed-form", "prefill", 3, Method.CLOSED_FORM), graph=small_run(with_unpriced=True)
    )
    document = static_compute_document(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    assert document["coverage"]["unpriced"][0]["name"] == "vendor.fused.default"
    assert document["coverage"]["flops_bound"] > 0
    assert document["ledger"]["missing"] == [
        {"source": "fvcore", "phase": "prefill", "stage": "vision", "reason": "not installed"}
    ]
    (entry,) = document["ledger"]["entries"]
    assert [part["cause"] for part in entry["explanations"]] == ["op-without-formula"]


def test_the_schema_refuses_what_is_not_in_it() -> None:
    document = static_compute_document(put_together(), tool_version="0", memory=None)
    document["stages"][0]["flops"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_report_has_a_chapter_per_stage_and_tells_every_hole() -> None:
    static = put_together(
        other("closed-form", "vision", 3, Method.CLOSED_FORM),
        other("fvcore", "vision", None, failure="not installed"),
        graph=small_run(with_unpriced=True),
    )
    report = static_report(static)
    assert [chapter.title for chapter in report.chapters] == ["vision (prefill)", "prefill"]
    (stages,) = (table for table in report.tables if table.title == "Stages")
    assert len(stages.columns) == 5
    told = " ".join(note.text for note in report.notes)
    assert "vendor.fused.default has no price" in told
    assert "not installed" in told
    assert "has no known cause" in told


def test_operators_carry_their_family_and_add_up_to_the_stage() -> None:
    for stage in put_together().stages:
        assert sum(operator.flops or 0 for operator in stage.operators) == stage.flops
        assert {operator.family for operator in stage.operators} == {Family.PRODUCT}
