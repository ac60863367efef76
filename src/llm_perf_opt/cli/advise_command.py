"""`llm-perf-opt advise`: where the time of a request goes, and which change saves how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    SERVER_WORDS,
    CacheOption,
    DeviceOption,
    DevicesOption,
    ExecutionOption,
    RatesOption,
    RoutingOption,
    SourceArgument,
    TrustOption,
    WeightsOption,
    takes_workload,
    trace_or_load,
)
from llm_perf_opt.cli.output import (
    ForceFileOption,
    FormatOption,
    JsonOption,
    ReportFileOption,
    VerboseOption,
    choose_reporter,
    reserve_page,
    show,
)
from llm_perf_opt.cli.progress import few_lines_per_trace, say
from llm_perf_opt.cli.trace_command import EngineOption
from llm_perf_opt.core.workload import ANSWER_TOKENS

OutputOption = Annotated[
    int, typer.Option("--output", min=1, metavar="TOKENS", help="Tokens that a request generates.")
]
MeasuredTimeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIME|FILE",
        help="Begin at what was measured: 12ms for a decode step, a line such as 'ttft=0.5s tpot=20ms', or a file of "
        "figures. May be repeated.",
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="With --execution fused: arrival rate of requests, 20/s or 90/min. Queueing and prefills of other "
        "requests are rungs of their own; so they are with --users.",
    ),
]


@takes_workload(plans=True, without=("decode_steps",), words=SERVER_WORDS)
def advise(
    model: SourceArgument,
    workload: Mapping[str, Any],
    device: DeviceOption = None,
    output: OutputOption = ANSWER_TOKENS,
    execution: ExecutionOption = "eager",
    rate: RateOption = None,
    measured: MeasuredTimeOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    out: ReportFileOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    devices: DevicesOption = None,
    rates: RatesOption = None,
    engine: EngineOption = None,
    routing: RoutingOption = None,
    force: ForceFileOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Say where the time of a request to MODEL_OR_TRACE goes, and which change saves how much of it.

    The ladder leads from the time as it runs now, or as it was measured, down to the lower bound. Each change is made
    in the trace or in its deployment, and priced again.
    """
    from llm_perf_opt.measurements.measured_points import read_given

    reporter = choose_reporter(format_name, json_wanted, out)
    reserve_page(out, force=force)
    given = None if not measured else read_given([_as_line(one) for one in measured])
    alone, users = dict(workload), None
    if execution == "fused":
        users = alone.pop("batch", None)  # an engine takes each request when it comes, so it is traced alone
    with few_lines_per_trace():
        traced = trace_or_load(
            model, alone, weights=weights, cache=cache, routing=routing, trust_remote_code=trust_remote_code
        )
        answer = traced.advise(
            device,
            devices_file=devices,
            execution=execution,
            rates=rates,
            engine=engine,
            output=output,
            measured=given,
            users=users,
            rate=rate,
        )
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.summary(), reporter, verbose=verbose)


def _as_line(given: str) -> str:
    """A time alone is the time of a decode step."""
    number = given.strip().removesuffix("s").removesuffix("m").removesuffix("u")
    is_time = number.replace(".", "", 1).isdigit() and given.strip().endswith("s")
    return f"tpot={given.strip()}" if is_time else given
