"""`llm-perf-opt report`: one page with everything that needs no weights, or the tables of traces made earlier."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.api.drawing import report_format_of
from llm_perf_opt.cli.model_options import (
    MODEL_HELP,
    CacheOption,
    TrustOption,
    WeightsOption,
    deployment_of,
    takes_workload,
)
from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, model_prints_apart, show
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.protocols import REPORTERS, Deployment, Reporter, Workload
from llm_perf_opt.core.report import Report

SourcesArgument = Annotated[
    list[str],
    typer.Argument(metavar="MODEL_OR_TRACE...", help=f"{MODEL_HELP} Or traces made earlier.", show_default=False),
]
TimesOption = Annotated[
    list[Path] | None, typer.Option(metavar="TRACE", help="Traces that measured time, to put on the costs.")
]
DeviceOption = Annotated[str | None, typer.Option(help="Predict for this device: llm-perf-opt devices list.")]
DevicesOption = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with devices of your own.")]
ExportsOption = Annotated[bool, typer.Option("--exports", help="Also try what exports; takes a minute more.")]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there; the suffix is the format.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the written page in a browser.")]


@takes_workload()
def report(
    sources: SourcesArgument,
    workload: Workload,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    times: TimesOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    exports: ExportsOption = False,
    out: OutOption = None,
    force: ForceOption = False,
    open_page: OpenOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Write one report of MODEL_OR_TRACE: what runs, what it costs, does it fit, how fast could it be.

    Of traces made earlier, without --out and --device, it prints the per-stage tables alone; that needs no torch.
    """
    reporter = _reporter(format_name, json_wanted, out)
    deployment = deployment_of(weights, cache)
    _refuse_overwriting(out, force=force, open_page=open_page)
    if devices is None and _is_for_tables(sources, out, device):
        _show_tables(sources, times or (), reporter, workload, deployment, exports)
        return
    made = _whole(_one(sources, times), workload, deployment, device, devices, exports, trust_remote_code)
    if out is None:
        show(made, reporter)
        return
    write_result(out, reporter.render(made))
    say(f"Wrote {out}")
    if open_page:
        webbrowser.open(out.resolve().as_uri())


def _is_for_tables(sources: Sequence[str], out: Path | None, device: str | None) -> bool:
    from llm_perf_opt.api.trace_files import are_traces

    return out is None and device is None and are_traces(sources)


def _show_tables(
    sources: Sequence[str],
    times: Sequence[Path],
    reporter: Reporter,
    workload: Workload,
    deployment: Deployment,
    exports: bool,
) -> None:
    from llm_perf_opt.api.trace_files import refuse_wishes
    from llm_perf_opt.api.tracing import report_on

    refuse_wishes(workload, exports=exports)
    show(report_on([Path(source) for source in sources], times, deployment), reporter)


def _one(sources: Sequence[str], times: Sequence[Path] | None) -> str:
    if len(sources) != 1 or times:
        raise UsageError(
            "One report is made of one model or one folder of traces.",
            why="several traces and --times are for the tables alone",
            fix="leave --out and --device away, or name one model",
        )
    return sources[0]


def _whole(
    model: str,
    workload: Workload,
    deployment: Deployment,
    device: str | None,
    devices: Path | None,
    exports: bool,
    trust_remote_code: bool,
) -> Report:
    from llm_perf_opt.api.whole_report import WholeRequest, run_whole_report

    request = WholeRequest(
        model=model,
        workload=workload,
        deployment=deployment,
        device=device,
        devices_file=devices,
        with_exports=exports,
        trust_remote_code=trust_remote_code,
    )
    with model_prints_apart():
        return run_whole_report(request)


def _reporter(format_name: str | None, json_wanted: bool, out: Path | None) -> Reporter:
    if out is None or format_name or json_wanted:
        return choose_reporter(format_name, json_wanted)
    return REPORTERS.get(report_format_of(out))()


def _refuse_overwriting(out: Path | None, *, force: bool, open_page: bool) -> None:
    if open_page and out is None:
        raise UsageError("There is no page to open.", why="nothing is written", fix="add --out report.html")
    if out is not None:
        free_file(out, force=force)
