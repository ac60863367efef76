"""Works, bounds and bands of runs that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device, device_text, find_device, load_devices, read_devices
from llm_perf_opt.core.hardware.calibration import measured_device
from llm_perf_opt.core.report import Level
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.predict import predict, total_wall
from llm_perf_opt.timing.prediction_report import prediction_report
from llm_perf_opt.timing.stage_work import stage_works
from tests.costs.small_run import PROJECT_FLOPS, small_run
from tests.timing.made_calibrations import calibration, matmul_seconds, table
from tests.timing.made_decode import CACHE_BYTES, EXPERTS, LAYERS, WEIGHT_BYTES, X_BYTES, made_decode

CARD = Device(
    id="card",
    name="Card",
    vendor="nobody",
    arch="none",
    peak_flops_per_s={"bf16": 10**14, "fp32": 10**13},
    bandwidth_bytes_per_s=10**9,
    memory_bytes=10**10,
)
LOOKED_UP = X_BYTES + 32  # the rows that came out, and the indices
READ_ONCE = LAYERS * EXPERTS * WEIGHT_BYTES + CACHE_BYTES + LOOKED_UP
LAUNCHES = 1 + LAYERS * (1 + 2 * EXPERTS)


def test_the_made_run_is_sound() -> None:
    assert made_decode().problems() == []


def test_what_prepares_a_phase_is_no_work_of_it_and_what_it_fills_was_there() -> None:
    (work,) = stage_works(made_decode())
    assert work.ops == work.launches == LAUNCHES
    assert work.flops == LAYERS * EXPERTS * 2 * 4 * 8 * 8
    assert work.must_read_bytes == READ_ONCE
    assert work.forwards == 1


def test_every_forward_reads_its_weights_again() -> None:
    (work,) = stage_works(made_decode(steps=3))
    assert (work.must_read_bytes, work.forwards, work.launches) == (3 * READ_ONCE, 3, 3 * LAUNCHES)


def test_stages_hold_what_they_launch() -> None:
    """The encoder projects twice and each of its norms activates; the decoder likewise, and one op runs outside."""
    vision, prefill = stage_works(small_run())
    assert (vision.launches, prefill.launches) == (4, 3)
    assert (vision.flops, prefill.flops) == (2 * PROJECT_FLOPS, PROJECT_FLOPS)
    assert vision.flops_by_dtype == {"float32": 2 * PROJECT_FLOPS}
    assert vision.must_read_bytes == 256 + 128  # its weight once although it runs twice, and the input of the run
    assert prefill.must_read_bytes == 256


def test_an_op_without_a_price_is_counted_and_named() -> None:
    _, prefill = stage_works(small_run(with_unpriced=True))
    assert (prefill.unpriced_ops, prefill.launches, prefill.flops) == (1, 3, 0)


def test_a_trace_that_follows_no_memory_has_a_bound_from_flops_alone() -> None:
    graph = replace(small_run(), storages=None)
    vision, _ = predict(graph, DataSheetRates(CARD))
    assert vision.work.must_read_bytes is None
    assert vision.lower_bound.seconds == pytest.approx(2 * PROJECT_FLOPS / 1e13)


def test_experts_become_one_matmul_per_layer_and_layers_stay_apart() -> None:
    kernels = fused_kernels(made_decode())["decode"]
    matmuls = {kernel: count for kernel, count in kernels.items() if kernel.kind is KernelKind.MATMUL}
    ((matmul, count),) = matmuls.items()
    assert count == LAYERS
    assert matmul.flops == EXPERTS * 2 * 4 * 8 * 8
    assert matmul.rows == 4
    assert sum(kernels.values()) == 2 * LAYERS + 1, "vector work before the first matmul and after each"
    eager = stage_works(made_decode())[0].kernels
    for figure in ("flops", "bytes_moved"):
        assert sum(getattr(kernel, figure) * n for kernel, n in kernels.items()) == sum(
            getattr(kernel, figure) * n for kernel, n in eager.items()
        )


def test_bound_and_band_by_hand() -> None:
    """A slow memory: the bytes that must be read take longer than everything else."""
    (decode,) = predict(made_decode(), DataSheetRates(CARD, Execution.FUSED))
    assert decode.lower_bound.bandwidth_s == pytest.approx(READ_ONCE / 1e9)
    assert decode.device_time.low >= decode.lower_bound.bandwidth_s / 0.946
    assert decode.host_time.high == 0
    assert decode.wall == decode.device_time


def test_eager_launches_cost_what_the_prior_says_or_what_was_measured() -> None:
    (decode,) = predict(made_decode(), DataSheetRates(find_device("h100-sxm")))
    assert decode.host_time.low == pytest.approx(LAUNCHES * 5e-6)
    assert decode.host_time.high == pytest.approx(LAUNCHES * 20e-6)
    assert decode.bound_by is BoundBy.LAUNCHES
    card = replace(CARD, launch_overhead_ns=7000, launch_overhead_fastest_ns=6000, launch_overhead_slowest_ns=9000)
    (measured,) = predict(made_decode(), DataSheetRates(card))
    assert measured.host_time.low == pytest.approx(LAUNCHES * 6e-6)
    assert measured.host_time.high == pytest.approx(LAUNCHES * 9e-6)
    assert measured.bound_by is BoundBy.LAUNCHES
    assert measured.wall.low < measured.wall.high


def test_captured_launches_limit_nothing_and_the_starts_of_kernels_may() -> None:
    """So small that every kernel takes little more than its start: the host's launches in eager, none of them fused."""
    device = find_device("h100-sxm")
    (eager,) = predict(made_decode(), DataSheetRates(device))
    (fused,) = predict(made_decode(), DataSheetRates(device, Execution.FUSED))
    assert (eager.bound_by, fused.bound_by) == (BoundBy.LAUNCHES, BoundBy.KERNEL_STARTS)
    assert fused.host_time.high == 0
    starts = sum(piece.count for piece in fused.pieces) * DataSheetRates(device).priors.vector_floor_us.high * 1e-6
    assert fused.device_time.high < 3 * starts


