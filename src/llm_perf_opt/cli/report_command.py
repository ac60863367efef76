"""`llm-perf-opt report`: one page with everything that needs no weights, or the tables of traces made earlier."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    typer.Argument(metavar="MODEL_OR_TRACE...", help=f"{MODEL_HELP} Or traces made earlier.", show_default=False),
]
TimesOption = Annotated[
    list[Path] | None, typer.Option(metavar="TRACE", help="Traces that measured time, to put on the costs.")
]
ExportsOption = Annotated[bool, typer.Option("--exports", help="Also try what exports; takes a minute more.")]
SweepOption = Annotated[
    bool, typer.Option("--sweep", help="Also over batch 1..64 and context 1k..8k; takes a minute more.")
]
GpusOption = Annotated[
    str | None,
    typer.Option(metavar="GPU,...", help='Times on these: h100-sxm, "8x h100-sxm"; several: l4,h100-sxm, or all.'),
]
OutputOption = Annotated[
    int | None,
    typer.Option(
        "--output", min=1, help="Tokens of an answer, for the figures of a server; the trace decodes one. Default: 500."
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
    """Write one report of MODEL_OR_TRACE: what runs, what it costs, does it fit and, with --gpus, how fast it is.

    With --gpus it begins with what a server reaches, as llm-perf-opt serve says it.

    Of traces made earlier, without --out and --gpus, it prints the per-stage tables alone; that needs no torch.
    """
    reporter = choose_reporter(format_name, json_wanted, out)
    _refuse_overwriting(out, force=force, open_page=open_page)
    formats, longer = {"weights": weights, "cache": cache}, {"exports": exports, "sweep": sweep}
    if gpus is None and (execution != "eager" or output is not None):
        raise UsageError(
            f"{'--output' if output else '--execution'} needs --gpus.", why="it is about times", fix="add --gpus ID"
        )
    refuse_decode_steps(output or 1)
    if devices is None and _is_for_tables(sources, out, gpus):
        answer: StagesAnswer | WholeReport = _stages(sources, times or (), workload, formats, longer)
    else:
        machine: dict[str, Any] = {"device": gpus, "devices_file": devices, "execution": execution}
        machine |= {} if output is None else {"output": output}
        answer = _whole(_one(sources, times), workload, formats, machine, longer, trust_remote_code)
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


def _one(sources: Sequence[str], times: Sequence[Path] | None) -> str:
    if len(sources) != 1 or times:
        raise UsageError(
            "One report is made of one model or one folder of traces.",
            why="several traces and --times are for the tables alone",
            fix="leave --out and --gpus away, or name one model",
        )
    return sources[0]


def _whole(
    model: str,
    workload: Mapping[str, Any],
    formats: Mapping[str, str | None],
    machine: Mapping[str, Any],
    longer: Mapping[str, bool],
    trust_remote_code: bool,
) -> StagesAnswer | WholeReport:
    """`machine`: the devices, the file they are looked up in, who launches kernels, and the tokens of an answer."""
    from llm_perf_opt.api.whole_report import find_report_devices
    from llm_perf_opt.core.hardware.links import device_of
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    found = find_report_devices(machine["device"], machine["devices_file"])
    if is_trace(model):
        refuse_options(in_server_words(workload), **longer, output=machine.get("output"))
    traced = trace_or_load(
        model,
        workload,
        weights=formats["weights"],
        cache=formats["cache"],
        torch_device=device_of(found[0]).torch_device if found else None,
        keep_partial=True,
        trust_remote_code=trust_remote_code,
    )
    with model_prints_apart():
        return traced.report(exports=longer["exports"], sweep=longer["sweep"], **machine)


def _refuse_overwriting(out: Path | None, *, force: bool, open_page: bool) -> None:
    if open_page and out is None:
        raise UsageError("There is no page to open.", why="nothing is written", fix="add --out report.html")
    if out is not None:
        free_file(out, force=force)
