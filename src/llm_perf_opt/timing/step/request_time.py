"""Time to first token as clients of a server see it, and the bands of both times.

**TTFT** is the prompt itself, prompts that wait before it, and steps in between. How much of each depends on the engine
and on how requests are sent; their shares were fitted to served requests, as `serving_fit.toml` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from llm_perf_opt.core.reading import FileKind, as_record, parse_toml
from llm_perf_opt.timing.rates import Band

DISAGGREGATED = "disaggregated"  # in the names of shares
_FEWEST_IN_FLIGHT = 4  # of the records that shares were fitted to
_FIT_FILE = FileKind(name="fit to served requests", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Measured over estimated time: the tenth and the ninetieth percentile of the records it was fitted to."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """TTFT as a sum: a constant, this many own prompts, prompts of all others, and steps."""

    constant_s: float
    prompts: float
    prompts_of_others: float
    steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFit:
    """Everything that was fitted to served requests, and to which."""

    fitted_to: str
    records: int
    tpot: Quantiles
    ttft: Quantiles
    first_token: Mapping[str, FirstToken]  # by engine, or by engine and load generator


@cache
def request_fit() -> RequestFit:
    """The fitted figures that ship with the package."""
    document = parse_toml(resources.files(__package__).joinpath("serving_fit.toml").read_bytes(), _FIT_FILE)
    return as_record(document, RequestFit, _FIT_FILE)


def time_to_first(tpot_s: float, prompt_s: float, in_flight: int, shares: FirstToken) -> float:
    """Expected TTFT with this number of requests in flight; never less than the own prompt takes.

    Hardly any record has fewer than four. A request alone meets no prompt of another: it takes its own prompt and a
    step, and with two or three in flight the time is in between.
    """
    return sum(first_token_parts(tpot_s, prompt_s, in_flight, shares).values())


def first_token_parts(tpot_s: float, prompt_s: float, in_flight: int, shares: FirstToken) -> dict[str, float]:
    """What that time is spent on, in seconds."""
    fitted = {
        "constant": shares.constant_s,
        "own prompt": shares.prompts * prompt_s,
        "prompts of others": shares.prompts_of_others * in_flight * prompt_s,
        "steps": shares.steps * tpot_s,
    }
    alone = {"constant": shares.constant_s, "own prompt": prompt_s, "steps": tpot_s}
    fitted_s, alone_s = sum(fitted.values()), sum(alone.values())
    if fitted_s < alone_s:
        return fitted if fitted_s >= prompt_s else {"own prompt": prompt_s}
    share = min(1.0, (in_flight - 1) / (_FEWEST_IN_FLIGHT - 1))
    return {name: alone.get(name, 0.0) + share * (part - alone.get(name, 0.0)) for name, part in fitted.items()}


def first_token_shares(engine: str, *, has_drawn_lengths: bool) -> FirstToken:
    """As clients of this engine saw it, by whether all requests had one length; of all engines where it is unknown."""
    known = request_fit().first_token
    return known.get(f"{engine} {'range' if has_drawn_lengths else 'fixed'}", known["all"])


def relayed_token_shares(engine: str) -> FirstToken:
    """The same where other GPUs read the prompts: what clients saw beyond the queue, the prompt and the transfer."""
    known = request_fit().first_token
    return known.get(f"{engine} {DISAGGREGATED}", known[f"all {DISAGGREGATED}"])


def banded(expected_s: float, quantiles: Quantiles) -> Band:
    """The band that held eight of ten records."""
    return Band(expected_s * quantiles.low, expected_s * quantiles.high, expected_s)
