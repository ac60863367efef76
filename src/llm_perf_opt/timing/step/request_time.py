"""Time per output token and time to first token of requests that a full server answers, as bands.

**TPOT** is a step of every sequence in flight, and what prompts take from it: while one request makes its output, each
of the others brings one prompt, which runs between or inside the steps.

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

_FIT_FILE = FileKind(name="fit to served requests", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Measured over estimated time: the tenth and the ninetieth percentile of the records it was fitted to."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """TTFT as a sum: a constant, so many own prompts, prompts of all others, and steps."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests in flight at once, and their lengths."""

    in_flight: int
    prompt_tokens: int
    output_tokens: int

    @property
    def mean_context(self) -> int:
        """Tokens in the cache halfway through the output."""
        return self.prompt_tokens + self.output_tokens // 2 + 1


@cache
def request_fit() -> RequestFit:
    """The fitted figures that ship with the package."""
    document = parse_toml(resources.files(__package__).joinpath("serving_fit.toml").read_bytes(), _FIT_FILE)
    return as_record(document, RequestFit, _FIT_FILE)


def time_per_token(step_s: float, prompt_s: float, load: RequestLoad) -> float:
    """Expected TPOT: a step, and a share of the prompts of all other requests."""
    return step_s + (load.in_flight - 1) * prompt_s / max(load.output_tokens, 1)


def time_to_first(tpot_s: float, prompt_s: float, load: RequestLoad, shares: FirstToken) -> float:
    """Expected TTFT."""
    waiting = shares.prompts + shares.prompts_of_others * load.in_flight
    return shares.constant_s + waiting * prompt_s + shares.steps * tpot_s


def banded(expected_s: float, quantiles: Quantiles) -> Band:
    """The band that held eight of ten records."""
    return Band(expected_s * quantiles.low, expected_s * quantiles.high, expected_s)
