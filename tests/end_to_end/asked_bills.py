"""What a question costs, by the verbs that print a price and by hand: the price of an hour times the time.

An answer has two tokens, so `advise` and `serve` count what a trace runs: a prompt, which gives the first, and a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.api.advise import AdviceAnswer
from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.serving.capacity.sizing import SizedFleet
from llm_perf_opt.sweeps.studies.study import read_plan
from tests.end_to_end.asked_questions import PHASES, Question, Told

_HOUR_S, _MILLION, _NANO = 3600, 1_000_000, 1e-9
OUTPUT = 2  # tokens of an answer
TOKENS_LOW, TOKENS_HIGH = ("decode", "cost_per_million_tokens_low"), ("decode", "cost_per_million_tokens_high")
READ, MADE = ("", "cost_per_million_input"), ("", "cost_per_million_output")
HOURLY, REQUEST = ("", "price_per_hour"), ("", "request_cost_per_million_tokens")
ENGINE = ("", "engine_request_nanoseconds")


def prices(devices: tuple[str, ...]) -> dict[str, float]:
    """The list prices of those devices that have one."""
    return {name: row.per_hour for name in devices if (row := shipped_prices().get(name)) is not None}


def by_hand(question: Question, timed: Told) -> Told:
    """From the times that `trace --device` prints: of one rank, so nothing where ranks differ."""
    price = prices((question.device,)).get(question.device)
    if price is None:
        return {}
    run, hourly = question.run, price * read_plan(question.plan).ranks
    told: Told = {HOURLY: _digits(hourly)}
    per_s = hourly / _HOUR_S
    for key, edge in ((TOKENS_LOW, "low"), (TOKENS_HIGH, "high")):
        told[key] = _digits(per_s * _end_s(timed, "decode", edge) / run.global_batch * _MILLION)
    prefill_s, step_s = (_expected_s(timed, phase) for phase in PHASES)
    told[REQUEST] = _digits(per_s * (prefill_s + step_s) / (OUTPUT * run.global_batch) * _MILLION)
    if run.global_batch == 1 and run.execution == "fused":
        told[READ] = _digits(per_s * prefill_s / run.context * _MILLION)
        told[MADE] = _digits(per_s * step_s / OUTPUT * _MILLION)
    return told


def served_bill(fleet: SizedFleet) -> Told:
    """Of `serve`: all tokens at their prices are the fleet for as long as they take; a user alone pays for no other."""
    if fleet.cost_per_hour is None or fleet.broken is not None:
        return {}
    read, made, mean = fleet.cost_per_million_input, fleet.cost_per_million_output, fleet.demand.mean
    assert read is not None and made is not None and fleet.demand.users is not None
    request = (read * mean.prompt_tokens + made * mean.output_tokens) / _MILLION
    request_s = fleet.ttft.expected_s + fleet.tpot.expected_s * (mean.output_tokens - 1)
    assert math.isclose(request, fleet.cost_per_hour / _HOUR_S * request_s / fleet.demand.users, rel_tol=1e-12)
    told: Told = {HOURLY: _digits(fleet.cost_per_hour)}
    return {**told, READ: _digits(read), MADE: _digits(made)} if fleet.demand.users == 1 else told


def studied_bill(row: Mapping[str, Any]) -> Told:
    """Of a row of `study` without answers: the tokens of one step."""
    names = {HOURLY: "price_per_hour", TOKENS_LOW: TOKENS_LOW[1], TOKENS_HIGH: TOKENS_HIGH[1]}
    return {key: _digits(row[name]) for key, name in names.items() if row[name] is not None}


def advised(answer: AdviceAnswer, document: Mapping[str, Any]) -> Told:
    """Of `advise`: the time as it runs now and the lower bound as printed, the engine's time, and the price."""
    told: Told = {}
    if [stage.stage for stage in answer.ladder.stages] == list(PHASES):
        (table,) = (table for table in document["tables"] if table["title"].startswith("Where the time goes"))
        rows = {row["one_request"]: row for row in table["rows"]}
        for phase, column in zip(PHASES, ("before_decoding_seconds", "each_token_seconds"), strict=True):
            told[phase, "expected_nanoseconds"] = round(rows["as it runs now"][column] / _NANO)
            told[phase, "lower_bound_nanoseconds"] = round(rows["lower bound"][column] / _NANO)
    if answer.engine_s is not None:
        told[ENGINE] = round(answer.engine_s / _NANO)
    return {**told, **({} if answer.price_per_million is None else {REQUEST: _digits(answer.price_per_million)})}


def in_nanoseconds(timed: Told) -> Told:
    """The times that `advise` prints, by `trace --device`."""
    told: Told = {(phase, "expected_nanoseconds"): round(_expected_s(timed, phase) / _NANO) for phase in PHASES}
    for phase in PHASES:
        bound_s = timed[phase, "lower_bound_seconds"]
        if isinstance(bound_s, float):
            told[phase, "lower_bound_nanoseconds"] = round(bound_s / _NANO)
    return told


def of_an_engine(fused: Told) -> Told:
    """A prompt and one step by `trace --device --execution fused`."""
    return {ENGINE: round(sum(_expected_s(fused, phase) for phase in PHASES) / _NANO)}


def _expected_s(timed: Told, phase: str) -> float:
    """A data sheet has no expected time: the geometric middle of its ends."""
    expected_s = timed.get((phase, "expected_seconds"))
    if isinstance(expected_s, float):
        return expected_s
    return float((_end_s(timed, phase, "low") * _end_s(timed, phase, "high")) ** 0.5)


def _end_s(timed: Told, phase: str, edge: str) -> float:
    """The low or high estimate; by a data sheet it is printed as such."""
    names = (f"{edge}_seconds", f"data_sheet_{edge}_seconds")
    (end_s,) = (timed[phase, name] for name in names if (phase, name) in timed)
    assert isinstance(end_s, float)
    return end_s


def _digits(price: float) -> str:
    """Twelve digits: a product in another order differs in the sixteenth."""
    return f"{price:.12g}"
