"""How long a single run takes on a device: the options of `trace` for it, and the report they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.work_limits import refuse_decode_steps
from llm_perf_opt.core.workload import Deployment

if TYPE_CHECKING:
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.trace import Trace
    from llm_perf_opt.core.report import Report
    from llm_perf_opt.measurements.measured_points import Given

WEIGHTLESS = "weightless"

CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="In place of a device: a calibration, from llm-perf-opt devices calibrate."),
]
EngineOption = Annotated[
    Literal["vllm", "sglang", "trtllm"] | None,
    typer.Option(help="Whose measured kernels run, with --execution fused. Default: vllm."),
]
MeasuredOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Correct the times by what was measured: a line such as 'ttft=0.5s tpot=20ms batch=16', a file of that, a "
        "result of vllm bench serve, genai-perf, AIPerf or guidellm, a GPU recording, the folder of a profile. May be "
        "repeated.",
    ),
]
WhatIfOption = Annotated[
    Literal["attention"] | None,
    typer.Option(help="In place of the time: eager, fused and flash attention side by side."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The machine that a run is timed on, and how; without a machine nothing is timed."""

    device: str | None
    devices: Path | None
    calibration: Path | None
    execution: str
    rates: str | None
    engine: str | None
    what_if: str | None
    measured: Given | None

    @classmethod
    def make(cls, *, measured: Sequence[str] | None, **machine: Any) -> Self:
        """Measurements are read at once: a file that cannot be is refused before any work."""
        if not measured:
            return cls(**machine, measured=None)
        from llm_perf_opt.measurements.measured_points import read_given

        return cls(**machine, measured=read_given(measured))

    def checked(
        self, tracer: str, torch_device: str | None, *, is_saved: bool, weights: str | None, cache: str | None
    ) -> str | None:
        """The torch device that code sees; what does not go together is refused before any work.

        A saved trace may name its device itself.
        """
        from llm_perf_opt.timing.rate_sources import find_machine, torch_device_of

        Deployment.make(weights=weights, cache=cache)
        if self.what_if is not None:
            self._refuse_with_what_if()
        if self.device is None and self.calibration is None:
            if not is_saved:
                _refuse_without_machine(self._given())
            return torch_device
        if tracer != WEIGHTLESS:
            _refuse_real_run(tracer, {"--calibration": self.calibration, **self._given()})
            return torch_device
        machine = find_machine(self.device, weights=weights, cache=cache, **self._machine())
        return torch_device or torch_device_of(machine)

    def workload(self, given: Mapping[str, Any], *, is_kept: bool) -> tuple[dict[str, Any], int | None]:
        """The workload to trace, and how many decode steps are computed from the first one alone; None: none are.

        A trace that is kept holds every step that was asked for.
        """
        steps = given.get("decode_steps", 1)
        refuse_decode_steps(steps)
        if is_kept or self.what_if is not None or steps <= 1 or (self.device or self.calibration) is None:
            return dict(given), None
        return {**given, "decode_steps": 1}, steps

    def report(self, traced: Trace, stages: StagesAnswer, decode_steps: int | None) -> Report | None:
        """The time of a run in front of what it costs; None: there is no machine to time it on."""
        from llm_perf_opt.tracing.deployed_traces import deployed_device

        if self.device is None and self.calibration is None and deployed_device(traced.graphs) is None:
            _refuse_without_machine(self._given())
            return None
        if self.what_if is not None:
            return traced.what_if(self.what_if, self.device, devices_file=self.devices).report()
        asked = {**self._machine(), "decode_steps": decode_steps, "measured": self.measured}
        report = traced.predict(self.device, **asked).report()
        costs = stages.report()
        notes = dict.fromkeys((*report.notes, *costs.notes))
        return replace(report, tables=(*report.tables, *costs.tables), notes=tuple(notes))

    def _machine(self) -> dict[str, Any]:
        return {
            "calibration": self.calibration,
            "devices_file": self.devices,
            "execution": self.execution,
            "rates": self.rates,
            "engine": self.engine,
        }

    def _given(self) -> dict[str, Any]:
        """What says how a machine is timed, as it is spelled."""
        return {
            "--execution": None if self.execution == "eager" else self.execution,
            "--rates": self.rates,
            "--engine": self.engine,
            "--measured": self.measured,
            "--what-if": self.what_if,
        }

    def _refuse_with_what_if(self) -> None:
        """What a comparison of kinds of attention has no use for."""
        if self.calibration is not None or self.execution != "eager":
            raise UsageError(
                "--what-if takes a device and eager execution.",
                why="a calibration has not measured every kind of attention, and an engine chooses its own",
                fix="leave --calibration and --execution out",
            )
        if self.rates == "tables" or self.engine is not None:
            raise UsageError(
                "--what-if compares kinds of attention by the data sheet.",
                why="tables hold one measured attention for a shape, not one of each kind",
                fix="leave --rates and --engine out",
            )
        if self.measured:
            raise UsageError(
                "--what-if takes no --measured.",
                why="one measurement is of one kind of attention, and corrects no other",
                fix="leave one of the two out",
            )


def _refuse_without_machine(given: Mapping[str, Any]) -> None:
    for option in (option for option, value in given.items() if value):
        raise UsageError(
            f"{option} is about the time on a device.",
            why="neither --device nor --calibration is given",
            fix="add --device h100-sxm: llm-perf-opt devices list",
        )


def _refuse_real_run(tracer: str, given: Mapping[str, Any]) -> None:
    for option in (option for option, value in given.items() if value):
        raise UsageError(
            f"{option} has no use with --tracer {tracer}.",
            why="a real run has times of its own, measured on this machine",
            fix=f"leave {option} out, or trace weightlessly",
        )
