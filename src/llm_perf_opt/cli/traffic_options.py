"""The options of a plan under traffic: who asks, what is promised, which plans, what it costs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llm_perf_opt.cli.model_options import declare, parameter_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import OptionRecord, option

_OF_REQUESTS = ("global_batch", "prompt_tokens", "image", "crops")  # what each request says for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions(OptionRecord):
    """Everything that only a plan under traffic takes; `traffic` turns it into one."""

    taken_by: ClassVar[str] = "A plan under traffic"

    traffic: str | None = option(
        None,
        metavar="TRAFFIC",
        help='Requests: "20/s prompt=lognormal(800,0.8) output=200 for 600s", "64 at once pages=A4@150dpi output=800 '
        'requests=640", a TOML file of the same, or a recorded run. Needs vLLM.',
    )
    slo: str | None = option(
        None,
        metavar="LIMITS",
        help="The promise that GPUs are sought for: ttft=500ms,tpot=40ms of 99 in 100 requests; p95,e2e=30s. "
        "Exit code 0 also where none keeps it.",
    )
    tp: int | None = option(None, at_least=1, help="Ranks that share each matrix. Default: all are tried.")
    ep: int | None = option(None, at_least=1, help="Ranks that share the experts: 1, or tp x attention-dp.")
    pp: int | None = option(None, at_least=1, help="Stages that share the layers. Default: 1.")
    attention_dp: int | None = option(
        None, at_least=1, help="Groups of --tp ranks in an engine, each with its own requests, that share the experts."
    )
    replicas: int | None = option(
        None, at_least=1, help="Engines that share the requests, dp elsewhere. Default: as many as the devices hold."
    )
    max_sequences: str | None = option(
        None, metavar="N,...", help="vLLM's max_num_seqs, or several to try. Default: its own for the device."
    )
    max_batched_tokens: str | None = option(
        None, metavar="N,...", help="vLLM's max_num_batched_tokens, or several to try. Default: its own."
    )
    price: str | None = option(None, metavar="DEVICE=PRICE,...", help="Of a GPU hour: h100-sxm=2.5,l40s=0.9.")
    pages: int | None = option(None, at_least=1, help="Pages to read --within a time.")
    within: str | None = option(None, metavar="TIME", help="The deadline of --pages: 24h, 30min.")
    measured: str | None = option(
        None,
        metavar="FILE,...",
        help="A server of this plan, shown beside: results of a load generator, /metrics, vLLM's log of iterations.",
    )
    chrome_trace: str | None = option(
        None, metavar="FILE", help="Write the replay for Perfetto: steps, requests, counters."
    )

    def __post_init__(self) -> None:
        OptionRecord.__post_init__(self)
        alone = next((name for name in self.changed() if self.traffic is None), None)
        if alone is not None:
            raise UsageError(
                f"--{alone.replace('_', '-')} is about requests.",
                why="without --traffic every plan is timed for one batch",
                fix='add --traffic "20/s prompt=800 output=200 for 600s", or leave the option out',
            )

    def asked(self) -> dict[str, Any]:
        """What `capacity` takes beside the traffic itself."""
        apart = ("traffic", "chrome_trace", "price")
        given = {name: value for name, value in self.changed().items() if name not in apart}
        if self.measured is not None:
            given["measured"] = [one.strip() for one in self.measured.split(",")]
        return given if self.price is None else {**given, "prices": read_prices(self.price)}


def takes_traffic(verb: Callable[..., None]) -> Callable[..., None]:
    """Put the options of traffic behind a verb's own, and give it the record of them as `requests`."""

    @functools.wraps(verb)
    def with_traffic(**given: Any) -> None:
        verb(requests=TrafficOptions.make(**{name: given.pop(name) for name in declared}), **given)

    declared = TrafficOptions.options()
    own = inspect.signature(verb, eval_str=True)
    kept = [one for one in own.parameters.values() if one.name != "requests"]
    declare(with_traffic, own, [*kept, *(parameter_of(name, one, one.default) for name, one in declared.items())])
    return with_traffic


def read_prices(text: str) -> dict[str, float]:
    """Device id -> price of an hour."""
    found = {}
    for one in text.split(","):
        name, _, price = one.strip().partition("=")
        try:
            found[name] = float(price)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < 1e6:
            raise UsageError(
                f"{one[:60]!r} is no price.",
                why="it is a device and a number from 0 on",
                fix="write --price h100-sxm=2.5",
            )
    return found


def refuse_single_batch(workload: Mapping[str, Any]) -> None:
    """Refuse what each request says for itself."""
    for name in (name for name in _OF_REQUESTS if name in workload):
        raise UsageError(
            f"--{name.replace('_', '-')} is one batch.",
            why="the traffic says how long prompts are and which pages come; how many run together follows from it",
            fix="leave it out, and write prompt= or pages= in --traffic",
        )
