"""Disaggregated records against the steady state of prefill and decode workers: fit on some, judge the others.

    python -m benchmarks.serving_times.disaggregated [--docs] [--fit] [--development]

Of 1,602 disaggregated records 274 say how many workers of each kind there were; the others are answered with a range.
The development records are those whose system and model are not among the frozen ones of `estimates.py` (186); the
judging records are the rest (88): GB300, and Kimi-K2.5. What is fitted, and every choice, is from the first alone.
With --fit the shares of a first token are written anew; --development leaves the judging records closed.
"""

from __future__ import annotations

import csv
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.pages import share, show_sections, signed, table, tails
from benchmarks.records import SILICON, MeasuredRun, ServedPlan, configuration, read_silicon
from benchmarks.runner import parser
from benchmarks.serving_times.estimates import (
    WAITED,
    Estimated,
    aggregated_runs,
    deployed_blocks,
    engine_plan,
    estimated,
    is_frozen,
    replica,
)
from benchmarks.serving_times.fitting import fit_first_token, write
from benchmarks.serving_times.judgement import tails_of
from llm_perf_opt.core.hardware.links import load_links
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.disaggregated import WorkerPair, transfer_seconds
from llm_perf_opt.serving.capacity.steady_state import SteadyState
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.request_time import DISAGGREGATED, FirstToken, relayed_token_shares, request_fit
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import step_table