@pytest.mark.parametrize(("figure_ns", "high_us"), [(7000, 20), (30_000, 30)])
def test_an_overhead_without_its_spread_is_the_least_a_launch_costs(figure_ns: int, high_us: int) -> None:
    (stage,) = predict(made_decode(), DataSheetRates(replace(CARD, launch_overhead_ns=figure_ns)))
    assert stage.host_time.low == pytest.approx(LAUNCHES * figure_ns * 1e-9)
    assert stage.host_time.high == pytest.approx(LAUNCHES * high_us * 1e-6)


def test_a_stage_of_a_calibrated_machine_that_its_launches_bind_has_a_band() -> None:
    """The whole way: the tries of a calibration, its file of devices, the table that is printed."""
    ticks = {"rows": (1, 64), "columns": (640,), "depth": (640,)}
    machine = calibration(
        table("matmul", "bfloat16", ticks, matmul_seconds),
        table("copy", "bfloat16", {"elements": (16, 10**6)}, lambda count: count * 1e-10),
        table("arithmetic", "float32", {"elements": (16,)}, lambda count: 1e-3, spread=0.25),
    )
    (device,) = read_devices(device_text(measured_device(machine)), "machine.toml").values()
    stages = prediction_report((made_decode(),), DataSheetRates(device)).tables[0]
    names = [column.name for column in stages.columns]
    wanted = ("data sheet low", "data sheet high", "bound by")
    ((low, high, bound_by),) = ([row[names.index(name)] for name in wanted] for row in stages.rows)
    assert (low, high) == (pytest.approx(LAUNCHES * 0.75e-3), pytest.approx(LAUNCHES * 1.25e-3))
    assert bound_by == "kernel launches"


@pytest.mark.parametrize(
    ("is_measured", "claim"),
    [(False, "No run is faster than the lower bound"), (True, "measured rates; a run in a quiet moment may be faster")],
)
def test_only_a_data_sheet_gives_a_bound_that_nothing_beats(is_measured: bool, claim: str) -> None:
    report = prediction_report((made_decode(),), DataSheetRates(replace(CARD, is_measured=is_measured)))
    notes = " ".join(note.text for note in report.notes)
    assert claim in notes
    assert claim in report.charts[0].caption
    assert ("No run is faster" in notes) is not is_measured


