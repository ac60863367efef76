"""The static compute report: which source a figure is taken from, what the file holds, and what stays unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.report import Level
from llm_perf_opt.core.source_figures import BlindSpot, Method, SourceFigures, WorkFamily
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.costs.static_figures import StaticCompute, static_compute
from llm_perf_opt.costs.static_file import static_compute_json
from llm_perf_opt.costs.static_report import static_report
from tests.costs.small_run import PROJECT_FLOPS, small_run

SCHEMA = json.loads(files("llm_perf_opt.costs").joinpath("static_compute.schema.json").read_text("utf-8"))
STAGE_FLOPS = {"vision": 2 * PROJECT_FLOPS, "prefill": PROJECT_FLOPS}


def other(source: str, stage: str, flops: int | None, method: Method = Method.ISOLATED, **more: Any) -> SourceFigures:
    return SourceFigures(source=source, phase="prefill", stage=stage, method=method, flops=flops, **more)


def put_together(*source_figures: SourceFigures, graph: CallGraph | None = None) -> StaticCompute:
    graph = graph or small_run()
    return static_compute(
        model="small", workload={"batch": 1}, graphs=[graph], source_figures=(*counted(graph), *source_figures)
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


def test_a_static_graph_is_a_cross_check_and_never_the_figure_beside_a_count() -> None:
    """Even where it differs; alone it is the only figure there is."""
    exported = other("exported", "vision", STAGE_FLOPS["vision"] + 2, is_cross_check=True)
    stage = put_together(exported).stages[0]
    assert (stage.preferred.source, stage.flops) == ("counted", STAGE_FLOPS["vision"])
    assert exported in stage.sources
    formula = other("closed-form", "vision", 7, Method.CLOSED_FORM)
    assert alone(exported, formula).stages[0].preferred.source == "closed-form"
    counter = other("torch-counter", "vision", 9)
    both = alone(exported, counter).stages[0]
    assert (both.isolated_flops, both.isolated_by) == (9, "torch-counter")
    by_itself = alone(exported).stages[0]
    assert (by_itself.flops, by_itself.isolated_by) == (STAGE_FLOPS["vision"] + 2, "exported")


def test_a_completed_figure_is_isolated_and_marked_and_never_the_figure_of_a_stage() -> None:
    spot = BlindSpot(cause="fused-attention-uncounted", operator="aten::sdpa", calls=3, flops=30)
    figures = other("fvcore", "one", 70, blind_spots=(spot,), completed_flops=100, completed_with=("aten::sdpa",))
    static = alone(figures)
    (stage,) = static.stages
    assert (stage.flops, stage.flops_at_least, stage.isolated_flops) == (None, 70, 100)
    assert stage.isolated_by == "fvcore with formulas of ours for aten::sdpa"
    assert static.flops is None
    document = static_compute_json(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    first = next(iter(document["stages"].values()))
    assert (first["isolated_flops"], first["isolated_by"]) == (100, stage.isolated_by)
    (row,) = document["sources"]["fvcore"]
    assert (row["flops"], row["counted_macs"], row["completed_flops"]) == (None, 35, 100)
    assert row["completed_with"] == ["aten::sdpa"]


def test_an_isolated_source_with_a_blind_spot_is_not_preferred() -> None:
    spot = BlindSpot(cause="fused-attention-uncounted", operator="aten._flash", calls=1)
    static = put_together(other("torch-counter", "vision", 1, blind_spots=(spot,)))
    assert static.stages[0].preferred.source == "counted"
    assert static.stages[0].by_method(Method.ISOLATED) is None


def test_a_source_that_left_something_out_is_no_figure_and_no_total() -> None:
    """5 FLOPs of one stage in full; of the other 7, without an attention of unknown size, 2 of them elementwise."""
    spots = (
        BlindSpot(cause="fused-attention-uncounted", operator="aten._flash", calls=1),
        BlindSpot(cause="elementwise-counted", operator="layer_norm", calls=0, flops=2),
    )
    static = alone(other("fvcore", "one", 5), other("fvcore", "two", 7, blind_spots=spots))
    assert [(stage.flops, stage.flops_at_least) for stage in static.stages] == [(5, 5), (None, 5)]
    assert (static.flops, static.flops_at_least) == (None, 10)
    document = static_compute_json(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    assert {name: document["total"][name] for name in ("flops", "macs", "flops_at_least", "is_complete")} == {
        "flops": None,
        "macs": None,
        "flops_at_least": 10,
        "is_complete": False,
    }
    assert [(stage["flops"], stage["is_complete"]) for stage in document["stages"].values()] == [
        (5, True),
        (None, False),
    ]
    assert [(told["is_complete"], told["flops"], told["counted_flops"]) for told in document["sources"]["fvcore"]] == [
        (True, 5, 5),
        (False, None, 7),
    ]
    assert [spot["operator"] for spot in document["sources"]["fvcore"][1]["blind_spots"]] == [
        "aten._flash",
        "layer_norm",
    ]
    assert document["sources"]["fvcore"][1]["left_out_ops"] == 1
    report = static_report(static)
    tables = {table.title: table for table in report.tables}
    assert next(iter(tables)) == "Stages"
    totals, by_source = tables["Totals"], tables["FLOPs by source"]
    partial = tables["Sources that left something out"]
    cells = dict(zip((column.name for column in totals.columns), totals.rows[0], strict=True))
    assert (cells["FLOPs"], cells["FLOPs, at least"], cells["MACs"]) == (None, 10, None)
    assert by_source.rows == (("one", "fvcore", "", 5), ("two", "", "fvcore", None))
    assert [cell for cell in partial.rows[0] if cell is not None] == [
        "two",
        "fvcore",
        5,
        2,
        1,
        "leaves out work of unknown size of aten._flash, adds 2 FLOP of layer_norm",
    ]
    warned = [note.text for note in report.notes if note.level is Level.WARNING]
    assert warned == [
        "two (prefill): FLOPs unknown, at least 5 FLOP by fvcore, which leaves out work of unknown size of "
        "aten._flash, adds 2 FLOP of layer_norm."
    ]


def test_a_gap_of_no_size_leaves_nothing_out() -> None:
    spot = BlindSpot(cause="op-without-formula", operator="odd.scan", calls=3, flops=0, is_bound=True)
    assert alone(other("a", "one", 5, blind_spots=(spot,))).flops == 5


def test_bytes_of_a_stage_with_an_op_without_a_price_are_not_known_from_the_count() -> None:
    """They are from a source that needs no prices."""
    run = small_run(with_unpriced=True)
    assert {stage.name: stage.first("bytes_moved") for stage in put_together(graph=run).stages}["prefill"] is None
    watched = other("byte-counter", "prefill", None, Method.EXTRACTED, bytes_moved=77)
    static = put_together(watched, graph=run)
    assert {stage.name: stage.first("bytes_moved") for stage in static.stages}["prefill"] == 77


def test_an_unknown_stage_makes_the_total_unknown() -> None:
    static = static_compute(
        model="small",
        workload={},
        graphs=[],
        source_figures=[
            other("a", "one", 5),
            SourceFigures(source="a", phase="prefill", stage="two", method=Method.ISOLATED),
        ],
    )
    assert static.flops is None
    assert static.coverage is None
    assert static_compute_json(static, tool_version="0", memory=None)["coverage"] is None


def failed(stage: str, phase: str = "prefill", source: str = "a") -> SourceFigures:
    return SourceFigures(source=source, phase=phase, stage=stage, method=Method.ISOLATED, failure="it raised")


def alone(*source_figures: SourceFigures) -> StaticCompute:
    return static_compute(model="small", workload={}, graphs=[], source_figures=source_figures)


def test_a_stage_of_which_every_source_failed_makes_the_totals_unknown() -> None:
    static = alone(other("a", "one", 5, parameters=3), failed("two"), failed("decode", "decode"))
    assert [(stage.phase, stage.name, stage.flops) for stage in static.stages] == [
        ("prefill", "one", 5),
        ("prefill", "two", None),
        ("decode", "decode", None),
    ]
    assert (static.flops, static.parameters) == (None, None)
    document = static_compute_json(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    assert document["total"]["flops"] is None
    (stages,) = (table for table in static_report(static).tables if table.title == "Stages")
    assert stages.footer == ("total", None, None, None, None, None)


def test_a_stage_that_another_source_or_the_trace_tells_the_phase_without_did_not_run() -> None:
    static = alone(other("a", "one", 5), failed("one", source="b"), failed("two", source="b"))
    assert (static.flops, [stage.name for stage in static.stages]) == (5, ["one"])
    traced = put_together(failed("two", source="b"))
    assert traced.flops == sum(STAGE_FLOPS.values())
    silent = replace(small_run(), ops=None)
    assert [stage.name for stage in put_together(failed("two", source="b"), graph=silent).stages] == list(STAGE_FLOPS)


def test_a_source_that_says_nothing_at_all_is_no_stage() -> None:
    static = alone(other("a", "one", 5), failed("all", "all", "b"), failed("total", "total", "c"))
    assert (static.flops, len(static.stages)) == (5, 1)
    assert alone(failed("all", "all")).flops is None


def test_a_run_that_stopped_half_way_is_no_figure() -> None:
    static = static_compute(
        model="small",
        workload={},
        graphs=[small_run()],
        source_figures=(*counted(small_run()), *counted(replace(small_run(phase="decode"), stopped_in="decoder"))),
    )
    assert static.flops is None
    assert ("counted", "decode", "decode") in {entry[:3] for entry in static.ledger.missing}
    warned = [note.text for note in static_report(static).notes if note.level is Level.WARNING]
    assert warned == [
        "counted has no figures for decode (decode): the run stopped in decoder, and what follows is missing."
    ]


def test_active_parameters_are_those_of_a_decode_step() -> None:
    (prefill_only,) = (table for table in static_report(put_together()).tables if table.title == "Totals")
    assert "active per decode step" not in [column.name for column in prefill_only.columns]
    assert put_together().active_parameters is None
    graphs = [small_run(), small_run(phase="decode")]
    static = static_compute(
        model="small", workload={}, graphs=graphs, source_figures=[said for graph in graphs for said in counted(graph)]
    )
    (totals,) = (table for table in static_report(static).tables if table.title == "Totals")
    place = [column.name for column in totals.columns].index("active per decode step")
    assert totals.rows[0][place] == static.active_parameters == 2 * 64  # of the encoder and of the decoder


def test_the_document_is_what_the_schema_says() -> None:
    absent = other("fvcore", "vision", None, failure="not installed")
    static = put_together(
        absent, other("closed-form", "prefill", 3, Method.CLOSED_FORM), graph=small_run(with_unpriced=True)
    )
    document = static_compute_json(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    assert document["coverage"]["unpriced"][0]["name"] == "vendor.fused.default"
    assert document["coverage"]["flops_bound"] > 0
    assert document["ledger"]["missing"] == [
        {"source": "fvcore", "phase": "prefill", "stage": "vision", "reason": "not installed"}
    ]
    (entry,) = document["ledger"]["entries"]
    assert [part["cause"] for part in entry["explanations"]] == ["op-without-formula"]


def test_the_schema_refuses_what_is_not_in_it() -> None:
    document = static_compute_json(put_together(), tool_version="0", memory=None)
    next(iter(document["stages"].values()))["flops"] = "many"
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
    assert len(stages.columns) == 6
    told = " ".join(note.text for note in report.notes)
    assert "vendor.fused.default has no price" in told
    assert "not installed" in told
    assert "has no known cause" in told


def test_operators_carry_their_family_and_add_up_to_the_stage() -> None:
    for stage in put_together().stages:
        assert sum(operator.flops or 0 for operator in stage.operators) == stage.flops
        assert {operator.family for operator in stage.operators} == {WorkFamily.MATMUL}


def test_the_report_begins_with_shares_disagreements_and_the_largest_modules() -> None:
    """Of the same stage two sources say 100 and a third 60: one row, with both names and 40 % of the stage."""
    graph = small_run()
    static = put_together(
        *(other(name, "vision", 3 * STAGE_FLOPS["vision"]) for name in ("a", "b")),
        other("c", "vision", STAGE_FLOPS["vision"]),
        graph=graph,
    )
    stages, disagree, largest = static_report(static, [graph]).tables[:3]
    assert [column.name for column in stages.columns][:4] == ["stage", "parameters", "FLOPs", "share"]
    assert sum(row[3] or 0 for row in stages.rows) == pytest.approx(1)
    assert disagree.title == "Where the sources disagree"
    assert ("vision", "a, b - c", 2 * STAGE_FLOPS["vision"]) in [row[:3] for row in disagree.rows]
    assert largest.title == "Largest modules"
    flops = [row[3] for row in largest.rows]
    assert flops == sorted(flops, reverse=True)
    assert sum(row[4] for row in largest.rows) <= 1 + 1e-9
    assert static_report(static).tables[2].title == "Totals"  # no trace, no modules
