from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.core.report import Level
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.prediction_report import prediction_report
from llm_perf_opt.timing.rates import OpRun
from tests.costs.made_kinds import kind, tensor
from tests.timing.made_calibrations import calibration, close, table

MIB = 2**20
WIDE = tensor(25 * MIB, dtype="bfloat16")  # 50 MiB
NARROW = tensor(1024, dtype="bfloat16")
ADD = kind("aten.add.Tensor", {"self": NARROW, "other": NARROW}, NARROW, output_aliases=(-1,))
SPREAD = kind("aten.zeros.default", {}, WIDE, output_aliases=(-1,))
VIEW = kind("aten.view.default", {"self": NARROW}, NARROW, output_aliases=(0,))
ODD = kind("vendor.fused.default", {"x": NARROW}, NARROW, output_aliases=(-1,))


def made_run(*, odd: bool = False) -> CallGraph:
    """The root adds twice and looks once; its encoder fills 50 MiB."""
    run = CallGraphBuilder()
    run.module("", "Model", ("encoder",), {})
    run.module("encoder", "Encoder", (), {})
    run.allocate(1, 2048, "input")
    run.enter("", [(NARROW, 1)])
    run.enter("encoder", [(NARROW, 1)])
    run.allocate(2, 50 * MIB)
    run.op(SPREAD, (), (2,))
    run.leave([(WIDE, 2)])
    run.free(2)
    for token in (3, 4):
        run.allocate(token, 2048)
        run.op(ADD, (1, 1), (token,))
    run.op(VIEW, (1,), (1,))
    if odd:
        run.allocate(5, 2048)
        run.op(ODD, (1,), (5,))
    run.leave([(NARROW, 1)])
    return run.finish(
        model="made",
        phase="prefill",
        tracer="made",
        workload={},
        stages=(("encoder", ("encoder",)),),
        runtime={},
        library_versions={},
    )


def machine(*, fresh_byte_s: float | None = 1e-9) -> Calibration:
    """Sums at 1 ns a value and within 10 %, fills at 0.1 ns, 4 us for four views, 6 us for two calls."""
    return calibration(
        table("arithmetic", "bfloat16", {"elements": (16, 2**20)}, lambda count: count * 1e-9, spread=0.1),
        table("fill", "bfloat16", {"elements": (16, 2**20)}, lambda count: count * 1e-10),
        table("view", "any", {"calls": (4,)}, lambda calls: 4e-6),
        table("module_call", "any", {"calls": (2,)}, lambda calls: 6e-6),
        fresh_byte_s=fresh_byte_s,
    )


def test_a_stage_is_the_sum_of_its_ops_calls_and_fresh_memory() -> None:
    encoder, prefill = predict(made_run(), CalibratedRates(machine()))
    assert encoder.fresh_bytes == pytest.approx(50 * MIB, abs=128)
    assert close(encoder.wall.expected, 25 * MIB * 1e-10 + encoder.fresh_bytes * 1e-9 + 3e-6)
    assert close(prefill.wall.expected, 2 * 1024e-9 + 1e-6 + 3e-6)
    assert prefill.fresh_bytes == 0
    assert close(sum(band.expected for band in prefill.by_rate.values()), prefill.wall.expected)


def test_the_band_holds_the_prediction_and_widens_with_the_tries() -> None:
    _, prefill = predict(made_run(), CalibratedRates(machine()))
    assert close(prefill.wall.expected - prefill.wall.low, 0.1 * 2 * 1024e-9)
    assert close(prefill.wall.high - prefill.wall.expected, 0.1 * 2 * 1024e-9)


def test_a_machine_that_keeps_its_memory_pays_nothing_for_it() -> None:
    encoder, _ = predict(made_run(), CalibratedRates(machine(fresh_byte_s=None)))
    assert encoder.fresh_bytes == 0
    assert close(encoder.wall.expected, 25 * MIB * 1e-10 + 3e-6)


def test_what_cannot_be_predicted_is_listed_and_warned_about() -> None:
    _, prefill = predict(made_run(odd=True), CalibratedRates(machine()))
    assert prefill.untimed == {"vendor.fused.default": 1}
    report = prediction_report([made_run(odd=True)], CalibratedRates(machine()))
    warnings = [note.text for note in report.notes if note.level is Level.WARNING]
    assert len(warnings) == 1
    assert "vendor.fused.default (1)" in warnings[0]


def test_matmuls_in_a_dtype_that_was_not_measured_are_not_told_from_narrow_ones() -> None:
    sizes = {"rows": (1, 64), "columns": (16, 256), "depth": (320, 1280)}
    narrow = table("narrow_matmul", "float32", sizes, lambda rows, columns, depth: 1e-9 * rows * columns * depth)
    x, weight = tensor(4, 1280, dtype="float32"), tensor(896, 1280, dtype="float32")
    matmul = kind("aten.linear.default", {"input": x, "weight": weight}, tensor(4, 896, dtype="float32"))
    router = kind("aten.linear.default", {"input": x, "weight": tensor(64, 1280, dtype="float32")}, tensor(4, 64))
    assert CalibratedRates(calibration(narrow)).duration(OpRun(matmul)) is None
    assert CalibratedRates(calibration(narrow)).duration(OpRun(router)) is not None


def test_a_family_that_was_not_measured_is_not_taken_as_free() -> None:
    _, prefill = predict(made_run(), CalibratedRates(calibration()))
    assert prefill.untimed == {"aten.add.Tensor": 2, "aten.view.default": 1}


def test_a_prediction_from_a_smoke_calibration_says_that_it_means_nothing() -> None:
    notes = prediction_report([made_run()], CalibratedRates(replace(machine(), is_smoke=True))).notes
    assert [note.text for note in notes if note.level is Level.WARNING and "mean nothing" in note.text]


def test_the_report_adds_up() -> None:
    report = prediction_report([made_run()], CalibratedRates(machine()))
    stages, families = report.tables
    assert [row[0] for row in stages.rows] == ["encoder", "prefill"]
    for column in range(1, 5):
        assert sum(row[column] for row in stages.rows) == pytest.approx(stages.footer[column])  # type: ignore[misc]
    assert sum(row[3] for row in families.rows) == pytest.approx(2)  # type: ignore[misc]  # the shares of two stages
