"""A trace: what a model ran, one call graph per phase, and every question that can be asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_perf_opt.api.answer import report_suffixes
from llm_perf_opt.core import number_ranges
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.workload import ANSWER_TOKENS
from llm_perf_opt.tracing.deployed_traces import deployed_device
from llm_perf_opt.tracing.traced_phases import reserve_folder, write_graphs
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    import pandas

    from llm_perf_opt.api.advise import AdviceAnswer
    from llm_perf_opt.api.comparison import ComparisonAnswer
    from llm_perf_opt.api.cost import CostAnswer
    from llm_perf_opt.api.export import ExportAnswer
    from llm_perf_opt.api.graph import GraphAnswer
    from llm_perf_opt.api.join import JoinAnswer
    from llm_perf_opt.api.memory import MemoryAnswer
    from llm_perf_opt.api.per_rank import RanksAnswer
    from llm_perf_opt.api.prediction import PredictionAnswer
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.trace_function import TraceFunction
    from llm_perf_opt.api.what_if import AttentionAnswer
    from llm_perf_opt.api.whole_report import WholeReport
    from llm_perf_opt.core.hardware import Device
    from llm_perf_opt.core.hardware.calibration import Calibration
    from llm_perf_opt.core.hardware.links import Hardware
    from llm_perf_opt.measurements.measured_points import Given


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trace(TracedRun):
    """What ran, one call graph per phase. It prints as the table of stages and shows as HTML in a notebook.

    `origin` is the model that was traced; a trace that was read from files has none, and is asked from what it holds.
    """

    others: tuple[Trace, ...] = ()  # of a model that is split between ranks: one of each further kind of rank

    @classmethod
    def of(cls, run: TracedRun) -> Trace:
        """The same run, with every question that can be asked of it."""
        held = {field.name: getattr(run, field.name) for field in fields(run)}
        return cls(**held | {"others": tuple(map(cls.of, run.others))})

    @property
    def ranks(self) -> tuple[Trace, ...]:
        """One trace for each kind of rank, itself first."""
        return (self, *self.others)

    def stages(self, times: Trace | None = None) -> StagesAnswer:
        """What each stage runs and costs; with `times`, a trace that measured, how long it took."""
        from llm_perf_opt.api.stages import stages_answer

        others = [other.graphs for other in self.others]
        return stages_answer(self.graphs, None if times is None else times.graphs, others)

    def cost(
        self, sources: Sequence[str] | Literal["all"] | None = None, *, other_attention: bool = False
    ) -> CostAnswer:
        """What each stage costs from several sources, and why they differ.

        Default sources: the count of the trace and, where the model has one, the closed form. The others run the model
        again. `other_attention` traces the other attention code too, for the memory that it takes.
        """
        from llm_perf_opt.api.cost import cost_of_run

        return cost_of_run(self, sources, other_attention=other_attention)

    def memory(
        self, device: str | Hardware | None = None, *, devices_file: Path | None = None, other_attention: bool = False
    ) -> MemoryAnswer:
        """What a device must hold, and whether `device` does."""
        from llm_perf_opt.api.memory import memory_answer

        other = self._other_attention if other_attention else ()
        return memory_answer(self._finished(), device, devices_file=devices_file, other_attention=other)

    def predict(
        self,
        device: str | Hardware | None = None,
        *,
        calibration: str | Path | Calibration | None = None,
        devices_file: Path | None = None,
        execution: str = "eager",
        rates: str | None = None,
        engine: str | None = None,
        decode_steps: int | None = None,
        measured: Given | None = None,
    ) -> PredictionAnswer:
        """How long each stage takes, from the figures of a device or from a calibration of one machine.

        `rates` is "tables", measured kernels of the device or scaled from the nearest, or "data-sheet". Default: tables
        where they are installed (extra `kernels`) and come near the device. `engine` is the engine of the measured
        kernels: "vllm", "sglang" or "trtllm", with `execution="fused"`. Default: vllm.

        `decode_steps` adds the whole run: the prefill and this many steps, each with one more token in the cache. They
        are evaluated at once from a few further traces. Default device: the one that the trace was made for.

        `measured` corrects the times by what was measured: a line such as `ttft=0.5s tpot=20ms batch=16`, a file of
        figures, the result of a load generator, a GPU recording, the folder of a `profile`; or a list of these.
        """
        from llm_perf_opt.api.prediction import prediction_answer, with_decode_steps
        from llm_perf_opt.timing.rate_sources import find_machine

        graphs = self._finished()
        if device is None and calibration is None:
            device = deployed_device(graphs)
        machine = find_machine(
            device,
            calibration=calibration,
            devices_file=devices_file,
            execution=execution,
            graphs=graphs,
            rates=rates,
            engine=engine,
        )
        others = [other._finished() for other in self.others]
        answer = prediction_answer(graphs, machine, execution, others, rates=rates, engine=engine)
        if decode_steps is not None:
            answer = with_decode_steps(self, answer, decode_steps)
        if measured is None:
            return answer
        from llm_perf_opt.api.corrected_prediction import corrected_prediction

        return corrected_prediction(self, answer, measured)

    def advise(
        self,
        device: str | Hardware | None = None,
        *,
        devices_file: Path | None = None,
        execution: str = "eager",
        rates: str | None = None,
        engine: str | None = None,
        output: int = ANSWER_TOKENS,
        measured: Given | None = None,
        users: int | None = None,
        rate: str | None = None,
    ) -> AdviceAnswer:
        """Where the time of a request goes, from the time as it runs now to the lower bound, and what to change first.

        `execution` says how it runs now, `output` how many tokens a request generates; `rates` and `engine` are as in
        `predict`. With `measured`, a line such as `ttft=0.5s tpot=20ms` or a file, the ladder begins at what was
        measured. With `users` at once, or a `rate` such as `20/s`, an engine answers other requests too: what they
        take of this one are rungs of their own. Default device: the one that the trace was made for.
        """
        from llm_perf_opt.api.advise import advice_answer

        return advice_answer(
            self,
            device,
            devices_file=devices_file,
            execution=execution,
            rates=rates,
            engine=engine,
            output=output,
            measured=measured,
            users=users,
            rate=rate,
        )

    def per_rank(
        self, device: str | Hardware | None = None, *, devices_file: Path | None = None, execution: str = "eager"
    ) -> RanksAnswer | None:
        """What each kind of rank of the plan holds, runs and communicates; None for a model on one device.

        With a cluster such as `8x h100-sxm` also whether each rank fits and how long its phases take. Default device:
        the one that the trace was made for.
        """
        from llm_perf_opt.api.per_rank import per_rank

        return per_rank(self, device, devices_file=devices_file, execution=execution)

    def what_if(
        self, what: str = "attention", device: str | Hardware | None = None, *, devices_file: Path | None = None
    ) -> AttentionAnswer:
        """The same workload with eager, fused and flash attention: FLOPs, bytes, peak memory and, on a device, time.

        The other kind is traced where the model can be run; flash is a formula. Default device: the one that the trace
        was made for.
        """
        from llm_perf_opt.api.what_if import attention_answer, check_question

        check_question(what)
        return attention_answer(self, device, devices_file=devices_file)

    def graph(
        self,
        phase: str | None = None,
        *,
        depth: int | None = None,
        focus: str | None = None,
        max_boxes: int | None = None,
        metric: str = "flops",
        only: str | Sequence[str] | None = None,
        stage: str | Sequence[str] | None = None,
        min_share: float | str | None = None,
        ungrouped: bool = False,
    ) -> GraphAnswer:
        """One phase folded into families of modules. Default: the first phase. Saved as `.html` it holds all of them.

        `only` (families such as `linear`, class names, path patterns), `stage` and `min_share` of the metric (0.005 or
        `0.5%`) leave modules out; what they cost stands in boxes named `left out`. `ungrouped` folds nothing: each
        module is a box, and the format `dot` draws the call graph with counts.
        """
        from llm_perf_opt.api.graph import graph_answer

        return graph_answer(
            self._phase(phase),
            self.graphs,
            depth=depth,
            focus=focus,
            max_boxes=max_boxes,
            metric=metric,
            only=only,
            stage=stage,
            min_share=min_share,
            ungrouped=ungrouped,
        )

    def over(
        self,
        *,
        batch: number_ranges.Given | range = 1,
        context: number_ranges.Given | range,
        new_tokens: number_ranges.Given | range | None = None,
        traces: int | None = None,
    ) -> TraceFunction[Trace]:
        """The trace as a function of batch and context, over ranges of both: `over(batch="1..512", context="1k..8k")`.

        A range is a text as on the command line, `range(1, 513)`, or the pair of its ends: `(1, 512)` is 1 to 512.

        With a range of `new_tokens` it has a further phase, `chunk`: a step of this many new tokens on a cache of
        `context` tokens.

        It is made from at most `traces` further traces per phase, and proven by those that took no part in it.
        """
        from llm_perf_opt.api.trace_function import TraceFunction
        from llm_perf_opt.sweeps.run_function import TRACES, trace_function

        most = TRACES if traces is None else traces
        function = trace_function(
            self,
            batch=number_ranges.read_ends(batch, "batch"),
            context=number_ranges.read_ends(context, "context"),
            new_tokens=None if new_tokens is None else number_ranges.read_ends(new_tokens, "new_tokens"),
            traces=most,
        )
        return TraceFunction.of(function)

    def join(
        self,
        recording: str | Path,
        phase: str | None = None,
        *,
        step: str | int | None = None,
        device: str | Device | None = None,
        devices_file: Path | None = None,
    ) -> JoinAnswer:
        """Lay the kernels of a GPU recording on the ops of one phase: time, FLOP/s, MFU and MBU by stage and module.

        `recording` is a Chrome trace of torch.profiler or an export of Nsight Systems. `step` is the `ProfilerStep` to
        take, or a range such as `6-8`. Default: the last one, and all kernels where none is marked. Default phase: the
        first; default device: the one that the recording names.
        """
        from llm_perf_opt.api.join import join_answer

        return join_answer(self._phase(phase), recording, step=step, device=device, devices_file=devices_file)

    def export(self, *parts: str, **options: Any) -> ExportAnswer:
        """Which parts become static graphs, and why others do not; `options` are as in `lpo.export`."""
        from llm_perf_opt.api.export import export_parts

        return export_parts(self._origin(), parts, **options)

    def compare(
        self,
        other: Trace,
        *,
        phases: Sequence[str] = (),
        budgets: Sequence[str] = (),
        rows: int | None = None,
        device: str | Hardware | None = None,
        devices_file: Path | None = None,
        execution: str = "fused",
        rates: str | None = None,
    ) -> ComparisonAnswer:
        """What differs in `other`, why, and whether it stays within the budgets.

        A budget is text such as `prefill.flops<=+1%`, `peak_memory<=20GiB` or `decode.time<=+3%`. Times are on
        `device`, by default as an engine runs it; `execution` and `rates` are as for `predict`. Default device: the one
        that both traces were made for.
        """
        from llm_perf_opt.api.comparison import comparison_answer

        return comparison_answer(
            self,
            other,
            phases=phases,
            budgets=budgets,
            rows=rows,
            device=device,
            devices_file=devices_file,
            execution=execution,
            rates=rates,
        )

    def report(
        self,
        *,
        device: str | Hardware | Sequence[str | Hardware] | None = None,
        devices_file: Path | None = None,
        execution: str = "eager",
        rates: str | None = None,
        engine: str | None = None,
        output: int = ANSWER_TOKENS,
        exports: bool = False,
        sweep: bool = False,
    ) -> WholeReport:
        """All of it on one page: what it costs, does it fit, what runs and, with `device`, how fast it is.

        With GPUs it begins with what `lpo.serve` says of the traced prompt, `output` tokens and a user for each
        sequence of the batch; the times of the traced code come next to it. Several devices, `["l4", "h100-sxm"]` or
        `"l4,h100-sxm"`, stand side by side. `execution`, `rates` and `engine` are as in `predict`.

        `sweep` adds how that changes with batch and context, `exports` what exports; both run the model many times.
        """
        from llm_perf_opt.api.whole_report import whole_report

        return whole_report(
            self,
            device=device,
            devices_file=devices_file,
            execution=execution,
            rates=rates,
            engine=engine,
            output=output,
            exports=exports,
            sweep=sweep,
        )

    def save(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """Keep the call graphs, one file per phase; `load` reads them again."""
        folder = Path(folder)
        if folder.suffix in report_suffixes():
            raise UsageError(
                f"{folder} is not a folder.",
                why="a trace is saved as a folder of call graphs",
                fix="name a folder, or save what the trace answers: trace.report().save(...)",
            )
        reserve_folder(folder, self.phases, force=force)
        return write_graphs(self.graphs, folder, force=force)

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """The table of stages as a data frame, or another one of `stages().tables`."""
        return self.stages().to_pandas(table)

    def __repr__(self) -> str:
        return repr(self.stages())

    def _repr_html_(self) -> str:
        return self.stages()._repr_html_()
