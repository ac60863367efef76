"""Replays in SGLang's own Python: clock, prefix cache, limits, Little's law, refusals. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.records import CONFIGS
from benchmarks.vllm_schedules.cases import FOLDER, H100
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engine_process.environment import SGLANG
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.serving.requests import ImageSpan, Replayed, Request, Traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

pytestmark = pytest.mark.slow
FREE = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((0.0, 0.0), (0.0, 0.0)))
NONE = Curve(at=(1.0,), seconds=(0.0,))
TABLE = StepTable(  # every step takes 10 ms and 1 ms of the host
    tokens=Curve(at=(1.0, 1e5), seconds=(0.01, 0.01)), head=NONE, decoding=FREE, prompts=FREE, host_s=0.001
)
SETTINGS = EngineSettings(
    model=str(FOLDER / "models" / "tiny"),
    device=H100,
    cache_blocks=8000,
    max_sequences=16,
    max_model_tokens=2048,
    dtype="bfloat16",
)
WAITING = replace(SETTINGS, more={"disable_overlap_schedule": True})


def job(*requests: Request, **more: object) -> ReplayJob:
    traffic = Traffic(requests=requests or (request(0),))
    return replace(ReplayJob(settings=SETTINGS, traffic=traffic, table=TABLE), **more)  # type: ignore[arg-type]


def request(at: int, arrival_s: float = 0.0, prompt_tokens: int = 100, output_tokens: int = 20) -> Request:
    return Request(id=f"r{at}", arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


@pytest.fixture(scope="module")
def process() -> Iterator[ReplayProcess]:
    with ReplayProcess(engine=SGLANG) as opened:
        try:
            opened.replay(job(request(0)))
        except PerfOptError as error:
            if "There is no SGLang" not in error.what:
                raise
            pytest.skip(f"{error.what} {error.fix}")
        yield opened


def test_a_request_alone_takes_a_step_for_each_token(process: ReplayProcess) -> None:
    """Without overlap: 20 steps of 10 ms, each after 1 ms of the host."""
    found = process.replay(job(request(0, arrival_s=5.0), settings=WAITING))
    assert found.requests.first_token_s == [pytest.approx(5.011)]
    assert found.requests.last_token_s == [pytest.approx(5.220)]
    assert found.steps.prompt_tokens == [100] + [0] * 19
    assert found.busy_s == pytest.approx(0.2)


def test_overlap_hides_the_time_of_the_host(process: ReplayProcess) -> None:
    found = process.replay(job(request(0)))
    assert found.engine["is_async"]
    assert found.requests.last_token_s == [pytest.approx(0.201)]


def test_a_scheduler_that_is_kept_gives_what_a_new_one_gives(process: ReplayProcess) -> None:
    many = job(*(request(at, at / 100, 50 + 37 * at % 900) for at in range(40)))
    first, again = process.replay(many), process.replay(many)
    with ReplayProcess(engine=SGLANG) as other:
        new = other.replay(many)
    assert first.requests == again.requests == new.requests
    assert first.steps == again.steps == new.steps


def test_a_shared_prefix_of_everything_leaves_only_new_tokens(process: ReplayProcess) -> None:
    """The second request has the first one's prompt: all of it is found but the last token, which gives the next."""
    alike = [replace(request(at, at * 1.0), prefix="p", prefix_tokens=100) for at in range(3)]
    found = process.replay(job(*alike))
    assert found.requests.cached_tokens == [0, 99, 99]
    assert [tokens for tokens in found.steps.prompt_tokens if tokens] == [100, 1, 1]


def test_a_turn_computes_only_what_is_new(process: ReplayProcess) -> None:
    """Before turn 2 are 100 + 30 tokens, of which a step has read all but the last."""
    turns = as_traffic("1 at once sessions:turns=3,grow=20,think=1s prompt=100 output=30 requests=6")
    found = process.replay(job(traffic=turns))
    assert found.requests.prompt_tokens == [100, 150, 200] * 2
    assert found.requests.cached_tokens == [0, 129, 179] * 2


