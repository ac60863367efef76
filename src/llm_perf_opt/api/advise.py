"""What to change first: where the time of a run goes, and which change saves how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.advice.advice_report import advice_report
from llm_perf_opt.advice.advise import Advice, Change, advise
from llm_perf_opt.advice.ladder import Ladder
from llm_perf_opt.advice.load import Load
from llm_perf_opt.advice.measured import measured_phases
from llm_perf_opt.advice.pricing import Pricer
from llm_perf_opt.advice.savings import coloured, saved_by_module
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.graph import grouped
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Hardware, find_hardware, hardware_id, require_room
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.units import format_count
from llm_perf_opt.core.workload import ANSWER_TOKENS
from llm_perf_opt.measurements.measured_points import Given, read_given
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.tracing.deployed_traces import deployed_device
from llm_perf_opt.tracing.traced_run import TracedRun


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AdviceAnswer(Answer):
    """The ladder of one request, and the changes in the order in which to make them.

    `changes` may replace the code by an engine's; `in_code` are those that stay in PyTorch.
    """

    model: str
    machine: str
    execution: str
    ladder: Ladder
    changes: tuple[Change, ...]
    in_code: tuple[Change, ...]
    written_s: float  # one request as it runs now
    engine_s: float | None
    price_per_million: float | None
    _advice: Advice
    _asked: str
    _setup: Setup

    def report(self) -> Report:
        """The answer, the ladder as table and waterfall, the changes, and a picture of each phase."""
        return replace(self.summary(), chapters=tuple(self._pictures()))

    def summary(self) -> Report:
        """The same without pictures, for a terminal."""
        return advice_report(
            self._advice, f"{self.model} on {self.machine}: what to change first", self._asked, self.machine
        )

    def _pictures(self) -> Iterator[Report]:
        """Each phase with the colour of the rung that takes most of a box; on an engine there is nothing to fuse."""
        with shared_work():
            for graph in self._setup.graphs:
                savings = saved_by_module(self._setup, graph, self.ladder)
                if savings and graph.calls is not None:
                    yield Report(title=f"What can be saved in {graph.phase}", graph=coloured(grouped(graph), savings))


def advice_answer(
    run: TracedRun,
    device: str | Hardware | None,
    *,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    rates: str | None = None,
    engine: str | None = None,
    output: int = ANSWER_TOKENS,
    measured: Given | None = None,
    users: int | None = None,
    rate: str | None = None,
) -> AdviceAnswer:
    """The advice for one run; of a model that is spread, for the first kind of rank."""
    graphs = run._finished()
    hardware = _hardware(graphs, device, devices_file)
    load = Load.given(output, users, rate)
    setup = Setup(graphs=graphs, hardware=hardware, execution=Execution(execution), load=load)
    phases = None if measured is None else measured_phases(read_given(measured).runs, graphs, users)
    advice = advise(setup, Pricer(rates, engine), output_tokens=output, measured_s=phases)
    expected = advice.written.expected
    assert expected is not None
    return AdviceAnswer(
        model=graphs[0].model,
        machine=hardware_id(hardware) or setup.device.name,
        execution=execution,
        ladder=advice.ladder,
        changes=advice.changes,
        in_code=advice.in_code,
        written_s=expected,
        engine_s=advice.engine_s,
        price_per_million=advice.price_per_million,
        _advice=advice,
        _asked=_asked(setup, output),
        _setup=setup,
    )


def _hardware(graphs: tuple[CallGraph, ...], device: str | Hardware | None, devices_file: Path | None) -> Hardware:
    named = deployed_device(graphs) if device is None else device
    if named is None:
        raise UsageError(
            "Advice needs a device.",
            why="what a change saves depends on the device",
            fix="add --device h100-sxm: llm-perf-opt devices list",
        )
    hardware = find_hardware(named, devices_file)
    require_room(graphs, hardware)
    return hardware


def _asked(setup: Setup, output: int) -> str:
    graphs = setup.graphs
    first = graphs[0].workload
    context = first.get("context_tokens", first.get("prompt_tokens"))
    batch = first.get("batch", 1)
    tokens = (
        f"{format_count(batch)} x {format_count(context)} tokens in" if isinstance(context, int) else f"batch {batch}"
    )
    out = f", {format_count(output)} out" if any(graph.phase == "decode" for graph in graphs) else ""
    others = "" if setup.load is None else f", {setup.load.text}"
    return f"{graphs[0].model}, {tokens}{out}{others}, {setup.execution.text}"
