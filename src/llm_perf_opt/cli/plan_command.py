"""`llm-perf-opt plan`: which parallel plan for so many devices; with traffic, how many devices for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DevicesOption,
    ExecutionOption,
    ModelArgument,
    RoutingOption,
    TrafficOptions,
    TrustOption,
    WeightsOption,
    refuse_single_batch,
    takes_options,
    takes_workload,
)
from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    reserve_page,
    show,
)
from llm_perf_opt.cli.progress import few_lines_per_trace, say
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.report import Report

ClusterOption = Annotated[
    str,
    typer.Option(
        metavar="CLUSTER",
        help="The devices: 8x h100-sxm, 4x8 h100-sxm, 72x gb200. Under --traffic several, with commas.",
        show_default=False,
    ),
]
GlobalBatchOption = Annotated[
    int, typer.Option(min=1, help="Sequences that run together on all devices; replicas of dp and ranks of fsdp share.")
]
MaxPlansOption = Annotated[
    int, typer.Option(min=1, help="Trace at most so many plans, those with the fewest kinds of parallelism.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report there; the suffix is the format. .html has the chart."),
]


@takes_workload(without=("batch", "decode_steps", "new_tokens"))
@takes_options(TrafficOptions, "requests")
def plan(
    model: ModelArgument,
    devices: ClusterOption,
    workload: Mapping[str, Any],
    global_batch: GlobalBatchOption = 1,
    devices_file: DevicesOption = None,
    execution: ExecutionOption = "fused",
    max_plans: MaxPlansOption = 64,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    routing: RoutingOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
    *,
    requests: TrafficOptions,
) -> None:
    """Try every parallel plan of MODEL_OR_DIR on a cluster; print the best first, and why others are refused.

    A plan is tp x pp x fsdp x dp devices, with experts spread over the ranks of tp and fsdp. Under --traffic
    requests go through vLLM's own scheduler: how long they take, what limits, and how many GPUs keep a promise or a
    deadline.
    """
    from llm_perf_opt.api.plans import plans as try_plans

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    asked: dict[str, Any] = {"devices_file": devices_file, "weights": weights, "cache": cache, "routing": routing}
    asked |= {"trust_remote_code": trust_remote_code, **workload}
    if requests.traffic is not None:
        refuse_single_batch(workload if global_batch == 1 else {"global_batch": global_batch, **workload})
        report = _under_traffic(model, devices, requests, asked, out, force=force)
        if report is not None:
            show(report, reporter, verbose=verbose)
            say("Nothing written: add --out capacity.html for the charts, --chrome-trace replay.json for Perfetto.")
        return
    with model_prints_apart(), few_lines_per_trace():
        answer = try_plans(model, devices, global_batch=global_batch, execution=execution, max_plans=max_plans, **asked)
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
    if (best := answer.best) is not None and best.plan.is_spread:
        options = {**best.plan.sizes(), **workload, "batch": best.batch, "device": str(answer.cluster)}
        words = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items())
        say(f"Next: llm-perf-opt predict {shlex.quote(model)} {words} --execution {execution}")


def _under_traffic(
    model: str, devices: str, requests: TrafficOptions, asked: Mapping[str, Any], out: Path | None, *, force: bool
) -> Report | None:
    """The answer as a report; None where it was written to a file."""
    from llm_perf_opt.api.capacity import capacity

    chrome_trace = None if requests.chrome_trace is None else Path(requests.chrome_trace)
    if chrome_trace is not None:
        free_file(chrome_trace, force=force)
    assert requests.traffic is not None
    with model_prints_apart(), few_lines_per_trace():
        answer = capacity(model, devices, requests.traffic, **requests.asked(), **asked)
    if chrome_trace is not None:
        say(f"Wrote {answer.save_chrome_trace(chrome_trace, force=force)}; open it at https://ui.perfetto.dev")
    if out is None:
        return answer.report()
    say(f"Wrote {answer.save(out, force=force)}")
    return None
