"""Tables, charts and the Chrome trace of a replay, from one that can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.report import LineChart, SpanChart
from llm_perf_opt.serving.capacity.fleets import (
    Considered,
    Deadline,
    Fleet,
    considered_table,
    deadline_answer,
    fleet_charts,
    fleets_table,
    glance_table,
)
from llm_perf_opt.serving.capacity.outcome import Slo, outcome, slower
from llm_perf_opt.serving.capacity.queueing import PromptQueue
from llm_perf_opt.serving.capacity.replay_report import (
    Banded,
    chrome_trace,
    engine_table,
    limit_of,
    rates_table,
    replay_charts,
    times_table,
)
from llm_perf_opt.serving.capacity.steady_state import SteadyState
from tests.serving.capacity.capacity_replay import REPLAYED

BANDED = Banded(
    expected=outcome([REPLAYED], pages=3),
    low=outcome([slower(REPLAYED, 0.5)], pages=3),
    high=outcome([slower(REPLAYED, 2.0)], pages=3),
)
STATE = SteadyState(
    sequences=4,
    step_s=0.02,
    requests_per_s=2.0,
    output_tokens=100.0,
    plain_s=0.01,
    alone_s=0.03,
    queue=PromptQueue(requests_per_s=2.0, reading_s=(0.01, 0.03)),
)
CONSIDERED = Considered(
    device="h100-sxm",
    plan=ParallelPlan(tp=2),
    weights=None,
    cache_tokens=1000,
    max_sequences=8,
    max_batched_tokens=64,
    states=(replace(STATE, sequences=1, step_s=0.01, requests_per_s=1.0), STATE),
    best=STATE,
)
FLEET = Fleet(considered=CONSIDERED, replicas=2, banded=BANDED, fewest=3, price_per_hour=3.0)


def test_the_answer_has_three_lines_and_names_the_bottleneck() -> None:
    table = glance_table(FLEET, Slo(ttft_s=1.0))
    assert len(table.rows) == 3
    first, times, limit = (str(row[1]) for row in table.rows)
    assert first.startswith("yes, but not with the high estimate")
    assert first.endswith("16,200 pages/day per GPU (8,100 to 32,400)")
    assert "the fewest GPUs that meet it with this plan: 6" in first
    assert str(table.rows[0][0]) == "Is 4 x h100-sxm tp2 enough?"
    assert "TTFT 1.00 s (500 ms to 2.00 s, SLO 1.00 s)" in times
    assert limit.startswith("KV cache: full at times (50.0 % on average), 1 preemption")
    assert limit.endswith(". Each request finds 17 of 67 prompt tokens in cache")


def test_an_slo_is_judged_by_the_low_and_the_high_estimate() -> None:
    assert BANDED.keeps(Slo(ttft_s=2.0)) == "yes"
    assert BANDED.keeps(Slo(ttft_s=0.7)) == "no, except with the low estimate of the step times"
    assert BANDED.keeps(Slo(ttft_s=0.1)) == "no"


def test_the_bottleneck_is_the_cache_the_device_or_nothing() -> None:
    found = replace(BANDED.expected, preemptions=0, most_cache_use=0.5)
    assert limit_of(replace(found, is_growing=True)).startswith("GPU time")
    assert limit_of(replace(found, is_closed=True)).startswith("GPU time")
    assert limit_of(found).startswith("none yet: 0.125 requests wait on average")


def test_every_time_has_its_low_and_high_estimate() -> None:
    table = times_table(BANDED)
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    assert rows["TTFT", "p99"] == (1.0, 0.5, 2.0)
    assert rows["TPOT", "median"] == (0.5, 0.25, 1.0)
    assert rows["in the queue", "p99"] == (0.5, 0.25, 1.0)


def test_rates_of_slow_steps_are_the_low_ones() -> None:
    rows = {row[0]: row[1:] for row in rates_table(BANDED, gpus=4).rows}
    assert rows["requests/s"] == (0.75, 0.375, 1.5)
    assert rows["pages/day per GPU"] == (16_200, 8_100, 32_400)
    assert engine_table(BANDED.expected).rows[0] == ("steps", "4")


def test_a_fleet_counts_gpus_pages_and_money() -> None:
    deadline = Deadline(pages=100_000, seconds=86_400.0)
    assert FLEET.gpus == 4
    assert FLEET.fewest_gpus == 6
    assert FLEET.pages_per_day_and_gpu == 0.75 * 86_400 / 4
    # A replica reads 0.375 pages/s, 32,400 a day: four of them, of two GPUs each.
    assert FLEET.gpus_for(deadline) == 8
    # They are done after 100,000 / 129,600 of the day, and paid until then: the cost of a page, times the pages.
    assert FLEET.seconds_for(deadline) == pytest.approx(86_400 / 1.296)
    assert FLEET.cost_of(deadline) == pytest.approx(8 * 3.0 * 24 / 1.296)
    per_million = FLEET.cost_per_million(FLEET.outcome.pages_per_s)
    assert per_million is not None
    assert FLEET.cost_of(deadline) == pytest.approx(per_million / 10)
    assert deadline_answer(FLEET, deadline) == "8 x h100-sxm tp2 (4 to 14), done in 18.5 h, $444.44 in total"
    assert FLEET.cost_per_million(0.75) == pytest.approx(4 * 3.0 / 3600 / 0.75 * 1e6)
    table = fleets_table([FLEET], Slo(ttft_s=1.0), deadline)
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert row["GPUs for 100,000 pages in 24 h"] == 8
    assert row["low and high estimate"] == "4 to 14"
    assert considered_table([CONSIDERED]).rows[0][-1] == 1.0


def test_a_fleet_without_a_price_costs_nothing_known() -> None:
    assert replace(FLEET, price_per_hour=None).cost_per_million(1.0) is None
    assert replace(FLEET, fewest=None).fewest_gpus is None


def test_charts_hold_what_the_replay_has() -> None:
    running, cache, first_token, gantt = replay_charts(REPLAYED, BANDED, Slo(ttft_s=1.0))
    assert isinstance(running, LineChart)
    assert running.lines[0].points == ((0.0, 1.0), (1.0, 1.0), (2.0, 3.0), (3.0, 1.0))
    assert isinstance(first_token, LineChart)
    assert first_token.marks[0].x == 1.0
    assert isinstance(gantt, SpanChart)
    assert [span.lane for span in gantt.spans] == ["prompts", "decode", "mixed", "decode"]
    assert cache.title == "KV cache in use"
    charts = list(fleet_charts([FLEET, FLEET], [CONSIDERED], None))
    assert [chart.title for chart in charts] == ["Pages per day per GPU", "Throughput against latency"]


def test_a_chrome_trace_has_every_step_and_every_part_of_a_request() -> None:
    document = json.loads(chrome_trace([REPLAYED], "tiny"))
    events = document["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert [(event["ts"], event["dur"]) for event in steps] == [(second * 1e6, 1e6) for second in range(4)]
    waits = [event for event in events if event.get("cat") == "waits"]
    assert [(event["name"], event["ts"], event["dur"]) for event in waits] == [("r1 waits", 1e6, 0.5e6)]
    by_track: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["tid"]:
            by_track.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        ordered = sorted(spans)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
