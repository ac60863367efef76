"""Declared traffic: the texts that people type, and the requests that are drawn from them."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.workload import PageSize
from llm_perf_opt.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.serving.traffic_text import (
    EXAMPLES,
    Arrivals,
    DeclaredTraffic,
    Fixed,
    LogNormal,
    PageTokens,
    Uniform,
    read_declared,
    read_lengths,
    read_page_mix,
    read_time,
)


def test_a_rate_with_lengths_and_a_time_is_read_word_by_word() -> None:
    found = read_declared("20/s prompt=lognormal(800,0.8) output=200 for 600s seed=7")
    assert found.arrivals == Arrivals(per_s=20.0, cv=1.0)
    assert found.prompt == LogNormal(median=800, sigma=0.8)
    assert found.output == Fixed(tokens=200)
    assert (found.duration_s, found.seed, found.concurrency) == (600.0, 7, None)


def test_clients_keep_so_many_in_flight() -> None:
    traffic = as_traffic("64 at once prompt=1024 output=1024 requests=640")
    assert traffic.concurrency == 64
    assert len(traffic.requests) == 640
    assert {request.arrival_s for request in traffic.requests} == {0.0}


@pytest.mark.parametrize(
    ("text", "per_s"), [("90/min", 1.5), ("7200/h", 2.0), ("86400/day", 1.0), ("0.5/s", 0.5), ("20/s", 20.0)]
)
def test_rates_have_units(text: str, per_s: float) -> None:
    arrivals = read_declared(f"{text} prompt=1 output=1 requests=1").arrivals
    assert arrivals is not None
    assert arrivals.per_s == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("text", "seconds"), [("600s", 600), ("10min", 600), ("2h", 7200), ("500ms", 0.5), ("2days", 172800)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert read_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("20/s output=3", "prompt"),
        ("20/s prompt=3", "output"),
        ("prompt=3 output=3", "rate"),
        ("20/s 3 at once prompt=3 output=3 requests=9", "not both"),
        ("3 at once prompt=3 output=3", "requests="),
        ("0/s prompt=3 output=3 requests=9", "above zero"),
        ("20/s prompt=3 output=3 rekwests=9", "rekwests"),
        ("20/s prompt=3 output=3 output=4", "twice"),
        ("20/s prompt=lognormal(3) output=3", "lognormal"),
        ("20/s prompt=uniform(9,3) output=3", "uniform"),
        ("20/s prompt=lognormal(inf,0.8) output=3", "is not a length in tokens"),
        ("20/s prompt=lognormal(1e308,5) output=3", "is not a length in tokens"),
        ("20/s prompt=lognormal(800,0.8,1,inf) output=3", "is not a length in tokens"),
        ("20/s prompt=0 output=3", "between 1"),
        ("20/s prompt=3 output=3 for ever", "is not a time"),
        ("20/s prompt=3 output=3 prefixes=8", "COUNTxTOKENS"),
        ("20/s prompt=3 output=3 prefixes=8x16@3", "COUNTxTOKENS"),
        ("4 at once cv=2 prompt=3 output=3 requests=3", "gaps"),
        ("0.001/s prompt=3 output=3 for 1s", "No request"),
        ("20/s pages=A4@150dpi output=3", "how many tokens a page of this traffic has"),
        ("20", "is not a description of traffic"),
    ],
)
def test_what_is_not_clear_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_traffic(text)


def test_a_toml_file_has_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "office.toml"
    file.write_text('rate = "20/s"\ncv = 2.5\nprompt = "uniform(100, 900)"\noutput = 50\nrequests = 30\n')
    found = read_traffic(file)
    assert isinstance(found, DeclaredTraffic)
    assert found.arrivals == Arrivals(per_s=20.0, cv=2.5)
    assert found.prompt == Uniform(least=100, most=900)
    assert found.traffic().requests == as_traffic("20/s cv=2.5 prompt=uniform(100,900) output=50 requests=30").requests


def test_every_traffic_that_the_page_and_the_errors_show_is_clear() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "capacity.md").read_text("utf-8")
    shown = re.findall(r'--traffic "([^"]+)"', page)
    assert len(shown) >= 2
    for text in (*shown, *(example.strip('"') for example in EXAMPLES)):
        assert read_declared(text).output is not None


@settings(max_examples=25, deadline=None)
@given(per_s=st.floats(0.1, 1000), cv=st.sampled_from([0.0, 0.5, 1.0, 2.0]), seed=st.integers(0, 10**6))
def test_requests_come_in_order_at_the_declared_rate(per_s: float, cv: float, seed: int) -> None:
    count = 2000
    declared = DeclaredTraffic(
        arrivals=Arrivals(per_s=per_s, cv=cv), prompt=Fixed(tokens=1), output=Fixed(tokens=1), requests=count, seed=seed
    )
    times = [request.arrival_s for request in declared.traffic().requests]
    assert times == sorted(times)
    # The mean of n gaps has a standard error of cv / sqrt(n); six of them are never reached.
    assert times[-1] / count == pytest.approx(1 / per_s, rel=6 * cv / count**0.5 + 1e-9)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_vary_as_declared(cv: float) -> None:
    traffic = as_traffic(f"10/s cv={cv} prompt=1 output=1 requests=40000")
    times = [request.arrival_s for request in traffic.requests]
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_seed_gives_the_same_requests_again_and_another_seed_others(seed: int) -> None:
    text = "5/s prompt=lognormal(300,1) output=uniform(1,99) prefixes=4x64@0.5 requests=50"
    assert as_traffic(f"{text} seed={seed}").requests == as_traffic(f"{text} seed={seed}").requests
    assert as_traffic(f"{text} seed={seed}").requests != as_traffic(f"{text} seed={seed + 1}").requests


def test_other_lengths_leave_the_arrivals_as_they_are() -> None:
    short, long = (as_traffic(f"5/s prompt={tokens} output=lognormal(9,1) requests=40") for tokens in (10, 5000))
    assert [one.arrival_s for one in short.requests] == [one.arrival_s for one in long.requests]
    assert [one.output_tokens for one in short.requests] == [one.output_tokens for one in long.requests]


def test_a_log_normal_length_has_its_median_and_keeps_its_limits() -> None:
    traffic = as_traffic("5/s prompt=lognormal(800,0.8,100,4000) output=1 requests=20001")
    lengths = [one.prompt_tokens for one in traffic.requests]
    assert statistics.median(lengths) == pytest.approx(800, rel=0.03)
    assert (min(lengths), max(lengths)) == (100, 4000)


def test_a_share_of_the_requests_begins_with_one_of_the_prefixes() -> None:
    traffic = as_traffic("5/s prompt=100 output=1 prefixes=8x512@70% requests=10000")
    shared = [one for one in traffic.requests if one.prefix is not None]
    assert len(shared) / 10000 == pytest.approx(0.7, abs=0.02)
    assert len({one.prefix for one in shared}) == 8
    assert {(one.prompt_tokens, one.prefix_tokens) for one in shared} == {(612, 512)}
    assert {one.prompt_tokens for one in traffic.requests if one.prefix is None} == {100}


def test_lengths_come_from_a_file_of_numbers(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("17\n23\n")
    traffic = as_traffic(f"5/s prompt={file} output=1 requests=200")
    assert {one.prompt_tokens for one in traffic.requests} == {17, 23}
    file.write_text("17\nmany\n")
    with pytest.raises(UsageError, match="whole number"):
        read_lengths(str(file))


def test_pages_become_tokens_by_the_rule_of_the_model() -> None:
    def rule(size: PageSize) -> PageTokens:
        return PageTokens(image=size.width // 10, text=7)

    traffic = as_traffic(read_declared("5/s pages=1240x1754:3,640x640:1 output=800 requests=4000"), rule)
    wide = [one for one in traffic.requests if one.images[0].tokens == 124]
    assert len(wide) / 4000 == pytest.approx(0.75, abs=0.03)
    assert wide[0].prompt_tokens == 131
    assert len({one.images[0].name for one in traffic.requests}) == 4000


def test_a_histogram_of_page_sizes_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text("A4@150dpi, 70\n640x640, 30  # thumbnails\n")
    mix = read_page_mix(str(file))
    assert [size.text for size in mix.sizes] == ["1240x1754", "640x640"]
    assert mix.shares == (0.7, 0.3)


def test_a_turn_is_everything_before_it_and_new_tokens() -> None:
    traffic = as_traffic("2 at once sessions:turns=3,grow=20,think=5s prompt=100 output=30 requests=5")
    assert [request.prompt_tokens for request in traffic.requests] == [100, 150, 200, 100, 150]
    assert [request.after for request in traffic.requests] == [None, "r0", "r0.1", None, "r1"]
    assert {request.session for request in traffic.requests} == {"r0", "r1"}
    assert all((request.think_s > 0) == (request.after is not None) for request in traffic.requests)


def test_times_to_think_and_arrivals_have_their_means() -> None:
    """4 requests a second in sessions of 8 turns are a session every two seconds."""
    traffic = as_traffic("4/s sessions:turns=8,grow=1,think=3s prompt=1 output=1 requests=16000")
    thought = [request.think_s for request in traffic.requests if request.after is not None]
    assert statistics.mean(thought) == pytest.approx(3, rel=0.03)
    assert traffic.requests[-1].arrival_s == pytest.approx(4000, rel=0.1)


def test_a_file_says_sessions_in_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('at_once = 3\nprompt = 50\noutput = 5\nrequests = 9\nsessions = "turns=3, grow=uniform(5,9)"\n')
    declared = read_traffic(file)
    assert isinstance(declared, DeclaredTraffic) and declared.sessions is not None
    assert (declared.sessions.turns, declared.sessions.grow, declared.sessions.think_s) == (
        3,
        Uniform(least=5, most=9),
        0.0,
    )


@pytest.mark.parametrize(
    "words",
    ["", "turns=3", "grow=5", "turns=0,grow=5", "turns=3,grow=5,grow=6", "turns=3,grow=5,x=2", "turns=3;grow=5"],
)
def test_sessions_that_are_not_clear_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match=r"sessions .* not clear"):
        read_declared(f"2 at once prompt=1 output=1 requests=1 sessions={words}")


def test_sessions_and_pages_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        read_declared("2 at once pages=A4@150dpi output=1 requests=1 sessions:turns=2,grow=5")
