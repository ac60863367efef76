"""Everything that needs no weights in one report: what it costs, how fast it could be, does it fit, what runs.

It begins with its questions, each answered in one line, and what it holds for: devices, plan, stored formats, code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.advise import AdviceAnswer, advice_answer
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.cost import QUICK_SOURCES, CostAnswer, cost_of_run
from llm_perf_opt.api.export import ExportAnswer, export_parts
from llm_perf_opt.api.graph import grouped
from llm_perf_opt.api.per_rank import RanksAnswer, per_rank
from llm_perf_opt.api.prediction import PhaseBand, PredictionAnswer, prediction_answer
from llm_perf_opt.api.serve import ServeAnswer, serve
from llm_perf_opt.api.what_if import AttentionAnswer, attention_answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.export_outcome import Check, PartOutcome, Verdict
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import (
    Cluster,
    Hardware,
    cluster_of,
    device_of,
    find_devices,
    find_hardware,
    hardware_id,
    is_several,
    require_room,
)
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Level, Note, Report, Series, Table
from llm_perf_opt.core.units import (
    format_bytes,
    format_count,
    format_flops,
    format_parameters,
    format_ratio,
    format_seconds,
)
from llm_perf_opt.core.workload import ANSWER_TOKENS
from llm_perf_opt.costs.collectives import collectives_table, family_collectives, total_of
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.memory.memory_report import memory_report
from llm_perf_opt.costs.memory.need import RunMemory
from llm_perf_opt.costs.run_description import deployment_notes, rank_text, run_notes, weights_sentence, workload_note
from llm_perf_opt.costs.stage_costs import stage_report
from llm_perf_opt.costs.static_figures import StageCompute
from llm_perf_opt.graphs.call_checks import call_checks, with_call_checks
from llm_perf_opt.serving.fit import TracedFit, traced_fit, with_serving_fit
from llm_perf_opt.serving.served_trace import request_of
from llm_perf_opt.timing.attention_what_if import ALL as ALL_STAGES
from llm_perf_opt.timing.attention_what_if import AttentionWhatIf
from llm_perf_opt.timing.datasheet_rates import SOURCE, Execution
from llm_perf_opt.timing.rate_sources import refuse_rates
from llm_perf_opt.timing.speed import speed_text
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    from llm_perf_opt.api.sweep import SweepAnswer

_FIRST = ("How fast", "Does it fit")
Devices = str | Hardware | Sequence[str | Hardware]  # one, or several to compare; a text may name several with commas

_UNKNOWN = "not known"
_SERVER = "How fast does a server run it?"
_CODE = "The traced code"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WholeReport(Answer):
    """One page with a chapter per question. `exports` is None where nothing was exported."""

    model: str
    cost: CostAnswer
    device: Device | None  # the first, which memory is compared with
    cluster: Cluster | None = None  # of these devices, where several were named
    predictions: tuple[PredictionAnswer, ...] = ()  # one for each device; none: no device, or nothing ran to its end
    advice: AdviceAnswer | None = None  # for the first device; None: no device, or a phase stopped half-way
    exports: ExportAnswer | None
    attention: AttentionAnswer | None = None  # None: a phase stopped half-way, or there is no attention
    sweep: SweepAnswer | None = None  # None: not asked for
    ranks: RanksAnswer | None = None  # None: the model runs on one device, or a phase stopped half-way
    server: ServeAnswer | None = None  # None: no device, or `why_no_server`
    why_no_server: str | None = None

    @property
    def answer(self) -> tuple[str, ...]:
        """What a server reaches, and next to it the traced code; without a server that code, or the costs."""
        if self.server is not None:
            server_lines = self.server.answer
            return (*server_lines[:2], " ".join((code_line(self.predictions, self.server), *server_lines[2:])))
        lines = self.cost.answer
        if self.predictions and not self.cost.stopped:
            first, second, *_ = self.predictions[0].answer
            lines = (f"{_CODE}: {first}", second)
        return lines if self.why_no_server is None else (*lines[:2], f"No server figure. {self.why_no_server}")

    def report(self) -> Report:
        """The answers at a glance and what they hold for, then the chapters: costs and speed before pictures."""
        graphs, answered = self.cost.graphs, tuple(self._chapters())
        in_answer = self.answer
        others = [(chapter, line) for chapter, line in answered if line not in in_answer]
        several = (machine_table(graphs, self.predictions),) if len(self.predictions) > 1 else ()
        return Report(
            title=self.model,
            answer=in_answer,
            tables=(glance_table(others), *several, deployment_table(graphs, self.predictions)),
            notes=(
                *([workload_note(graphs), *run_notes(graphs)] if graphs else []),
                Note("Everything here comes from the model's own code: no weights were read and nothing was timed."),
            ),
            chapters=tuple(chapter for chapter, _ in answered),
        )

    def summary(self) -> Report:
        """The same for a terminal: how fast it is and whether it fits before what it costs."""
        report = self.report()
        first = [chapter for chapter in report.chapters if chapter.title.startswith(_FIRST)]
        return replace(report, chapters=(*first, *(chapter for chapter in report.chapters if chapter not in first)))

    def _chapters(self) -> Iterator[tuple[Report, str]]:
        """Every chapter that was asked for, with its answer in one line, which may be that it is not known."""
        run = self.cost
        yield replace(run.summary(), title="What does it cost?"), what_it_costs(run.stages)
        yield from self._speed()
        yield self._fit()
        if (collectives := collectives_table(run.graphs)) is not None:
            notes = tuple(deployment_notes(run.graphs))
            title = "What do the ranks communicate?"
            yield Report(title=title, tables=(collectives,), notes=notes), what_ranks_communicate(run.graphs)
        if self.ranks is not None:
            yield replace(self.ranks.report(), title="What does each rank hold and run?"), what_ranks_hold(self.ranks)
        if self.attention is not None:
            yield self._attention(self.attention), other_attention(self.attention.cases)
        if self.sweep is not None:
            yield replace(self.sweep.report(), title="How does it change with batch and context?"), self.sweep.headline
        if self.exports is not None:
            yield replace(self.exports.report(), title="What exports?"), what_exports(self.exports.parts)
        if run.memory is None:
            yield self._not_known("What runs?")
        else:
            yield _with_stopped(_what_runs(run.graphs), run.stopped), what_runs(run, run.graphs, run.stopped)

    def _speed(self) -> Iterator[tuple[Report, str]]:
        """Nothing where no device was named."""
        run = self.cost
        if self.server is not None:
            yield server_chapter(self.server), self.server.answer[0].removesuffix(".")
        if self.predictions:
            chapter = _with_stopped(speed_chapter(run.graphs, self.predictions), run.stopped)
            yield chapter, how_fast(run.graphs, self.predictions, run.stopped)
        elif self.device is not None:
            yield self._not_known(f"How fast is the traced code on {self.device.name}?")
        if self.advice is not None:
            yield advice_chapter(self.advice), self.advice.summary().answer[-1].removesuffix(".")

    def _fit(self) -> tuple[Report, str]:
        run, device = self.cost, self.device
        if run.memory is None:
            return self._not_known("Does it fit?")
        serving = None if device is None else traced_fit(run.graphs, device)
        fit = with_serving_fit(memory_report(run.memory, run.attention_cases, device), serving)
        serves = does_it_serve(serving)
        answer = does_it_fit(run.memory, device, run.stopped)
        return _with_stopped(fit, run.stopped), answer if serves is None else f"{answer}; {serves}"

    def _not_known(self, title: str) -> tuple[Report, str]:
        stopped = self.cost.stopped
        return _with_stopped(Report(title=title), stopped), unknown_because("; ".join(dict.fromkeys(stopped.values())))

    def _attention(self, answer: AttentionAnswer) -> Report:
        """The chapter; what ran stands on top of the page."""
        chapter, on_top = answer.report(), workload_note(self.cost.graphs)
        notes = tuple(note for note in chapter.notes if note != on_top)
        return replace(chapter, title="What if the attention ran another way?", notes=notes)


def whole_report(
    run: TracedRun,
    *,
    device: Devices | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    rates: str | None = None,
    engine: str | None = None,
    output: int = ANSWER_TOKENS,
    exports: bool = False,
    sweep: bool = False,
) -> WholeReport:
    """Ask a trace everything. Where its model can be run again, every source but the export is asked about costs."""
    from llm_perf_opt.api.sweep import default_sweep

    refuse_rates(execution, rates, engine)
    machines = find_report_devices(device, devices_file)
    for hardware in machines:
        require_room(run.graphs, hardware)
    first = machines[0] if machines else None
    # Exporting is asked for by its own word, and one rank of several is counted by its trace alone.
    sources = None if run.origin is None or run._plan is not None else QUICK_SOURCES
    cost = cost_of_run(run, sources, other_attention=True)
    times = machines if cost.memory is not None else ()
    with shared_work():
        predictions = tuple(
            prediction_answer(cost.graphs, hardware, execution, rates=rates, engine=engine) for hardware in times
        )
    server, why_no_server = _server(run, device, machines, output, devices_file)
    return WholeReport(
        model=cost.model,
        cost=cost,
        device=None if first is None else device_of(first),
        cluster=None if first is None else cluster_of(first),
        predictions=predictions,
        advice=_advice(run, machines, devices_file, execution, rates, engine, output),
        exports=export_parts(run._origin()) if exports else None,
        attention=_attention(run, first),
        sweep=default_sweep(run, first) if sweep else None,
        ranks=None if any(graph.stopped_in is not None for graph in run.graphs) else per_rank(run, first),
        server=server,
        why_no_server=why_no_server,
    )


def _server(
    run: TracedRun, device: Devices | None, machines: Sequence[Hardware], output: int, devices_file: Path | None
) -> tuple[ServeAnswer | None, str | None]:
    """What `serve` says of the same model, GPUs, formats and tokens; or why it says nothing."""
    if not machines:
        return None, None
    if any(device_of(hardware).torch_device is not None for hardware in machines):
        return None, "A server needs a GPU, and this device is a CPU."
    # `1x h100-sxm` is one GPU to a server, and h100-sxm as many as it needs: a text keeps the difference.
    named = device if isinstance(device, str) else ",".join(map(str, map(hardware_id, machines)))
    try:
        return serve(run, named, output=output, devices_file=devices_file, **request_of(run)), None
    except PerfOptError as error:
        return None, f"{error.what} {error.fix[:1].upper()}{error.fix[1:]}."


def _advice(
    run: TracedRun,
    machines: Sequence[Hardware],
    devices_file: Path | None,
    execution: str,
    rates: str | None,
    engine: str | None,
    output: int,
) -> AdviceAnswer | None:
    """For the first GPU; the changes are of code and engines on GPUs."""
    if not machines or device_of(machines[0]).torch_device is not None:
        return None
    if any(graph.stopped_in is not None or graph.ops is None for graph in run.graphs):
        return None
    return advice_answer(
        run,
        machines[0],
        devices_file=devices_file,
        execution=execution,
        rates=rates,
        engine=engine,
        output=output,
    )


def _attention(run: TracedRun, device: Hardware | None) -> AttentionAnswer | None:
    if not run.graphs or any(graph.stopped_in is not None or graph.ops is None for graph in run.graphs):
        return None
    answer = attention_answer(run, device)
    return answer if answer.cases else None


def find_report_devices(device: Devices | None, devices_file: Path | None) -> tuple[Hardware, ...]:
    """The devices or clusters to predict for; a wrong one is refused before any work."""
    if device is None and devices_file is not None:
        raise UsageError(
            "--devices needs --gpus.",
            why="it is the file that describes devices, and no device was named",
            fix="add --gpus ID, or leave --devices out",
        )
    if device is None:
        return ()
    if isinstance(device, str):
        device = find_devices(device, devices_file) if is_several(device) else [device]
    named = [device] if isinstance(device, Device | Cluster) else device
    every = [find_hardware(name, devices_file) for name in named]
    machines = tuple({hardware_id(hardware): hardware for hardware in every}.values())
    if len({device_of(hardware).torch_device for hardware in machines}) > 1:
        raise UsageError(
            "CPUs and GPUs cannot be compared in one report.",
            why="the model's code may run differently on each of them, and a trace shows only one",
            fix="make a report for each",
        )
    return machines


def _with_stopped(chapter: Report, stopped: Mapping[str, str]) -> Report:
    warnings = (Note(f"{phase} is not known: {reason}", Level.WARNING) for phase, reason in stopped.items())
    return replace(chapter, notes=(*warnings, *chapter.notes))


def _what_runs(graphs: Sequence[CallGraph]) -> Report:
    phases = tuple(Report(title=graph.phase, graph=grouped(graph)) for graph in graphs if graph.calls is not None)
    stages = with_call_checks(stage_report(graphs), call_checks(graphs))
    on_top = (workload_note(graphs), *run_notes(graphs))
    notes = (*(note for note in stages.notes if note not in on_top), *_rest_note(graphs))
    return replace(stages, title="What runs?", notes=notes, chapters=phases)


def _rest_note(graphs: Sequence[CallGraph]) -> tuple[Note, ...]:
    """What a stage means that has the name of its phase, where the phase has other stages too."""
    mixed = [graph.phase for graph in graphs if graph.stages]
    if not mixed:
        return ()
    return (Note(f"The stage {mixed[0]} is everything in that phase that is outside its other stages."),)


def glance_table(answers: Sequence[tuple[Report, str]]) -> Table:
    """One row per chapter; a page turns the questions into links."""
    rows = tuple((chapter.title, answer) for chapter, answer in answers)
    return Table(title="At a glance", columns=(Column("question"), Column("answer")), rows=rows)


def unknown_because(reason: str) -> str:
    """The answer to a question that cannot be answered."""
    return f"{_UNKNOWN}: {reason}"


def _with_unknown(answer: str, phases: Iterable[str]) -> str:
    return ", ".join((answer, *(f"{phase} {_UNKNOWN}" for phase in phases)))


def what_runs(cost: CostAnswer, graphs: Sequence[CallGraph], unknown_phases: Iterable[str] = ()) -> str:
    """Modules and calls of all phases, and the weights behind them."""
    modules = len({path for graph in graphs for path in graph.call_counts})
    calls = sum(sum(graph.call_counts.values()) for graph in graphs)
    parts = [f"{format_count(modules)} modules in {format_count(calls)} calls"]
    if cost.parameters is not None:
        parts.append(f"{format_parameters(cost.parameters)} parameters")
    parts += cost.active_texts
    return _with_unknown(", ".join(parts), unknown_phases)


def what_ranks_communicate(graphs: Sequence[CallGraph]) -> str:
    """The collectives of every phase, and the bytes of their payloads."""
    totals = ((graph.phase, total_of(family_collectives(graph))) for graph in graphs)
    return ", ".join(
        f"{phase} {format_count(total.count)} collectives of {format_bytes(total.payload_bytes)}"
        for phase, total in totals
    )


def what_it_costs(stages: Sequence[StageCompute]) -> str:
    """FLOPs of every phase."""
    by_phase: dict[str, list[int | None]] = {}
    for stage in stages:
        by_phase.setdefault(stage.phase, []).append(stage.flops)
    return ", ".join(f"{phase} {_flops(parts)}" for phase, parts in by_phase.items()) or _UNKNOWN


def _flops(parts: Sequence[int | None]) -> str:
    known = [part for part in parts if part is not None]
    return format_flops(sum(known)) if len(known) == len(parts) else _UNKNOWN


def does_it_fit(memory: RunMemory, device: Device | None, unknown_phases: Collection[str] = ()) -> str:
    """What a device needs at the worst moment, the weights in it, and its share of `device`.

    A phase of which nothing is known may need more than the others, so it can turn a yes into no, and not the reverse.
    """
    if memory.total_bytes is None:
        return _UNKNOWN
    weights = max(phase.weight_bytes for phase in memory.phases)
    answer = f"{format_bytes(memory.total_bytes)} at the peak, of which {format_bytes(weights)} are weights"
    if device is not None:
        fits = _UNKNOWN if unknown_phases else "yes"
        verdict = fits if memory.total_bytes <= device.memory_bytes else "no"
        answer = f"{verdict}: {answer}; {format_ratio(memory.total_bytes / device.memory_bytes)} of {device.name}"
    return _with_unknown(answer, unknown_phases)


def does_it_serve(traced: TracedFit | None) -> str | None:
    """Whether a server holds the traced batch and context, and the most that it could; None: not known."""
    if traced is None or traced[1].fits is None:
        return None
    fit = traced[1]
    most = "" if fit.largest_batch is None else f", at most {format_count(fit.largest_batch)}"
    verdict = "yes" if fit.fits else "no"
    return f"a server holds {format_count(fit.batch)} x {format_count(fit.context)} tokens: {verdict}{most} at once"


def how_fast(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer], unknown: Iterable[str] = ()) -> str:
    """The band of every phase, per step for a decode. Of several machines, the one with the lowest high estimate."""
    best = min(predictions, key=lambda prediction: prediction.high_s)
    bands = ", ".join(_band_text(best.phase_band(graph)) for graph in graphs)
    several = f"fastest of {len(predictions)} is {best.machine}: " if len(predictions) > 1 else ""
    return _with_unknown(f"{several}{bands}", unknown)


def _band_text(band: PhaseBand) -> str:
    return f"{band.name} {format_seconds(band.low_s)} to {format_seconds(band.high_s)}"


def what_exports(parts: Sequence[PartOutcome]) -> str:
    """How many parts torch.export takes."""
    verdicts = Counter(part.outcome(Check.EXPORT).verdict for part in parts)
    return f"{verdicts[Verdict.OK]} of {len(parts)} parts with {Check.EXPORT}"


def other_attention(cases: Sequence[AttentionWhatIf]) -> str:
    """What attention by itself moves in the first phase, kind by kind."""
    first = [case for case in cases if case.phase == cases[0].phase]
    moved: dict[str, int] = {}
    for case in first:
        if case.stage != ALL_STAGES:
            moved[case.attention] = moved.get(case.attention, 0) + case.alone.bytes_moved
    listed = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in moved.items())
    return f"attention moves in {first[0].phase}: {listed}"


def what_ranks_hold(ranks: RanksAnswer) -> str:
    """How many ranks there are of each kind, the most that one of them needs, and whether every one serves."""
    kinds = ", ".join(f"{format_count(kind.ranks)} like rank {kind.rank}" for kind in ranks.kinds)
    needed = [phase.needed_bytes for kind in ranks.kinds for phase in kind.phases]
    known = [size for size in needed if size is not None]
    most = format_bytes(max(known)) if known and len(known) == len(needed) else _UNKNOWN
    serves = "" if ranks.fits is None else f"; every rank holds the batch: {'yes' if ranks.fits else 'no'}"
    return f"{ranks.plan.describe()}: {kinds}; a rank needs at most {most}{serves}"


def deployment_table(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Table:
    """One row for each part of the deployment; what was not named says so."""
    rows = tuple(_rows(graphs, predictions))
    return Table(title="Deployment", columns=(Column("part"), Column("value")), rows=rows)


def _rows(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Iterator[tuple[str, str]]:
    yield (
        "devices",
        ", ".join(prediction.machine for prediction in predictions) or "none named: figures hold for any device",
    )
    if not graphs:
        return
    first = graphs[0]
    plan = plan_in(first.deployment)
    yield "plan", "one device" if plan is None else rank_text(plan)
    yield "weights", weights_sentence(first).removeprefix("Weights: ").removesuffix(".")
    if (cache := kv_cache(graphs)) is not None:
        formats = ", ".join(dict.fromkeys(meta.dtype for meta in cache.tensors))
        origin = first.deployment.get("cache_from")
        yield "cache", f"{formats} ({origin})" if origin else formats
    code = first.deployment.get("code")
    yield "code", "the model's own" if code is None else f"{first.deployment.get('engine', code)}, its classes"
    yield from _semantics(predictions)


def _semantics(predictions: Sequence[PredictionAnswer]) -> Iterator[tuple[str, str]]:
    """Who launches kernels, and where their times come from."""
    if not predictions:
        return
    first = predictions[0]
    engine = f"; kernels of {first.engine}" if first.engine else ""
    yield "execution", f"{Execution(first.execution).text}{engine}"
    sources = dict.fromkeys(prediction.rates for prediction in predictions)
    named = (
        f"{source} ({', '.join(prediction.machine for prediction in predictions if prediction.rates == source)})"
        for source in sources
    )
    yield "times from", next(iter(sources)) if len(sources) == 1 else "; ".join(named)


def code_line(predictions: Sequence[PredictionAnswer], server: ServeAnswer) -> str:
    """The times of the traced code on the GPU that the server has, or else on the first."""
    best = None if server.best is None else server.best.device
    first = next(
        (prediction for prediction in predictions if prediction.device is not None and prediction.device.id == best),
        predictions[0],
    )
    where = f", on {first.machine}" if len(predictions) > 1 else ""
    fit = "" if first.shortage is None else "does not fit; if it fit, "
    source = "by the data sheet, " if first.rates == SOURCE else ""
    return f"{_CODE}, {Execution(first.execution).text}{where}: {fit}{source}{speed_text(first.speed)}."


def server_chapter(server: ServeAnswer) -> Report:
    """The report of `serve`, with a note on how to get it alone."""
    chapter, demand = server.report(), Note(f"{server.asked}. Options named here are options of llm-perf-opt serve.")
    return replace(chapter, title=_SERVER, answer=(), notes=(demand, *chapter.notes))


def advice_chapter(advice: AdviceAnswer) -> Report:
    """The report of `advise` without its waterfall: its first table has the same figures. The machine is named."""
    return replace(advice.report(), title=f"What should I change first on {advice.machine}?", charts=())


def speed_title(predictions: Sequence[PredictionAnswer]) -> str:
    """The question, with the machine where there is but one."""
    machine = f" on {predictions[0].machine}" if len(predictions) == 1 else ""
    is_eager = predictions[0].execution == Execution.EAGER
    return f"How fast is the traced code{machine}?" if is_eager else f"How fast are its ops{machine}, fused?"


def speed_chapter(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Report:
    """The stages on one machine; of several a chart for each phase, and a chapter for each machine."""
    if len(predictions) == 1:
        return replace(predictions[0].times(), title=speed_title(predictions))
    return Report(
        title=speed_title(predictions),
        charts=tuple(_charts(graphs, predictions)),
        chapters=tuple(replace(prediction.times(), title=prediction.machine) for prediction in predictions),
    )


def machine_table(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Table:
    """A row for each phase on each machine: its times, and whether the machine has the memory."""
    rows = [(prediction, prediction.phase_band(graph)) for prediction in predictions for graph in graphs]
    has_expected = any(band.expected_s is not None for _, band in rows)
    edges = ("low", "expected", "high") if has_expected else ("data sheet low", "data sheet high")
    times = ("lower bound", *edges)
    memory = (Column("needed by the run", Kind.BYTES), Column("of its memory", Kind.RATIO), Column("fits"))
    return Table(
        title="By device",
        columns=(Column("device"), Column("phase"), *(Column(name, Kind.SECONDS) for name in times), *memory),
        rows=tuple(
            (prediction.machine, band.name, *_times(band, has_expected), *_memory(prediction))
            for prediction, band in rows
        ),
        origin="the chapters on speed and memory of this device, below",
    )


def _times(band: PhaseBand, has_expected: bool) -> tuple[Cell, ...]:
    expected = (band.expected_s,) if has_expected else ()
    return (band.lower_bound_s, band.low_s, *expected, band.high_s)


def _memory(prediction: PredictionAnswer) -> tuple[Cell, ...]:
    needed, device = prediction.needed_bytes, prediction.device
    share = None if needed is None or device is None else needed / device.memory_bytes
    return needed, share, {True: "yes", False: "no", None: None}[prediction.fits]


def _charts(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Iterator[BarChart]:
    """A chart for each phase: lower bound, low and high of every machine."""
    for graph in graphs:
        bands = [prediction.phase_band(graph) for prediction in predictions]
        yield BarChart(
            title=f"Predicted time by device: {bands[0].name}",
            categories=tuple(prediction.machine for prediction in predictions),
            series=(
                Series("lower bound", tuple(band.lower_bound_s for band in bands)),
                Series("low", tuple(band.low_s for band in bands)),
                Series("high", tuple(band.high_s for band in bands)),
            ),
            kind=Kind.SECONDS,
            interval=("low", "high"),
            caption="Nothing runs faster than the lower bound; a run is expected between low and high.",
        )
