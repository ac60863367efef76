"""What if the attention ran another way: one model and workload, every kind of attention side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.memory import eager_and_fused
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Hardware, cluster_of, device_of, find_hardware, require_room
from llm_perf_opt.core.report import Note, Report
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.costs.run_description import deployment_notes, workload_note
from llm_perf_opt.timing.attention_what_if import ALL, AttentionWhatIf, attention_what_if, what_if_report
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.tracing.deployed_traces import deployed_device
from llm_perf_opt.tracing.traced_run import TracedRun

QUESTIONS = ("attention",)
_BY_SHEET = (
    "Every kind of attention is timed by the data sheet, because no table has measured each of them. A prediction of "
    "the traced code uses measured kernels where it has them, so its times differ and are closer to a real run."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionAnswer(Answer):
    """Every stage with attention in every kind of it. `device` None: no times."""

    model: str
    device: Device | None
    cases: tuple[AttentionWhatIf, ...]
    _graphs: tuple[CallGraph, ...]

    def report(self) -> Report:
        """One table over the kinds of attention."""
        machine = None if self.device is None else self.device.name
        report = what_if_report(f"{self.model}: what if the attention ran another way", self.cases, machine)
        by_sheet = () if machine is None else (Note(_BY_SHEET),)
        notes = (workload_note(self._graphs), *deployment_notes(self._graphs), *by_sheet, *report.notes)
        return replace(report, notes=notes, answer=tuple(self._lines(machine)))

    def _lines(self, machine: str | None) -> Iterator[str]:
        """Of each phase the time, or the bytes, in every kind of attention."""
        summed = {case.phase for case in self.cases if case.stage == ALL}  # a phase of one stage has no sum
        totals = [case for case in self.cases if case.stage == ALL or case.phase not in summed]
        for phase in list(dict.fromkeys(case.phase for case in totals))[:2]:
            texts = [f"{case.attention} {_figure(case)}" for case in totals if case.phase == phase]
            where = "" if machine is None else f" on {machine}, by the data sheet"
            yield f"{self.model}, {phase}{where}: {'; '.join(dict.fromkeys(texts))}."
        if not totals:
            yield f"{self.model}: no attention was found in this trace."


def _figure(case: AttentionWhatIf) -> str:
    if case.low_s is not None and case.high_s is not None:
        return f"{format_seconds(case.low_s)} to {format_seconds(case.high_s)}"
    return f"{format_bytes(case.bytes_moved)} moved"


def attention_answer(
    run: TracedRun, device: str | Hardware | None = None, *, devices_file: Path | None = None
) -> AttentionAnswer:
    """The kinds of attention from one run and, where its model is at hand, a trace of the other kind.

    Default device: the one that the run was made for.
    """
    graphs = run._finished()
    device = deployed_device(graphs) if device is None else device
    hardware = None if device is None else find_hardware(device, devices_file)
    if hardware is not None:
        require_room(graphs, hardware)
    single_device = None if hardware is None else device_of(hardware)
    eager, fused = eager_and_fused(graphs, run._other_attention)
    rates = None if hardware is None else DataSheetRates(device_of(hardware), cluster=cluster_of(hardware))
    return AttentionAnswer(
        model=graphs[0].model, device=single_device, cases=attention_what_if(eager, fused, rates), _graphs=graphs
    )


def check_question(what: str) -> None:
    """Refuse a what-if that is not known."""
    if what not in QUESTIONS:
        raise UsageError(f"No what-if {what!r}.", why=f"known: {', '.join(QUESTIONS)}", fix="pick one of these")