ALIKE, TOLD = 0.15, 0.1  # of TPOT within which two servers are as fast; of throughput beyond which they differ
MANY_GROUPS, THINNEST_SLICE = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """A record with the number of its workers."""

    run: MeasuredRun
    users: int
    prefills: int
    decodes: int

    @property
    def decode_plan(self) -> ParallelPlan:
        """Of one decode worker."""
        return engine_plan(self.run)

    @property
    def prefill_plan(self) -> ParallelPlan:
        """Of one prefill worker."""
        run = self.run
        return engine_plan(replace(run, decode_plan=run.prefill_plan, decode_gpus=run.prefill_gpus))

    @property
    def gpus(self) -> int:
        """Of all workers."""
        return self.prefills * self.run.prefill_gpus + self.decodes * self.run.decode_gpus

    @property
    def is_saturated(self) -> bool:
        """Whether requests mostly waited."""
        return (self.run.ttft_s or 0) / (self.run.e2e_s or 1) > WAITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A record with the steady state of its workers."""

    record: Workers
    pair: WorkerPair

    def state(self, client: FirstToken | None) -> SteadyState:
        """With or without what clients see beyond the engines."""
        record = self.record
        return replace(self.pair, client=client).at_users(record.users, record.prefills, record.decodes)

    def shares_of(self) -> tuple[float, float, float, float]:
        """What the shares of a first token multiply."""
        reading = self.pair.reading_s(self.record.prefills, self.record.decodes)
        others_s = self.record.users / self.record.prefills * reading[-1] / (len(reading) - 1)
        return 1.0, reading[1], others_s, self.state(None).token_s


def experts_too_thin_to_share(run: MeasuredRun) -> MeasuredRun:
    """Kernels for 8 and 4 bits take experts in slices of 128 numbers: ranks that would get less have whole experts."""
    width = configuration(run.model).get("moe_intermediate_size", 0)

    def whole(plan: ServedPlan, gpus: int) -> ServedPlan:
        is_thin = plan.experts == 1 and 0 < width < THINNEST_SLICE * gpus
        return replace(plan, experts=gpus) if is_thin else plan

    return replace(
        run,
        prefill_plan=whole(run.prefill_plan, run.prefill_gpus),
        decode_plan=whole(run.decode_plan, run.decode_gpus),
    )


def recorded() -> list[Workers]:
    """Every disaggregated record with the number of its workers."""
    with SILICON.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    pairs = [(row, experts_too_thin_to_share(run)) for row, run in zip(rows, read_silicon(), strict=True)]
    return [
        Workers(
            run=run,
            users=int(row["concurrency"])
            if row["concurrency"]
            else int(row["decode_batch_size"]) * int(row["decode_num_workers"]) * engine_plan(run).attention_dp,
            prefills=int(row["prefill_num_workers"]),
            decodes=int(row["decode_num_workers"]),
        )
        for row, run in pairs
        if run.is_disaggregated and row["decode_num_workers"]
    ]


def answered(records: Iterable[Workers]) -> Iterator[Answered]:
    """The step tables of both sides, each made once, and the link between nodes."""
    timers: dict[tuple[str, str], EngineTimer] = {}
    known: dict[tuple[str, str, str, str], dict[ParallelPlan, StepTable]] = defaultdict(dict)
    for record in records:
        run = record.run
        timer = timers.setdefault((run.device, run.engine), EngineTimer.of(run.device, run.engine))
        blocks, tables = deployed_blocks(run), known[run.device, run.engine, run.model, run.precision]
        prefill, decode = (
            step_table(blocks, timer, p, known=tables) for p in (record.prefill_plan, record.decode_plan)
        )
        sent = sum(
            layer.layers * layer.cached_bytes // min(record.decode_plan.tp, blocks.key_heads(layer))
            for layer in blocks.attentions
        )
        link = load_links().nodes[run.device].between
        assert link is not None
        seconds = transfer_seconds(sent * run.prompt_tokens, record.prefill_plan, record.decode_plan, link)
        pair = WorkerPair(
            prefill=replica(run, prefill),
            decode=replace(replica(run, decode), reads_prompts=False),
            transfer_s=seconds,
        )
        yield Answered(record=record, pair=pair)


def fitted(some: Sequence[Answered]) -> dict[str, FirstToken]:
    """Shares of a first token by engine, and of all; saturated records say how long a queue was and take no part."""
    clean = [answer for answer in some if not answer.record.is_saturated]
    shares = {}
    for engine in ("all", "sglang", "trtllm"):
        chosen = [answer for answer in clean if engine in ("all", answer.record.run.engine)]
        known = [answer.state(None).first_token_at(0.5) for answer in chosen]
        fit = fit_first_token(
            [answer.shares_of() for answer in chosen],
            [answer.record.run.ttft_s or 1.0 for answer in chosen],
            begin=(0.1, 1.0, 0.1, 1.0),
            known=known,
            tries=600,
        )
        constant, prompts, others, steps = (round(value, 4) for value in fit)
        shares[f"{engine} {DISAGGREGATED}"] = FirstToken(
            constant_s=constant, prompts=prompts, prompts_of_others=others, steps=steps
        )
    return shares


def errors(some: Sequence[Answered]) -> dict[str, Any]:
    """One row of the table: how far off TPOT and TTFT are."""
    tpot, ttft = [], []
    for answer in some:
        run = answer.record.run
        state = answer.state(relayed_token_shares(run.engine))
        tpot.append(state.token_s / (run.tpot_s or math.nan) - 1)
        ttft.append(state.first_token_at(0.5) / (run.ttft_s or math.nan) - 1)
    if not some:
        return {"runs": 0}
    return {
        "runs": len(some),
        **tails_of("tpot", tpot),
        "tpot_bias": round(median(tpot), 4),
        **tails_of("ttft", ttft),
        "ttft_bias": round(median(ttft), 4),
    }


def choices(some: Sequence[Answered], aggregated: Sequence[Estimated]) -> dict[str, int]:
    """Pairs of an aggregated and a disaggregated record as fast for a user, and how often the cheaper is the same."""
    told = right = pairs = 0
    for answer in some:
        record, run = answer.record, answer.record.run
        state = answer.state(relayed_token_shares(run.engine))
        e2e_s = state.first_token_at(0.5) + run.output_tokens * state.token_s
        measured, expected = (record.users * run.output_tokens / (s * record.gpus) for s in (run.e2e_s or 1.0, e2e_s))
        for other in aggregated:
            if _alike(run) != _alike(other.run) or not other.run.tpot_s or not run.tpot_s or other.run.is_whole_system:
                continue
            if abs(math.log(other.run.tpot_s / run.tpot_s)) > ALIKE:
                continue
            pairs += 1
            times = other.run.e2e_s or 1.0, other.state.first_token_s + run.output_tokens * other.state.token_s
            per_gpu = [other.in_flight * run.output_tokens / (s * other.run.decode_gpus) for s in times]
            if abs(math.log(per_gpu[0] / measured)) > TOLD:
                told += 1
                right += (per_gpu[0] > measured) == (per_gpu[1] > expected)
    return {"pairs": pairs, "told": told, "right": right}


def _alike(run: MeasuredRun) -> tuple[object, ...]:
    return run.model, run.device, run.engine, run.precision, run.prompt_tokens, run.output_tokens


def groups(some: Sequence[Answered]) -> dict[str, list[Answered]]:
    """The rows of the table."""
    parts = {"all": list(some), "no queue": [answer for answer in some if not answer.record.is_saturated]}
    for answer in some:
        plan, run = answer.record.decode_plan, answer.record.run
        wide = f"more than {MANY_GROUPS}" if plan.attention_dp > MANY_GROUPS else "2 to 16"
        attention = f"{wide} attention groups" if plan.attention_dp > 1 else "one attention group"
        for name in (attention, run.engine, run.device):
            parts.setdefault(name, []).append(answer)
    return parts


def sections(data: Mapping[str, Any]) -> dict[str, str]:
    """Name of a section -> its text."""
    off = "off by: median / p90 / p99"
    rows = (
        (f"{name}: {part}", row["runs"], tails(row, "tpot"), signed(row["tpot_bias"]), tails(row, "ttft"),
         signed(row["ttft_bias"]))
        for name, parts in data["errors"].items()
        for part, row in parts.items()
    )  # fmt: skip
    text = table(("", "records", f"TPOT {off}", "bias", f"TTFT {off}", "bias"), rows)
    chosen = (
        f"{name}: {row['pairs']:,} pairs, {row['told']:,} told apart, {row['right']:,} "
        f"({share(row['right'] / row['told'] if row['told'] else None)}) with the right one first"
        for name, row in data["choices"].items()
    )
    return {"disaggregated": f"{text}\n\n{'; '.join(chosen)}."}


def main() -> None:
    flags = {
        "docs": "write the section of the page",
        "fit": "write the shares of a first token",
        "development": "leave the judging records closed",
    }
    options = parser(__doc__, **flags).parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    records = recorded()
    if options.fit or options.development:
        records = [record for record in records if not is_frozen(record.run)]
    some = list(answered(records))
    if options.fit:
        write(replace(request_fit(), first_token={**request_fit().first_token, **fitted(some)}))
        return
    sets = {"development": [answer for answer in some if not is_frozen(answer.record.run)]}
    sets["judged"] = [answer for answer in some if is_frozen(answer.record.run)]
    sets["together"] = some
    names = {_alike(answer.record.run) for answer in some}
    aggregated = estimated(run for run in aggregated_runs() if _alike(run) in names)
    data = {
        "errors": {name: {part: errors(chosen) for part, chosen in groups(s).items()} for name, s in sets.items()},
        "choices": {name: choices(s, aggregated) for name, s in sets.items()},
    }
    show_sections("evidence/serving-times", sections(data), is_written=options.docs)


if __name__ == "__main__":
    main()
