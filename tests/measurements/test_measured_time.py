"""Measured time on priced modules, on a run that can be added up by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.measurements.measured_time import measured_times, time_report
from tests.costs.small_run import PROJECT_FLOPS, finished, small_run

LINEAR = OpKind(name="aten::linear", inputs=(), outputs=())
# path, start, end: the calls of `small_run`, root 0 to 100
CALLS = (
    ("", 0, 100),
    ("encoder", 10, 30),
    ("norm", 25, 28),
    ("encoder", 30, 60),
    ("norm", 50, 52),
    ("decoder", 60, 95),
    ("norm", 80, 90),
)


def timed_run(*, device: bool = False, extra_call: bool = False, phase: str = "prefill") -> CallGraph:
    run = CallGraphBuilder()
    for path, children in {"": ("encoder", "decoder", "norm"), "encoder": (), "decoder": (), "norm": ()}.items():
        run.module(path, "Module", children, {})
    stack: list[int] = []
    for path, start, end in (*CALLS, *((("decoder", 95, 98),) if extra_call else ())):
        while stack and stack[-1] <= start:
            run.leave((), stack.pop())
        run.enter(path, (), start)
        stack.append(end)
        run.timed_op(LINEAR, duration_ns=2, device_ns=4 if device else None)
    while stack:
        run.leave((), stack.pop())
    return finished(run, phase)


def test_stages_share_out_the_whole_time_and_take_the_flops_of_the_priced_run() -> None:
    timed = timed_run()
    assert timed.problems() == []
    times = measured_times(timed, small_run())
    by_name = {stage.name: stage for stage in times.stages}
    # A norm inside an encoder belongs to vision: 20 + 30; the rest of 100 is the phase's.
    assert {name: stage.wall_ns for name, stage in by_name.items()} == {"vision": 50, "prefill": 50}
    assert by_name["vision"].flops == 2 * PROJECT_FLOPS
    assert by_name["vision"].flops_per_s == pytest.approx(2 * PROJECT_FLOPS / 50e-9)
    assert (times.total.wall_ns, times.total.flops, times.total.calls) == (100, 3 * PROJECT_FLOPS, 7)


def test_modules_have_their_own_time_and_that_of_what_they_call() -> None:
    times = measured_times(timed_run(), small_run())
    by_path = {module.name: (module.own_ns, module.wall_ns, module.flops) for module in times.modules}
    assert by_path == {
        "": (15, 100, 3 * PROJECT_FLOPS),
        "encoder": (45, 50, 2 * PROJECT_FLOPS),
        "decoder": (25, 35, PROJECT_FLOPS),
        "norm": (15, 15, 0),
    }
    assert [module.name for module in times.modules][:2] == ["encoder", "decoder"]


def test_with_a_device_the_rate_is_that_of_its_kernels() -> None:
    times = measured_times(timed_run(device=True), small_run())
    encoder = next(module for module in times.modules if module.name == "encoder")
    assert (encoder.wall_ns, encoder.device_ns) == (50, 16)  # two calls, each with its own op and that of a norm
    assert encoder.flops_per_s == pytest.approx(2 * PROJECT_FLOPS / 16e-9)
    assert times.total.device_ns == 28


def test_without_a_priced_run_the_flops_are_unknown() -> None:
    times = measured_times(timed_run(), None)
    assert {stage.flops for stage in times.stages} == {None}
    assert times.total.flops_per_s is None


def test_a_module_that_is_called_differently_often_gets_no_rate() -> None:
    times = measured_times(timed_run(extra_call=True), small_run())
    assert times.recounted == ("decoder",)
    assert next(module for module in times.modules if module.name == "decoder").flops is None


def test_another_phase_or_a_run_without_times_is_refused() -> None:
    with pytest.raises(PerfOptError, match="cannot be priced"):
        measured_times(timed_run(), small_run(phase="decode"))
    with pytest.raises(PerfOptError, match="holds no times"):
        measured_times(small_run(), None)


@pytest.mark.parametrize("device", [False, True])
def test_the_columns_of_the_report_add_up(device: bool) -> None:
    report = time_report([timed_run(device=device)], [small_run()])
    stages, modules = report.tables
    assert stages.footer[1:4] == tuple(sum(row[column] for row in stages.rows) for column in (1, 2, 3))  # type: ignore[misc]
    assert sum(row[3] for row in modules.rows) == pytest.approx(stages.footer[2])  # type: ignore[misc]
    assert ("device time" in [column.name for column in stages.columns]) is device
