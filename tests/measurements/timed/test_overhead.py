"""Timing costs a pass at most 2 %, by a measure that would see 5 %."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest
import torch

from benchmarks.runner_overhead import bare_loop, deep_and_tiny, made_page, overhead, spent_ns
from llm_perf_opt.measurements.timed.timed_runs import TimedRuns
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession
from tests.measurements.timed.made_pages import on_cpu

pytestmark = pytest.mark.slow
BOUND = 0.02
NEW_TOKENS, PAIRS = 8, 60


@pytest.fixture(scope="module")
def session() -> Iterator[DeepSeekOCRSession]:
    """Small ops are the hardest case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield DeepSeekOCRSession.from_blueprint(deep_and_tiny(), weights="random", dtype="float32")
    torch.set_num_threads(threads)


class Watch:
    """Told of every stage, as a progress bar is; with `busy_ns` it keeps the processor busy for so long each time."""

    def __init__(self, busy_ns: int = 0) -> None:
        self.stage_now = ""
        self._busy_ns = busy_ns

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.stage_now = name
        if self._busy_ns:
            until = time.process_time_ns() + self._busy_ns
            while time.process_time_ns() < until:
                pass
        yield


def test_timing_costs_next_to_nothing(session: DeepSeekOCRSession) -> None:
    """A busy machine is given a few tries; the next test shows that they do not let a slow runner through."""
    runner, page = TimedRuns(on_cpu(), watch=Watch()), made_page(deep_and_tiny(), NEW_TOKENS)
    assert any(overhead(session, runner, page, NEW_TOKENS, PAIRS) < BOUND for _ in range(5))


def test_a_runner_with_five_percent_is_seen(session: DeepSeekOCRSession) -> None:
    """The same measure, of a runner that spends another 5 % of a bare pass on its stages, stays above the bound."""
    bare_ns = median(spent_ns(lambda: bare_loop(session, NEW_TOKENS)) for _ in range(9))
    page = made_page(deep_and_tiny(), NEW_TOKENS)
    _, timed = TimedRuns(on_cpu()).timed_pass(page)
    stages = sum(map(len, timed.stages_ns.values()))
    assert stages == 23  # preprocess, 3 of vision twice, prefill, 8 choices of a token, 7 steps
    slow = TimedRuns(on_cpu(), watch=Watch(busy_ns=round(0.05 * bare_ns / stages)))
    assert min(overhead(session, slow, page, NEW_TOKENS, PAIRS) for _ in range(2)) > BOUND
