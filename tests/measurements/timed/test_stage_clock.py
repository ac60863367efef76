"""Own time of stages, from the moments at which they began and ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.measurements.timed.stage_clock import EventStamps, HostStamps, StageClock, own_times, stamps_for


def test_time_inside_is_not_counted_twice() -> None:
    #        prefill 0..100 with sam 10..40 and again 50..60, clip 60..90; decode 100..107, 110..112
    names = ["prefill", "sam", None, "sam", None, "clip", None, None, "decode", None, "decode", None]
    moments = [0, 10, 40, 50, 60, 60, 90, 100, 100, 107, 110, 112]
    found = own_times(names, moments)
    assert found == {"sam": (30, 10), "clip": (30,), "prefill": (30,), "decode": (7, 2)}
    assert list(found) == ["sam", "clip", "prefill", "decode"]  # in the order of their first end


def test_only_the_direct_parent_gives_time_away() -> None:
    assert own_times(["a", "b", "c", None, None, None], [0, 1, 3, 7, 15, 31]) == {"c": (4,), "b": (10,), "a": (17,)}


def test_a_stage_inside_itself_keeps_its_samples_apart() -> None:
    assert own_times(["a", "a", None, None], [0, 2, 5, 9]) == {"a": (6, 3)}


def test_an_open_stage_is_an_error() -> None:
    with pytest.raises(PerfOptError, match="'b' never ended"):
        own_times(["a", "b"], [0, 1])


def test_stages_and_the_rest_are_the_pass() -> None:
    clock = StageClock(HostStamps())
    clock.start()
    with clock.stage("outer"):
        time.sleep(0.002)
        with clock.stage("inner"):
            time.sleep(0.004)
    time.sleep(0.003)
    timed = clock.finish()
    assert timed.stage_ns("outer") + timed.stage_ns("inner") + timed.unattributed_ns == timed.wall_ns
    assert timed.stage_ns("inner") >= 4e6
    assert 2e6 <= timed.stage_ns("outer") < timed.wall_ns - timed.stage_ns("inner")
    assert timed.unattributed_ns >= 3e6


def test_a_stage_that_raises_is_closed() -> None:
    clock = StageClock(HostStamps())
    clock.start()
    with pytest.raises(KeyError), clock.stage("outer"), clock.stage("inner"):
        raise KeyError
    assert set(clock.finish().stages_ns) == {"outer", "inner"}


class MadeWatch:
    """Keeps what it was told of, and slows every stage down."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.told.append(f"{name} begins")
        time.sleep(0.002)
        try:
            yield
        finally:
            self.told.append(f"{name} ends")
            time.sleep(0.002)


def test_who_else_watches_is_told_and_takes_no_time_of_the_stage() -> None:
    watch = MadeWatch()
    clock = StageClock(HostStamps(), watch)
    clock.start()
    with pytest.raises(KeyError), clock.stage("decode"):
        raise KeyError
    timed = clock.finish()
    assert watch.told == ["decode begins", "decode ends"]
    assert timed.stage_ns("decode") < 2e6 < 4e6 <= timed.unattributed_ns


def test_a_clock_starts_afresh() -> None:
    clock = StageClock(HostStamps())
    for _ in range(2):
        clock.start()
        with clock.stage("one"):
            pass
        assert [len(samples) for samples in clock.finish().stages_ns.values()] == [1]


class MadeEvent:
    """An event of a device on which every record happens 2.5 ms after the one before."""

    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:1"
        MadeEvent.recorded += 1
        self.at_ms = 2.5 * MadeEvent.recorded

    def elapsed_time(self, other: MadeEvent) -> float:
        return other.at_ms - self.at_ms


def test_events_count_on_the_devices_own_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Event", MadeEvent)
        patch.setattr(torch.cuda, "current_stream", "stream of {}".format)
        patch.setattr(torch.cuda, "synchronize", waits.append)
        clock = StageClock(stamps_for("events", "cuda:1"))
        clock.start()
        with clock.stage("prefill"), clock.stage("sam"):
            pass
        timed = clock.finish()
    assert timed.stages_ns == {"sam": (2_500_000,), "prefill": (5_000_000,)}
    assert timed.wall_ns == 5 * 2_500_000
    assert waits == ["cuda:1"]  # once, when the pass is over, and for the device of the run


@pytest.mark.parametrize(("clock", "device"), [("events", "cpu"), ("synchronise", "cpu"), ("host", "cuda")])
def test_a_clock_that_lies_is_refused(clock: str, device: str) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        stamps_for(clock, device)


def test_the_usual_clock_follows_the_device() -> None:
    assert isinstance(stamps_for("auto", "cpu"), HostStamps)
    assert isinstance(stamps_for("auto", "cuda:1"), EventStamps)
    with pytest.raises(UsageError, match="No clock 'sundial'"):
        stamps_for("sundial", "cpu")


def test_the_host_waits_for_the_device_at_every_border(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", waits.append)
        clock = StageClock(stamps_for("synchronise", "cuda:1"))
        clock.start()
        with clock.stage("prefill"):
            pass
        timed = clock.finish()
    assert waits == ["cuda:1"] * 4
    assert timed.stage_ns("prefill") + timed.unattributed_ns == timed.wall_ns