@pytest.mark.parametrize("execution", Execution)
def test_on_every_known_device_the_bound_lies_below_the_band(execution: Execution) -> None:
    for device in load_devices().devices.values():
        if "bf16" not in device.peak_flops_per_s and "fp16" not in device.peak_flops_per_s:
            continue
        stages = predict(made_decode(2), DataSheetRates(device, execution))
        for stage in stages:
            assert 0 < stage.lower_bound.seconds <= stage.device_time.low <= stage.device_time.high
        assert total_wall(stages).low >= sum(stage.lower_bound.seconds for stage in stages)


def test_the_report_shows_bound_band_and_limit_and_says_what_it_rests_on() -> None:
    report = prediction_report((small_run(), made_decode(4)), DataSheetRates(find_device("a10g")))
    stages, details, ops = report.tables
    assert {row[0] for row in ops.rows} == {"prefill", "decode"}
    assert [row[0] for row in stages.rows] == ["vision", "prefill", "decode"]
    names = [column.name for column in stages.columns]
    for row in stages.rows:
        bound, low, high = (row[names.index(name)] for name in ("lower bound", "data sheet low", "data sheet high"))
        assert isinstance(bound, float) and isinstance(low, float) and isinstance(high, float)
        assert bound <= low <= high
    assert stages.footer[names.index("kernel launches")] == 4 + 3 + 4 * LAUNCHES
    assert len(details.rows) == 3
    notes = " ".join(note.text for note in report.notes)
    assert "The 4 steps of the decode take" in notes
    assert "decode is bound by its" in notes
    bars, roofline = report.charts
    assert [series.name for series in bars.series] == ["lower bound", "low", "high"]  # type: ignore[union-attr]
    assert len(roofline.lines) == 2 + 3  # type: ignore[union-attr]


def doubts(*graphs: CallGraph, device: Device) -> list[str]:
    """The unverified figures that a prediction warns of."""
    notes = prediction_report(graphs, DataSheetRates(device)).notes
    told = [note.text for note in notes if note.level is Level.WARNING and "not read in a source" in note.text]
    return told[0].rpartition(": ")[2].rstrip(".").split(", ") if told else []


def test_every_unverified_figure_that_is_used_is_a_warning_and_no_other() -> None:
    """The A10G: fp32, tf32, L2, power and year were not read, its memory is nominal; bfloat16 needs L2 and memory."""
    a10g = find_device("a10g")
    assert {"tdp_w", "compute_units", "peak_tflops_dense.tf32"} <= set(a10g.unverified)
    assert doubts(made_decode(), device=a10g) == ["l2_mib", "memory_gb"]
    in_float32 = ["l2_mib", "memory_gb", "peak_tflops_dense.fp32", "peak_tflops_dense.tf32"]
    assert doubts(small_run(), device=a10g) == doubts(small_run(), made_decode(), device=a10g) == in_float32
    assert doubts(small_run(), made_decode(), device=find_device("h100-sxm")) == []
    ada = find_device("rtx-6000-ada")
    assert doubts(made_decode(), device=ada) == ["bandwidth_gb_per_s", "l2_mib", "memory_gb", "peak_tflops_dense.bf16"]
    small_l2 = replace(ada, last_cache_bytes=10**9)
    assert "l2_mib" not in doubts(made_decode(), device=small_l2), "the larger cache is the one that is granted"


def test_a_rate_that_a_device_does_not_have_is_a_warning() -> None:
    report = prediction_report((small_run(),), DataSheetRates(replace(CARD, peak_flops_per_s={"bf16": 10**14})))
    assert any("no known rate for float32" in note.text for note in report.notes)


def test_what_an_engine_launches_has_another_name_than_the_launches_of_the_code() -> None:
    """`sweep`, `plan` and `study` count the launches as written, whoever runs them."""
    graph = made_decode()
    (eager,), (fused,) = (predict(graph, DataSheetRates(CARD, execution)) for execution in Execution)
    assert (eager.launches, eager.engine_kernels) == (LAUNCHES, None)
    assert fused.launches == LAUNCHES
    assert fused.engine_kernels == sum(piece.count for piece in fused.pieces)
    reports = [prediction_report((graph,), DataSheetRates(CARD, execution)) for execution in Execution]
    counts = [
        {"kernel launches", "engine kernels"} & {one.name for one in report.tables[0].columns} for report in reports
    ]
    assert counts == [{"kernel launches"}, {"engine kernels"}]
    told = [any("kernel launches and the band" in note.text for note in report.notes) for report in reports]
    assert told == [True, False]
