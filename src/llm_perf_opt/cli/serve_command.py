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
_IN_TRAFFIC = ("input", "output", "users", "rate", "page", "replay")  # what requests say for themselves
_OF_REQUESTS = ("batch", "decode_steps", "new_tokens", "prompt_tokens", "image", "crops")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions(OptionRecord):
    """What is asked of a fleet, and what of its plan is fixed."""

    taken_by: ClassVar[str] = "A fleet"

    input: str | None = option(None, metavar="TOKENS", help="Prompt: 4000, uniform(100,900), lognormal(800,0.8).")
    output: str = option(str(ANSWER_TOKENS), metavar="TOKENS", help="Answer, in the same words.")
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
    traffic: str | None = option(
        None,
        metavar="TRAFFIC",
        help='In place of --input and --users: "20/s cv=2 prompt=lognormal(800,0.8) output=200 for 600s", a TOML file '
        "of the same, or a recorded run. Needs vLLM.",
    )
    replay: bool = option(False, help="The best fleets also through vLLM's own scheduler. Needs vLLM.")
    engine_only: bool = option(False, help="TTFT as the engine sees it: without HTTP, tokenising and clients.")
    max_gpus: int = option(512, at_least=1, help="The largest fleet that is searched.")
    tp: int | None = option(None, at_least=1, help="Ranks that share each matrix. Default: all are tried.")
    ep: int | None = option(None, at_least=1, help="Ranks that share the experts: 1, or tp x attention-dp.")
    pp: int | None = option(None, at_least=1, help="Stages that share the layers. Default: where needed.")
    attention_dp: int | None = option(
        None, at_least=1, help="Groups of --tp ranks that share the experts of a replica."
    )
    replicas: int | None = option(
        None, at_least=1, help="With --traffic: engines that share the requests. Default: as many as there is room for."
    )
    max_sequences: str | None = option(
        None, metavar="N,...", help="max_num_seqs, or several. Default: the engine's own."
    )
    max_batched_tokens: str | None = option(
        None, metavar="N,...", help="max_num_batched_tokens, or several. Default: the engine's own."
    )

    measured: str | None = option(
        None,
        metavar="FILE,...",
        help="With --traffic: a server of this plan, shown beside: results of a load generator, /metrics, vLLM's log "
        "of iterations.",
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
                f"{option_name} is about requests that are replayed.",
                why="--traffic is not given",
                fix='add --traffic "20/s prompt=800 output=200 for 600s", or leave the option out',
            )
        raise UsageError(
            f"{option_name} and --traffic are two demands."
            if wrong in _IN_TRAFFIC
            else f"{option_name} has no use with --traffic.",
            why="the traffic says which requests come, and vLLM's own scheduler runs them on the GPUs that are named",
            fix=f"leave {option_name} out",
        )

    def asked(self) -> dict[str, Any]:
        """What `lpo.serve` takes; with traffic what `lpo.capacity` takes beside it."""
        given = {
            name: value for name, value in self.changed().items() if name not in ("price", "traffic", "chrome_trace")
        }
        if self.measured is not None:
            given["measured"] = [one.strip() for one in self.measured.split(",")]
        return given if self.price is None else {**given, "prices": read_prices(self.price)}


GpusOption = Annotated[
    str, typer.Option(metavar="GPU,...", help="GPUs to choose from: l4,h100-sxm, all; or a number: 2x a100-sxm-80g.")
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
    With --traffic these very requests go through vLLM's own scheduler. Exit code 3: an --slo is broken.
    """
    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    files = _Files(out=out, write=write, chrome_trace=demand.chrome_trace, force=force)
    files.refuse()
    asked: dict[str, Any] = {"devices_file": devices_file, "routing": routing}
    asked |= {"trust_remote_code": trust_remote_code, **demand.asked(), **workload}
    with model_prints_apart(), few_lines_per_trace():
        answer = _answer(model, gpus, demand.traffic, asked)
    files.save(answer)
    if out is None:
        show(answer.report(), reporter, verbose=verbose)
        say(f"Next: add {files.next_text(answer)}.")
    if demand.slo is not None and not answer.keeps_limits:
        raise BrokenBudgetError(
            f"No fleet keeps {demand.slo}.",
            why="the tables say which limit each of them breaks",
            fix="name other GPUs, allow more with --max-gpus, or loosen --slo",
        )


def _answer(model: str, gpus: str, traffic: str | None, asked: Mapping[str, Any]) -> ServeAnswer | CapacityAnswer:
    """By steady states, or by a replay of the traffic."""
    from llm_perf_opt.api.capacity import capacity
    from llm_perf_opt.api.serve import serve as size_fleets

    return size_fleets(model, gpus, **asked) if traffic is None else capacity(model, gpus, traffic, **asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What is written, and where."""

    out: Path | None
    write: Path | None
    chrome_trace: str | None
    force: bool

    def refuse(self) -> None:
        """Refuse what is there already before any work."""
        from llm_perf_opt.serving.deployment_files import SCRIPT

        for file in (
            None if self.write is None else self.write / SCRIPT,
            None if self.chrome_trace is None else Path(self.chrome_trace),
        ):
            if file is not None:
                free_file(file, force=self.force)

    def save(self, answer: ServeAnswer | CapacityAnswer) -> None:
        """Write what was asked for, and say so."""
        from llm_perf_opt.api.capacity import CapacityAnswer

        if isinstance(answer, CapacityAnswer):
            if self.chrome_trace is not None:
                written = answer.save_chrome_trace(self.chrome_trace, force=self.force)
                say(f"Wrote {written}; open it at https://ui.perfetto.dev")
        elif self.write is not None:
            for path in answer.save_deployment(self.write, force=self.force):
                say(f"Wrote {path}")
        if self.out is not None:
            say(f"Wrote {answer.save(self.out, force=self.force)}")

    def next_text(self, answer: ServeAnswer | CapacityAnswer) -> str:
        """What else could be written."""
        from llm_perf_opt.api.capacity import CapacityAnswer

        if isinstance(answer, CapacityAnswer):
            return "--out capacity.html for the charts, --chrome-trace replay.json for Perfetto"
        starts = (
            "" if self.write is not None or answer.best is None else "--write deploy/ for the files that start it, "
        )
        return f"{starts}--out serve.html for the chart"
