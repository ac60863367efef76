"""`llm-perf-opt serve`: which GPU, how many, which plan, how fast, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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
from llm_perf_opt.core.errors import BrokenBudgetError, UsageError
from llm_perf_opt.core.options import OptionRecord, option
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.workload import ANSWER_TOKENS, Deployment

if TYPE_CHECKING:
    from llm_perf_opt.api.capacity import CapacityAnswer
    from llm_perf_opt.api.serve import ServeAnswer

_FORMATS = Deployment.options()
_IN_TRAFFIC = (
    "input",
    "output",
    "users",
    "rate",
    "page",
    "replay",
    "speculate",
    "shared_prefix",
    "sessions",
    "disaggregate",
    "lora",
)  # what requests say for themselves
_OF_REQUESTS = ("batch", "decode_steps", "new_tokens", "prompt_tokens", "image", "crops")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions(OptionRecord):
    """The demand on a fleet, and the part of its plan that is fixed."""

    taken_by: ClassVar[str] = "A fleet"

    input: str | None = option(
        None, metavar="TOKENS", help="Prompt length: 4000, uniform(100,900), lognormal(800,0.8)."
    )
    output: str = option(str(ANSWER_TOKENS), metavar="TOKENS", help="Answer length, in the same form.")
    users: int | None = option(
        None, at_least=1, help="Concurrent users; each sends the next request when its answer is complete."
    )
    rate: str | None = option(None, metavar="RATE", help="Arrival rate of requests: 20/s, 90/min.")
    slo: str | None = option(
        None, metavar="LIMITS", help="ttft=2s,tpot=40ms for 99 % of requests; p95,e2e=30s for another share."
    )
    weights: str | None = option(None, metavar="FORMAT", help=_FORMATS["weights"].help)
    cache: str | None = option(None, metavar="FORMAT", help=_FORMATS["cache"].help)
    page: str | None = option(None, metavar="SIZE", help="A page to read in each request: A4@150dpi, 1240x1754.")
    pages: int | None = option(None, at_least=1, help="Number of pages to read, --within a time.")
    within: str | None = option(None, metavar="TIME", help="The deadline of --pages: 72h.")
    price: str | None = option(
        None,
        metavar="GPU=PRICE,...",
        help="Price of a GPU hour: h100-sxm=2.5. Default: the list prices in the package.",
    )
    engine: str = option("vllm", metavar="ENGINE,...", help="Serving engine: vllm, sglang, trtllm, or several.")
    traffic: str | None = option(
        None,
        metavar="TRAFFIC",
        help='Requests to replay, in place of --input and --users: "20/s cv=2 prompt=lognormal(800,0.8) output=200 for '
        '600s", a TOML file of the same, or a recorded run. Needs vLLM.',
    )
    replay: bool = option(False, help="Also replay the best fleets through the engine's own scheduler: vllm or sglang.")
    speculate: str | None = option(
        None,
        metavar="HOW",
        help="Speculative decoding: mtp:3@0.8, eagle:4@0.7, ngram:4@0.3: drafter, drafts in a step, acceptance.",
    )
    shared_prefix: float | None = option(
        None, metavar="SHARE", help="Share of each prompt that all requests begin with, and find in the cache: 0.6."
    )
    sessions: str | None = option(
        None,
        metavar="TURNS",
        help="Requests are turns of sessions: turns=8,grow=500,think=10s. Each prompt is all before it and new tokens; "
        "--input is the first.",
    )
    kv_offload: str | None = option(
        None, metavar="SIZE", help="Host memory of each replica for blocks that leave the GPU's KV cache: 200GiB."
    )
    disaggregate: bool = option(
        False, help="Prefill and decode on separate GPUs: search the number and the plan of both kinds of workers."
    )
    lora: str | None = option(
        None, metavar="NxRANK", help="LoRA adapters in the memory of each replica: 64x16 is 64 of rank 16."
    )
    engine_only: bool = option(False, help="TTFT as the engine sees it: without HTTP, tokenizing and clients.")
    max_gpus: int = option(512, at_least=1, help="Largest fleet to consider.")
    tp: int | None = option(None, at_least=1, help="Tensor-parallel ranks. Default: all sizes are tried.")
    ep: int | None = option(None, at_least=1, help="Expert-parallel ranks: 1, or tp x attention-dp.")
    pp: int | None = option(None, at_least=1, help="Pipeline stages. Default: 1, or more where needed.")
    attention_dp: int | None = option(
        None, at_least=1, help="Data-parallel attention: groups of --tp ranks in a replica that share its experts."
    )
    replicas: int | None = option(
        None, at_least=1, help="With --traffic: engines that share the requests. Default: as many as the GPUs hold."
    )
    max_sequences: str | None = option(
        None, metavar="N,...", help="max_num_seqs, or several values. Default: the engine's own."
    )
    max_batched_tokens: str | None = option(
        None, metavar="N,...", help="max_num_batched_tokens, or several values. Default: the engine's own."
    )

    measured: str | None = option(
        None,
        metavar="FILE,...",
        help="With --traffic: results of a real server with this plan, to show next to the replay: a load generator, "
        "/metrics, or vLLM's log of iterations.",
    )
    chrome_trace: str | None = option(
        None, metavar="FILE", help="With --traffic: write the replay for Perfetto: steps, requests, counters."
    )

    def __post_init__(self) -> None:
        OptionRecord.__post_init__(self)
        needs, takes = ("replicas", "measured", "chrome_trace"), (*_IN_TRAFFIC, "engine", "engine_only", "max_gpus")
        wrong = next((name for name in self.changed() if name in (needs if self.traffic is None else takes)), None)
        if wrong is None:
            return
        option_name = f"--{wrong.replace('_', '-')}"
        if self.traffic is None:
            raise UsageError(
                f"{option_name} needs --traffic.",
                why="it is about requests that are replayed",
                fix='add --traffic "20/s prompt=800 output=200 for 600s", or leave the option out',
            )
        raise UsageError(
            f"{option_name} and --traffic exclude each other."
            if wrong in _IN_TRAFFIC
            else f"{option_name} has no effect with --traffic.",
            why="the traffic says which requests arrive, and vLLM's own scheduler runs them on the named GPUs",
            fix=f"leave {option_name} out",
        )

    def arguments(self) -> Mapping[str, Any]:
        """The arguments of `lpo.serve`; with traffic, of `lpo.capacity`."""
        given = {
            name: value for name, value in self.changed().items() if name not in ("price", "traffic", "chrome_trace")
        }
        if self.measured is not None:
            given["measured"] = [file.strip() for file in self.measured.split(",")]
        return given if self.price is None else {**given, "prices": read_prices(self.price)}


GpusOption = Annotated[
    str,
    typer.Option(
        metavar="GPU,...", help="GPUs to choose from: l4,h100-sxm or all; or a fixed number: 2x a100-sxm-80g."
    ),
]
WriteOption = Annotated[
    Path | None,
    typer.Option(
        "--write", metavar="FOLDER", help="Write files that start the best fleet: command, Compose, Kubernetes."
    ),
]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="File for the report; .html has the chart.")]


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
    """Find the GPU, how many of them, and the plan to serve MODEL_OR_DIR: TTFT, TPOT, throughput and cost, best first.

    Every plan that fits is tried, in its steady state, with as many GPUs as --users, --rate or --pages need. With
    --traffic vLLM's own scheduler replays those requests. The exit code is 3 if no fleet meets the --slo.
    """
    if write is not None and demand.disaggregate:
        raise UsageError(
            "--write and --disaggregate exclude each other.",
            why="files that start workers of two kinds and their router are not known",
            fix="leave one of the two out",
        )
    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    files = _Files(out=out, write=write, chrome_trace=demand.chrome_trace, force=force)
    files.refuse()
    arguments = {**demand.arguments(), **workload, "routing": routing, "trust_remote_code": trust_remote_code}
    with model_prints_apart(), few_lines_per_trace():
        answer = _answer(model, gpus, demand.traffic, devices_file, arguments)
    files.save(answer)
    if out is None:
        show(answer.report(), reporter, verbose=verbose)
        say(f"Next: add {files.next_text(answer)}.")
    if demand.slo is not None and not answer.keeps_limits:
        raise BrokenBudgetError(
            f"No fleet meets {demand.slo}.",
            why="the tables say which limit each fleet exceeds",
            fix="name other GPUs, allow more with --max-gpus, or loosen --slo",
        )


def _answer(
    model: str, gpus: str, traffic: str | None, devices_file: Path | None, arguments: Mapping[str, Any]
) -> ServeAnswer | CapacityAnswer:
    """By steady states, or by a replay of the traffic."""
    if traffic is None:
        from llm_perf_opt.api.serve import serve as size_fleets

        return size_fleets(model, gpus, devices_file=devices_file, **arguments)
    from llm_perf_opt.api.capacity import capacity

    return capacity(model, gpus, traffic, devices_file=devices_file, **arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What is written, and where."""

    out: Path | None
    write: Path | None
    chrome_trace: str | None
    force: bool

    def refuse(self) -> None:
        """Refuse what is there already before any work."""
        if self.write is not None:
            from llm_perf_opt.serving.deployment_files import SCRIPT

            free_file(self.write / SCRIPT, force=self.force)
        if self.chrome_trace is not None:
            free_file(Path(self.chrome_trace), force=self.force)

    def save(self, answer: ServeAnswer | CapacityAnswer) -> None:
        """Write what was asked for, and say so."""
        from llm_perf_opt.api.serve import ServeAnswer

        if isinstance(answer, ServeAnswer):
            if self.write is not None:
                for path in answer.save_deployment(self.write, force=self.force):
                    say(f"Wrote {path}")
        elif self.chrome_trace is not None:
            written = answer.save_chrome_trace(self.chrome_trace, force=self.force)
            say(f"Wrote {written}; open it at https://ui.perfetto.dev")
        if self.out is not None:
            say(f"Wrote {answer.save(self.out, force=self.force)}")

    def next_text(self, answer: ServeAnswer | CapacityAnswer) -> str:
        """What else could be written."""
        from llm_perf_opt.api.serve import ServeAnswer

        if not isinstance(answer, ServeAnswer):
            return "--out capacity.html for the charts, --chrome-trace replay.json for Perfetto"
        starts = (
            ""
            if self.write is not None or answer.best is None or answer.best.prefill is not None
            else "--write deploy/ for the files that start it, "
        )
        return f"{starts}--out serve.html for the chart"
