"""The per-stage table: its rows, its totals, and what it says about their limits."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core.callgraph.records import OracleAnswer
from llm_perf_opt.core.report import Level
from llm_perf_opt.costs.stage_costs import stage_report
from tests.costs.small_run import PROJECT_FLOPS, small_run


def test_one_row_per_stage_and_phase_and_a_row_of_totals() -> None:
    table = stage_report([small_run(), small_run(phase="decode")]).tables[0]
    assert [row[0] for row in table.rows] == ["vision", "prefill", "vision", "decode"]
    columns = [column.name for column in table.columns]
    for name in ("calls", "FLOPs", "MACs", "bytes moved", "activation bytes", "unpriced ops"):
        place = columns.index(name)
        assert sum(int(row[place] or 0) for row in table.rows) == table.footer[place]
    assert table.footer[columns.index("FLOPs")] == 6 * PROJECT_FLOPS


def test_phases_share_modules_and_weights() -> None:
    one, two = (stage_report([small_run(phase=phase) for phase in phases]).tables[0] for phases in (["a"], ["a", "b"]))
    columns = [column.name for column in one.columns]
    for name in ("modules", "parameters"):
        assert one.footer[columns.index(name)] == two.footer[columns.index(name)]


def test_a_stage_in_which_nothing_ran_has_no_row() -> None:
    graph = replace(small_run(), stages=(("vision", ("encoder",)), ("audio", ("microphone",))))
    assert [row[0] for row in stage_report([graph]).tables[0].rows] == ["vision", "prefill"]


def test_an_unpriced_op_is_a_warning_with_its_bound() -> None:
    report = stage_report([small_run(with_unpriced=True)])
    warnings = [note.text for note in report.notes if note.level is Level.WARNING]
    assert len(warnings) == 1
    assert "vendor.fused.default" in warnings[0]
    assert "512 FLOP" in warnings[0]
    assert report.tables[0].footer[-1] == 1


def test_what_no_tracer_saw_is_not_zero() -> None:
    report = stage_report([replace(small_run(), ops=None)])
    columns = [column.name for column in report.tables[0].columns]
    assert report.tables[0].footer[columns.index("FLOPs")] is None
    assert report.tables[0].footer[columns.index("unpriced ops")] is None
    assert any("unknown" in note.text for note in report.notes if note.level is Level.WARNING)


def test_oracle_answers_are_told_once_per_op_and_policy() -> None:
    answers = tuple(
        OracleAnswer(op="topk", policy="balanced", site=f"moe.py:{line} in route", count=11) for line in (5, 9)
    )
    notes = [note.text for note in stage_report([replace(small_run(), oracle_answers=answers)]).notes]
    told = [text for text in notes if "topk" in text]
    assert len(told) == 1
    assert all(word in told[0] for word in ("22 times", "'balanced'", "moe.py:5", "moe.py:9"))


def test_a_run_that_stopped_says_where() -> None:
    notes = stage_report([replace(small_run(), stopped_in="decoder")]).notes
    assert any("decoder" in note.text for note in notes if note.level is Level.WARNING)
