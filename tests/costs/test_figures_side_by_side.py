"""Figures besides FLOPs: every source's own is in the file, and a difference is in the report."""

from __future__ import annotations

from dataclasses import replace

import jsonschema

from llm_perf_opt.core.source_figures import Method
from llm_perf_opt.costs.reconcile import FIGURES
from llm_perf_opt.costs.static_file import static_compute_json
from llm_perf_opt.costs.static_report import static_report
from tests.costs.test_static_compute import SCHEMA, STAGE_FLOPS, other, put_together


def test_every_figure_of_a_source_is_in_the_file_and_held_against_the_others() -> None:
    figures = {name: 100 + number for number, name in enumerate(FIGURES)}
    closed = other("closed-form", "vision", STAGE_FLOPS["vision"], Method.CLOSED_FORM, **figures)
    static = put_together(closed, replace(closed, source="second", kv_cache_bytes=7))
    document = static_compute_json(static, tool_version="0", memory=None)
    jsonschema.validate(document, SCHEMA)
    (in_file,) = document["sources"]["closed-form"]
    keys = {"parameters": "params", "active_parameters": "active_params"}
    assert {name: in_file[keys.get(name, name)] for name in FIGURES} == figures
    found = {
        entry["figure"]: (entry["left_value"], entry["right_value"], entry["difference"], entry["cause"])
        for entry in document["ledger"]["figures"]
        if (entry["left"], entry["right"]) == ("closed-form", "second")
    }
    assert found.keys() == figures.keys()
    assert found["kv_cache_bytes"] == (figures["kv_cache_bytes"], 7, figures["kv_cache_bytes"] - 7, None)
    assert found["parameters"] == (100, 100, 0, None)
    assert document["ledger"]["unexplained"] == len(static.ledger.unexplained_figures) > 0


def test_a_figure_that_differs_is_a_row_and_a_warning() -> None:
    static = put_together(other("closed-form", "vision", STAGE_FLOPS["vision"], Method.CLOSED_FORM, parameters=63))
    assert static.ledger.unexplained == static.ledger.unexplained_figures != ()
    report = static_report(static)
    (table,) = (table for table in report.tables if table.title == "Other figures that differ")
    assert table.rows == (("vision", "parameters", "counted - closed-form", 64, 63, "unknown"),)
    told = "vision (prefill), parameters: counted has 64, closed-form 63, with no known cause."
    assert told in [note.text for note in report.notes]
