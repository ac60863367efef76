"""`llm-perf-opt report`: one page with everything that needs no weights, or the tables of traces made earlier."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import typer

from llm_perf_opt.cli.model_options import (
    MODEL_HELP,
    SERVER_WORDS,
    CacheOption,
    DevicesOption,
    ExecutionOption,
    TrustOption,
    WeightsOption,
    in_server_words,
    takes_workload,
    trace_or_load,
)
from llm_perf_opt.cli.output import (
    FormatOption,
    JsonOption,
    ReportFileOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    show,
)
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.protocols import FitsOneScreen
from llm_perf_opt.core.work_limits import refuse_decode_steps

if TYPE_CHECKING:
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.whole_report import WholeReport

SourcesArgument = Annotated[
    list[str],
    typer.Argument(metavar="MODEL_OR_TRACE...", help=f"{MODEL_HELP} Or saved traces.", show_default=False),
]
TimesOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="TRACE", help="Traces of real runs, to show measured times next to the costs."),
]
ExportsOption = Annotated[bool, typer.Option("--exports", help="Also try which parts export; takes another minute.")]
SweepOption = Annotated[
    bool, typer.Option("--sweep", help="Also sweep batch 1..64 and context 1k..8k; takes another minute.")
]
GpusOption = Annotated[
    str | None,
    typer.Option(metavar="GPU,...", help='GPUs to time it on: h100-sxm, "8x h100-sxm"; several: l4,h100-sxm; or all.'),
]
OutputOption = Annotated[
    int | None,
    typer.Option(
        "--output", min=1, help="Tokens of an answer, for the server's figures; the trace decodes one. Default: 500."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the written page in a browser.")]


@takes_workload(plans=True, without=("decode_steps",), words=SERVER_WORDS)
def report(
    sources: SourcesArgument,
    workload: Mapping[str, Any],
    weights: WeightsOption = None,
    cache: CacheOption = None,
    times: TimesOption = None,
    gpus: GpusOption = None,
    output: OutputOption = None,
    devices: DevicesOption = None,
    execution: ExecutionOption = "eager",
    exports: ExportsOption = False,
    sweep: SweepOption = False,
    out: ReportFileOption = None,
    force: ForceOption = False,
    open_page: OpenOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Write one report on MODEL_OR_TRACE: what runs, what it costs, whether it fits and, with --gpus, how fast it is.

    With --gpus it begins with what a server reaches, as in llm-perf-opt serve.

    For saved traces, without --out and --gpus, it prints only the tables per stage; no torch is needed.
    """
    reporter = choose_reporter(format_name, json_wanted, out)
    _refuse_overwriting(out, force=force, open_page=open_page)
    formats, longer = {"weights": weights, "cache": cache}, {"exports": exports, "sweep": sweep}
    if gpus is None and (execution != "eager" or output is not None):
        raise UsageError(
            f"{'--output' if output else '--execution'} needs --gpus.",
            why="it has an effect on times only",
            fix="add --gpus ID",
        )
    refuse_decode_steps(output or 1)
    if devices is None and _is_for_tables(sources, out, gpus):
        answer: StagesAnswer | WholeReport = _stages(sources, times or (), workload, formats, longer)
    else:
        machine = _Machine(device=gpus, devices_file=devices, execution=execution)
        if output is not None:
            machine["output"] = output
        answer = _whole(_single_source(sources, times), workload, formats, machine, longer, trust_remote_code)
    if out is None:
        is_short = isinstance(reporter, FitsOneScreen) and not verbose
        show(answer.summary() if is_short else answer.report(), reporter, verbose=verbose)
        return
    write_result(out, reporter.render(answer.report()))
    say(f"Wrote {out}")
    if open_page:
        webbrowser.open(out.resolve().as_uri())


def _is_for_tables(sources: Sequence[str], out: Path | None, gpus: str | None) -> bool:
    from llm_perf_opt.tracing.trace_files import are_traces

    return out is None and gpus is None and are_traces(sources)


def _stages(
    sources: Sequence[str],
    times: Sequence[Path],
    workload: Mapping[str, Any],
    formats: Mapping[str, str | None],
    longer: Mapping[str, bool],
) -> StagesAnswer | WholeReport:
    from llm_perf_opt.api.tracing import load
    from llm_perf_opt.tracing.trace_files import refuse_options

    refuse_options(in_server_words(workload), **longer)
    return load(sources, **formats).stages(load(times) if times else None)


def _single_source(sources: Sequence[str], times: Sequence[Path] | None) -> str:
    if len(sources) != 1 or times:
        raise UsageError(
            "One report is made of one model or one folder of traces.",
            why="several traces and --times are for the tables alone",
            fix="leave --out and --gpus out, or name one model",
        )
    return sources[0]


class _Machine(TypedDict):
    """The devices, the file they are looked up in, who launches kernels, and the tokens of an answer."""

    device: str | None
    devices_file: Path | None
    execution: str
    output: NotRequired[int]


def _whole(
    model: str,
    workload: Mapping[str, Any],
    formats: Mapping[str, str | None],
    machine: _Machine,
    longer: Mapping[str, bool],
    trust_remote_code: bool,
) -> StagesAnswer | WholeReport:
    from llm_perf_opt.api.whole_report import find_report_devices
    from llm_perf_opt.core.hardware.links import device_of
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    machines = find_report_devices(machine["device"], machine["devices_file"])
    if is_trace(model):
        refuse_options(in_server_words(workload), **longer, output=machine.get("output"))
    traced = trace_or_load(
        model,
        workload,
        weights=formats["weights"],
        cache=formats["cache"],
        torch_device=device_of(machines[0]).torch_device if machines else None,
        keep_partial=True,
        trust_remote_code=trust_remote_code,
    )
    with model_prints_apart():
        return traced.report(exports=longer["exports"], sweep=longer["sweep"], **machine)


def _refuse_overwriting(out: Path | None, *, force: bool, open_page: bool) -> None:
    if open_page and out is None:
        raise UsageError("There is no page to open.", why="no file is written", fix="add --out report.html")
    if out is not None:
        free_file(out, force=force)