def test_a_factor_makes_every_step_longer(process: ReplayProcess) -> None:
    assert process.replay(job(request(0), slower=2.0)).busy_s == pytest.approx(
        2 * process.replay(job(request(0))).busy_s
    )


def in_flight_by_time(found: Replayed) -> float:
    """Requests inside, as a mean over the whole replay: swept over arrivals and ends."""
    requests = found.requests
    events = sorted([(at, 1) for at in requests.arrival_s] + [(at, -1) for at in requests.last_token_s])
    inside, area = 0, 0.0
    for (at, change), (until, _) in pairwise(events):
        inside += change
        area += inside * (until - at)
    return area / found.seconds


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 60), st.integers(0, 30)), min_size=1, max_size=25),
    clients=st.none() | st.integers(1, 8),
)
def test_littles_law_holds_in_every_replay(
    process: ReplayProcess, sizes: list[tuple[int, int, int]], clients: int | None
) -> None:
    """Mean requests inside are requests per second times the mean time of one; nobody is lost, nothing ends early."""
    arrivals = [0.0]
    for _, _, gap in sizes[1:]:
        arrivals.append(arrivals[-1] + gap / 100)
    requests = tuple(request(at, arrivals[at], prompt, output) for at, (prompt, output, _) in enumerate(sizes))
    found = process.replay(job(traffic=Traffic(requests=requests, concurrency=clients)))
    answered = found.requests
    mean_s = sum(b - a for a, b in zip(answered.arrival_s, answered.last_token_s, strict=True)) / len(requests)
    assert in_flight_by_time(found) == pytest.approx(len(requests) / found.seconds * mean_s)
    assert answered.output_tokens == [one.output_tokens for one in requests]
    assert max(found.steps.running) <= 16
    if clients is not None:
        events = [(at, 1) for at in answered.arrival_s] + [(at, -1) for at in answered.last_token_s]
        inside = 0
        for _, change in sorted(events):
            inside += change
            assert inside <= clients


def test_a_quantised_model_with_windows_is_replayed(process: ReplayProcess) -> None:
    """Experts in mxfp4, and every second layer with a window of 128 tokens: a cache of two pools."""
    windows = replace(SETTINGS, model=str(FOLDER / "models" / "gpt-oss"))
    found = process.replay(job(*(request(at, at / 100, 700) for at in range(20)), settings=windows))
    assert found.engine["window_tokens"] == 6400
    assert found.requests.output_tokens == [20] * 20


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"settings": replace(SETTINGS, plan=ParallelPlan(pp=2))}, "pipelines"),
        ({"settings": replace(SETTINGS, plan=ParallelPlan(attention_dp=2))}, "attention of their own"),
        ({"settings": replace(SETTINGS, cache_dtype="int8_per_token_head")}, "type of cache"),
        ({"settings": replace(SETTINGS, model=str(CONFIGS / "qwen3.5-397b-a17b"))}, "recurrent states"),
        ({"settings": replace(SETTINGS, model=str(CONFIGS / "glm-5"))}, "sparse indexer"),
        ({"has_jumps": True}, "speculation"),
        ({"host_tokens_per_s": 1e6}, "host memory"),
        (
            {"traffic": Traffic(requests=(replace(request(0), images=(ImageSpan(offset=0, tokens=4, name="i"),)),))},
            "images",
        ),
        ({"traffic": Traffic(requests=(request(0, prompt_tokens=3000),))}, "does not take request"),
    ],
    ids=["pipeline", "groups", "cache", "recurrent", "sparse", "jumps", "host", "images", "long"],
)
def test_what_is_not_done_is_refused_with_its_reason(
    process: ReplayProcess, change: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        process.replay(job(**change))


def test_what_sglang_refuses_is_told_in_its_words(process: ReplayProcess) -> None:
    with pytest.raises(PerfOptError, match="SGLang could not do this job"):
        process.replay(job(settings=replace(SETTINGS, model=str(Path(__file__).parent))))
