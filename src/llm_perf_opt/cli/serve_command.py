"""`llm-perf-opt serve`: which GPU, how many, which plan, how fast, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DevicesOption,
    ModelArgument,
    RoutingOption,
    TrustOption,
    WeightsOption,
    read_prices,
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

_OF_REQUESTS = ("batch", "decode_steps", "new_tokens", "prompt_tokens", "image", "crops")

GpusOption = Annotated[
    str, typer.Option(metavar="GPU,...", help="GPUs to choose from: l4,h100-sxm; or a number: 2x a100-sxm-80g.")
]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="TOKENS", help="Prompt: 4000, uniform(100,900), lognormal(800,0.8).")
]
OutputOption = Annotated[str, typer.Option("--output", metavar="TOKENS", help="Answer, in the same words.")]
UsersOption = Annotated[int | None, typer.Option(min=1, help="Users at once; each asks again when it has its answer.")]
RateOption = Annotated[str | None, typer.Option(metavar="RATE", help="Requests that come by themselves: 20/s, 90/min.")]
SloOption = Annotated[
    str | None,
    typer.Option(metavar="LIMITS", help="ttft=2s,tpot=40ms of 99 in 100 requests; p95,e2e=30s for another share."),
]
PageOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="A page to read in each request: A4@150dpi, 1240x1754.")
]
PagesOption = Annotated[int | None, typer.Option(min=1, help="Pages to read in all, --within a time.")]
WithinOption = Annotated[str | None, typer.Option(metavar="TIME", help="The deadline of --pages: 72h.")]
PriceOption = Annotated[
    str | None, typer.Option(metavar="GPU=PRICE,...", help="Of a GPU hour: h100-sxm=2.5. Default: list prices.")
]
EngineOption = Annotated[str, typer.Option(metavar="ENGINE,...", help="vllm, sglang, trtllm, or several.")]
MaxGpusOption = Annotated[int, typer.Option(min=1, max=65_536, help="The largest fleet that is searched.")]
EngineOnlyOption = Annotated[
    bool, typer.Option("--engine-only", help="TTFT without HTTP, tokenising and clients; as the engine sees it.")
]
ReplayOption = Annotated[
    bool, typer.Option("--replay", help="The best fleets also through vLLM's own scheduler, side by side. Needs vLLM.")
]
WriteOption = Annotated[
    Path | None,
    typer.Option("--write", metavar="FOLDER", help="Write what starts the best fleet: command, Compose, Kubernetes."),
]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there; .html has the chart.")]
TpOption = Annotated[int | None, typer.Option(min=1, help="Ranks that share each matrix. Default: all are tried.")]
EpOption = Annotated[int | None, typer.Option(min=1, help="Ranks that share the experts: 1, or tp x attention-dp.")]
PpOption = Annotated[int | None, typer.Option(min=1, help="Stages that share the layers. Default: where needed.")]
GroupsOption = Annotated[
    int | None, typer.Option("--attention-dp", min=1, help="Groups of --tp ranks that share the experts of a replica.")
]
SequencesOption = Annotated[
    str | None, typer.Option(metavar="N,...", help="max_num_seqs, or several. Default: the engine's own.")
]
BatchedOption = Annotated[
    str | None, typer.Option(metavar="N,...", help="max_num_batched_tokens, or several. Default: the engine's own.")
]


@takes_workload(without=_OF_REQUESTS)
def serve(
    model: ModelArgument,
    gpus: GpusOption,
    input_tokens: InputOption = None,
    output_tokens: OutputOption = "500",
    users: UsersOption = None,
    rate: RateOption = None,
    slo: SloOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    page: PageOption = None,
    pages: PagesOption = None,
    within: WithinOption = None,
    price: PriceOption = None,
    engine: EngineOption = "vllm",
    replay: ReplayOption = False,
    out: OutOption = None,
    write: WriteOption = None,
    json_wanted: JsonOption = False,
    engine_only: EngineOnlyOption = False,
    max_gpus: MaxGpusOption = 512,
    tp: TpOption = None,
    ep: EpOption = None,
    pp: PpOption = None,
    attention_dp: GroupsOption = None,
    max_sequences: SequencesOption = None,
    max_batched_tokens: BatchedOption = None,
    devices_file: DevicesOption = None,
    routing: RoutingOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
    *,
    workload: Mapping[str, Any],
) -> None:
    """Which GPU, how many and which plan serve MODEL_OR_DIR: TTFT, TPOT, throughput and cost, the best first.

    The number of GPUs is searched: every plan that fits, by its steady state, sized for --users, --rate or --pages.
    """
    from llm_perf_opt.api.serve import serve as size_fleets

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    plan = {"tp": tp, "ep": ep, "pp": pp, "attention_dp": attention_dp}
    plan |= {"max_sequences": max_sequences, "max_batched_tokens": max_batched_tokens}  # type: ignore[dict-item]
    with model_prints_apart(), few_lines_per_trace():
        answer = size_fleets(
            model,
            gpus,
            input=input_tokens,
            output=output_tokens,
            users=users,
            rate=rate,
            page=page,
            pages=pages,
            within=within,
            slo=slo,
            prices=read_prices(price) if price else None,
            engine=engine,
            engine_only=engine_only,
            replay=replay,
            max_gpus=max_gpus,
            devices_file=devices_file,
            weights=weights,
            cache=cache,
            routing=routing,
            trust_remote_code=trust_remote_code,
            **{name: value for name, value in plan.items() if value is not None},
            **workload,
        )
    if write is not None:
        for path in answer.save_deployment(write, force=force):
            say(f"Wrote {path}")
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
    if write is None and answer.best is not None:
        say("Next: add --write deploy/ for the files that start it, --out serve.html for the chart.")
