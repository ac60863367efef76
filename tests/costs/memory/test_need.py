"""Weights, cache and peak of runs written by hand; what is not known stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.report import Kind, LineChart
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.memory.memory_report import memory_json, memory_report
from llm_perf_opt.costs.memory.need import need_table, run_memory
from tests.costs.memory.made_decode import LAYERS, cached_bytes, made_decode
from tests.costs.small_run import X_BYTES, small_run

WEIGHT_BYTES = 256  # each of encoder, decoder (to which the head is tied) and norm, and one buffer


def test_the_parts_of_the_small_run() -> None:
    (phase,) = run_memory([small_run()]).phases
    assert (phase.weight_bytes, phase.buffer_bytes) == (3 * WEIGHT_BYTES, WEIGHT_BYTES)
    assert phase.input_bytes == X_BYTES
    assert phase.peak is not None
    assert phase.peak.bytes == X_BYTES + 4 * X_BYTES  # the input lives through the phase
    assert phase.total_bytes == 4 * WEIGHT_BYTES + X_BYTES + 4 * X_BYTES


def test_stages_own_weights_by_name_and_are_given_what_enters_them() -> None:
    (phase,) = run_memory([small_run()]).phases
    vision, prefill = phase.stages
    assert (vision.stage, vision.weight_bytes) == ("vision", 2 * WEIGHT_BYTES)  # its weight and its buffer
    assert prefill.weight_bytes == 2 * WEIGHT_BYTES
    assert vision.input_bytes == 2 * X_BYTES  # the input, and what the first call returned and the second takes
    assert vision.peak.path == "norm"


def test_weights_without_storages_are_counted_by_name() -> None:
    graph = small_run()
    bare = replace(
        graph,
        storages=None,
        ops=None,
        parameters=tuple(replace(parameter, storage=-1) for parameter in graph.parameters),
    )
    (phase,) = run_memory([bare]).phases
    assert phase.weight_bytes == 4 * WEIGHT_BYTES  # a tie cannot be told without storages
    assert (phase.peak, phase.input_bytes, phase.total_bytes, phase.peak_kv_bytes) == (None,) * 4
    assert (phase.constant_bytes, phase.peak_input_bytes) == (None, None)
    assert run_memory([graph, bare]).total_bytes is None


@pytest.mark.parametrize(("tokens", "batch"), [(5, 1), (9, 3)])
def test_the_cache_is_what_a_step_takes_reads_and_hands_on(tokens: int, batch: int) -> None:
    graph = made_decode(tokens=tokens, batch=batch)
    assert graph.problems() == []
    cache = kv_cache([graph])
    assert cache is not None
    assert len(cache.tensors) == 2 * LAYERS
    assert cache.bytes == 2 * LAYERS * cached_bytes(tokens, batch)
    assert cache.bytes_per_token == 2 * LAYERS * cached_bytes(1)


def test_at_the_peak_the_old_and_the_new_cache_are_both_alive() -> None:
    (phase,) = run_memory([made_decode(tokens=5, steps=3)]).phases
    assert phase.peak_kv_bytes == 2 * LAYERS * (cached_bytes(7) + cached_bytes(8))
    assert phase.peak_other_bytes == 4 * 30  # the logits of the step


@pytest.mark.parametrize("steps", [1, 3])
def test_a_cache_that_was_given_counts_as_cache_and_only_there(steps: int) -> None:
    """The same decode with a cache that was there before: no fill runs, and every part has the bytes it had."""
    filled, given = (run_memory([made_decode(steps=steps, given=is_given)]) for is_given in (False, True))
    (before,), (after,) = filled.phases, given.phases
    assert given.cache == filled.cache
    assert before.peak is not None and after.peak is not None
    assert before.peak.bytes == after.peak.bytes
    assert (
        after.peak_kv_bytes == before.peak_kv_bytes == 2 * LAYERS * (cached_bytes(4 + steps) + cached_bytes(5 + steps))
    )
    assert after.peak_other_bytes == before.peak_other_bytes == 4 * 30
    assert (after.peak_input_bytes, after.input_bytes) == (0, before.input_bytes)
    assert after.total_bytes == before.total_bytes


def test_a_prefill_alone_tells_no_cache() -> None:
    assert kv_cache([made_decode(phase="prefill")]) is None
    (phase,) = run_memory([small_run()]).phases
    assert phase.peak_kv_bytes is None
    assert phase.peak_other_bytes is None, "what is not cache is not known where the cache is not"
    assert phase.total_bytes == 4 * WEIGHT_BYTES + X_BYTES + 4 * X_BYTES
    assert need_table(run_memory([small_run()])).rows[0][-2:] == (None, None)


def test_the_report_says_what_the_analysis_found() -> None:
    graphs = [small_run(), made_decode()]
    memory = run_memory(graphs)
    report = memory_report(memory)
    tables = {table.title: table for table in report.tables}
    need = tables["Memory that a device needs"]
    for row, phase in zip(need.rows, memory.phases, strict=True):
        assert row[0] == phase.phase
        parts = [cell for cell in row[2:] if isinstance(cell, int)]
        assert sum(parts) == row[1] == phase.total_bytes
    assert tables["KV cache"].rows == ((4, 4 * cached_bytes(5), 4 * cached_bytes(1)),)
    stage_names = [row[0] for row in tables["Memory by stage"].rows]
    assert stage_names == ["prefill: vision", "prefill", "decode"]


def test_a_device_that_holds_all_but_one_byte_is_too_small() -> None:
    memory = run_memory((small_run(), made_decode()))
    needed = memory.total_bytes
    assert needed is not None
    device = find_device("a10g")
    table = memory_report(memory, device=device).tables[0]
    assert (table.title, [row[1] for row in table.rows]) == (f"Does this forward fit on {device.name}?", ["yes", "yes"])
    assert table.rows[0][4:] == memory_report(memory).tables[0].rows[0][1:], "a device adds columns and changes none"
    shares = [row[1:3] for row in need_table(memory, replace(device, memory_bytes=needed)).rows]
    assert ("yes", 1.0) in shares
    assert "no" in {row[1] for row in need_table(memory, replace(device, memory_bytes=needed - 1)).rows}


def test_what_is_not_known_neither_fits_nor_does_not() -> None:
    memory = run_memory((replace(small_run(), ops=None),))
    (row,) = need_table(memory, find_device("a10g")).rows
    assert row[1:3] == (None, None)


def test_what_is_alive_adds_up_in_the_table() -> None:
    report = memory_report(run_memory([small_run()]))
    (table,) = [table for table in report.tables if table.title == "Alive at the peak of prefill"]
    place = [column.kind for column in table.columns].index(Kind.BYTES)
    assert sum(int(row[place] or 0) for row in table.rows) == table.footer[place] == 5 * X_BYTES
    assert ("float32[4, 8]", 1, X_BYTES, "(given)", "(outside any module)") in table.rows


def test_every_phase_and_stage_has_a_curve_with_its_peak_marked() -> None:
    report = memory_report(run_memory([small_run()]))
    (stages,) = report.chapters
    charts = [chart for chart in (*report.charts, *stages.charts) if isinstance(chart, LineChart)]
    assert [chart.title for chart in charts] == [
        "Live memory, all of prefill",
        "Live memory of prefill: vision",
        "Live memory of prefill",
    ]
    for chart in charts:
        (line,) = chart.lines
        assert line.style == "step"
        assert max(y for _, y in line.points) == max(mark.y for mark in chart.marks)
        assert all((mark.x, mark.y) in line.points for mark in chart.marks)


def test_a_trace_without_memory_is_reported_as_unknown() -> None:
    report = memory_report(run_memory([replace(small_run(), ops=None)]))
    assert (report.charts, report.chapters) == ((), ())
    assert report.tables[0].rows[0][-1] is None
    assert any("its peak is unknown" in note.text for note in report.notes)


def test_the_document_holds_the_same_figures() -> None:
    memory = run_memory([small_run(), made_decode()])
    document = memory_json(memory)
    assert document["needed_bytes"] == memory.total_bytes
    assert document["kv_cache"]["bytes_per_token"] == 4 * cached_bytes(1)
    first = document["phases"][0]
    assert first["peak_live_bytes"] == sum(one["bytes"] for one in first["peak"]["alive"]) == 5 * X_BYTES
    assert (first["input_bytes"], first["peak_input_bytes"]) == (X_BYTES, X_BYTES)
    assert [stage["stage"] for stage in first["stages"]] == ["vision", "prefill"]
