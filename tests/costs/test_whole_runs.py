"""The chapter of a source that takes whole phases: its tables, its own words, and every difference from the stages."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core.report import Cell, Level, Report
from llm_perf_opt.core.source_figures import BlindSpot, Method, ModuleFigure, OperatorFigure, SourceFigures, WorkFamily
from llm_perf_opt.costs.static_figures import StaticCompute, static_compute
from llm_perf_opt.costs.static_report import static_report

STAGE = SourceFigures(source="counted", phase="prefill", stage="prefill", method=Method.EXTRACTED, flops=100)
RUN = SourceFigures(
    source="fvcore",
    phase="prefill",
    stage="prefill",
    method=Method.WHOLE_RUN,
    flops=84,
    parameters=7,
    activations=9,
    operators=(
        OperatorFigure(name="linear", family=WorkFamily.MATMUL, flops=80, activations=9),
        OperatorFigure(name="layer_norm", family=WorkFamily.OTHER, flops=4),
    ),
    blind_spots=(
        BlindSpot(cause="fused-attention-uncounted", operator="aten::sdpa", calls=3, flops=20),
        BlindSpot(cause="elementwise-counted", operator="layer_norm", calls=0, flops=4),
    ),
    completed_flops=100,
    completed_with=("aten::sdpa",),
    modules=(
        ModuleFigure(path="", flops=84, completed_flops=100, activations=9, operators=(("linear", 80),)),
        ModuleFigure(path="model.layers", flops=84, completed_flops=100, activations=9, operators=(("linear", 80),)),
        ModuleFigure(path="model.layers.0", flops=84, completed_flops=100, activations=9, operators=()),
    ),
    unit="mac",
    tensors="weightless",
    version="1.2",
    own_table="| module | #flops |",
)


def put_together(*figures: SourceFigures) -> StaticCompute:
    return static_compute(model="small", workload={}, graphs=[], source_figures=figures)


def chapter(*figures: SourceFigures) -> Report:
    return static_report(put_together(*figures)).chapters[-1]


def rows(report: Report, title: str) -> list[dict[str, Cell]]:
    (table,) = (table for table in report.tables if table.title == title)
    return [dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows]


def test_a_whole_run_is_in_no_sum_and_in_no_stage() -> None:
    static = put_together(STAGE, RUN)
    assert (static.flops, len(static.stages), static.whole_runs) == (100, 1, (RUN,))
    assert static.ledger.entries == ()


def test_a_whole_run_is_shown_as_a_lower_bound_with_what_it_left_out() -> None:
    (run,) = rows(chapter(STAGE, RUN), "Whole phases")
    assert run == {
        "phase": "prefill",
        "FLOPs, at least": 80,
        "MACs, at least": 40,
        "ops left out": 3,
        "FLOPs, completed by us": 100,
        "stages add up to": 100,
        "activations": 9,
        "parameters": 7,
        "tensors": "weightless",
    }


def test_operators_and_modules_have_macs_and_flops_and_say_who_counted() -> None:
    found = chapter(STAGE, RUN)
    assert [(row["operator"], row["MACs"], row["FLOPs"], row["counted by"]) for row in rows(found, "By operator")] == [
        ("linear", 40, 80, "fvcore"),
        ("layer_norm", 2, 4, "fvcore"),
        ("aten::sdpa", 10, 20, "our formula"),
    ]
    assert [row["module"] for row in rows(found, "By module")] == ["(model)", "model.layers"]  # deeper ones in the file
    assert [(row["module"], row["operator"], row["FLOPs"]) for row in rows(found, "By module and operator")] == [
        ("(model)", "linear", 80),
        ("model.layers", "linear", 80),
    ]
    assert [(listing.title, listing.text) for listing in found.listings] == [
        ("Table of fvcore, prefill; #flops are MACs", RUN.own_table)
    ]
    told = [note.text for note in found.notes]
    assert told[0] == "fvcore counts a multiply-add as one flop: its own figures are the MACs."
    assert "prefill: fvcore has no formula for aten::sdpa; the completed figure takes ours for it." in told


def test_a_whole_run_that_is_not_the_sum_of_its_stages_is_a_warning() -> None:
    assert [note for note in chapter(STAGE, RUN).notes if note.level is Level.WARNING] == []
    (warning,) = [
        note.text for note in chapter(STAGE, replace(RUN, completed_flops=98)).notes if note.level is Level.WARNING
    ]
    assert warning == "prefill: fvcore has 98 FLOP for the whole phase, and its stages add up to 100 FLOP."


def test_a_phase_that_could_not_be_taken_whole_is_told_by_its_stages() -> None:
    failed = SourceFigures(
        source="fvcore", phase="prefill", stage="prefill", method=Method.WHOLE_RUN, failure="it raised"
    )
    stage = replace(RUN, method=Method.ISOLATED, stage="sam")
    found = chapter(STAGE, stage, failed)
    assert [row["phase"] for row in rows(found, "By operator")] == ["prefill, sam"] * 3
    assert "fvcore could not count prefill as a whole: it raised." in [note.text for note in found.notes]
    (run,) = rows(found, "Whole phases")
    assert (run["FLOPs, at least"], run["ops left out"]) == (None, None)


def test_the_version_of_the_library_is_in_the_configuration() -> None:
    static = put_together(replace(STAGE, source="fvcore", version="1.2"))
    assert static.library_versions == {"fvcore": "1.2"}
    (table,) = (table for table in static_report(static).tables if table.title == "Configuration")
    assert ("libraries", "fvcore 1.2") in table.rows
