"""`llm-perf-opt serve`: which GPU, how many, which plan, how fast, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from llm_perf_opt.cli.model_options import (
    DevicesOption,
    ModelArgument,
    RoutingOption,
    TrustOption,
    read_prices,
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
from llm_perf_opt.core.options import OptionRecord, option
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.workload import Deployment

_FORMATS = Deployment.options()
_OF_REQUESTS = ("batch", "decode_steps", "new_tokens", "prompt_tokens", "image", "crops")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions(OptionRecord):
    """What is asked of a fleet, and what of its plan is fixed."""

    taken_by: ClassVar[str] = "A fleet"

    input: str | None = option(None, metavar="TOKENS", help="Prompt: 4000, uniform(100,900), lognormal(800,0.8).")
    output: str = option("500", metavar="TOKENS", help="Answer, in the same words.")
    users: int | None = option(None, at_least=1, help="Users at once; each asks again when it has its answer.")
    rate: str | None = option(None, metavar="RATE", help="Requests that come by themselves: 20/s, 90/min.")
    slo: str | None = option(
        None, metavar="LIMITS", help="ttft=2s,tpot=40ms of 99 in 100 requests; p95,e2e=30s for another share."
    )
    weights: str | None = option(None, metavar="FORMAT", help=_FORMATS["weights"].help)
    cache: str | None = option(None, metavar="FORMAT", help=_FORMATS["cache"].help)
    page: str | None = option(None, metavar="SIZE", help="A page to read in each request: A4@150dpi, 1240x1754.")
    pages: int | None = option(None, at_least=1, help="Pages to read in all, --within a time.")
    within: str | None = option(None, metavar="TIME", help="The deadline of --pages: 72h.")
    price: str | None = option(
        None, metavar="GPU=PRICE,...", help="Of a GPU hour: h100-sxm=2.5. Default: the list prices that ship."
    )
    engine: str = option("vllm", metavar="ENGINE,...", help="vllm, sglang, trtllm, or several.")
    replay: bool = option(False, help="The best fleets also through vLLM's own scheduler. Needs vLLM.")
    engine_only: bool = option(False, help="TTFT as the engine sees it: without HTTP, tokenising and clients.")
    max_gpus: int = option(512, at_least=1, help="The largest fleet that is searched.")
    tp: int | None = option(None, at_least=1, help="Ranks that share each matrix. Default: all are tried.")
    ep: int | None = option(None, at_least=1, help="Ranks that share the experts: 1, or tp x attention-dp.")
    pp: int | None = option(None, at_least=1, help="Stages that share the layers. Default: where needed.")
    attention_dp: int | None = option(
        None, at_least=1, help="Groups of --tp ranks that share the experts of a replica."
    )
    max_sequences: str | None = option(
        None, metavar="N,...", help="max_num_seqs, or several. Default: the engine's own."
    )
    max_batched_tokens: str | None = option(
        None, metavar="N,...", help="max_num_batched_tokens, or several. Default: the engine's own."
    )

    def asked(self) -> dict[str, Any]:
        """What `lpo.serve` takes."""
        given = {name: value for name, value in self.changed().items() if name != "price"}
        return given if self.price is None else {**given, "prices": read_prices(self.price)}


GpusOption = Annotated[
    str, typer.Option(metavar="GPU,...", help="GPUs to choose from: l4,h100-sxm; or a number: 2x a100-sxm-80g.")
]
WriteOption = Annotated[
    Path | None,
    typer.Option("--write", metavar="FOLDER", help="Write what starts the best fleet: command, Compose, Kubernetes."),
]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there; .html has the chart.")]


@takes_workload(without=_OF_REQUESTS)
@takes_options(DemandOptions, "demand")
def serve(
    model: ModelArgument,
    gpus: GpusOption,
    demand: DemandOptions,
    out: OutOption = None,
    write: WriteOption = None,
    devices_file: DevicesOption = None,
    routing: RoutingOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
    *,
    workload: Mapping[str, Any],
) -> None:
    """Which GPU, how many and which plan serve MODEL_OR_DIR: TTFT, TPOT, throughput and cost, the best first.

    The number of GPUs is searched: every plan that fits, by its steady state, sized for --users, --rate or --pages.
    """
    from llm_perf_opt.api.serve import serve as size_fleets
    from llm_perf_opt.serving.deployment_files import SCRIPT

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    if write is not None:
        free_file(write / SCRIPT, force=force)
    asked: dict[str, Any] = {"devices_file": devices_file, "routing": routing}
    asked |= {"trust_remote_code": trust_remote_code, **demand.asked(), **workload}
    with model_prints_apart(), few_lines_per_trace():
        answer = size_fleets(model, gpus, **asked)
    for path in () if write is None else answer.save_deployment(write, force=force):
        say(f"Wrote {path}")
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
    if write is None and answer.best is not None:
        say("Next: add --write deploy/ for the files that start it, --out serve.html for the chart.")
