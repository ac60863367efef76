"""The comparison of replays with measured servers: what is read, how it is judged, and that the page says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.records import MeasuredRun
from benchmarks.serving_replay import page
from benchmarks.serving_replay.field_records import Replay, load_of
from benchmarks.serving_replay.page import answered, figures, fitted
from benchmarks.serving_replay.recorded_runs import FILES, Served, errors, knee

DOCS = Path(__file__).parents[2] / "docs"
DATA = json.loads((DOCS / "data" / "serving_replay.json").read_text(encoding="utf-8"))


def run_of(name: str, model: str, tpot_s: float, ttft_s: float, in_flight: int = 4) -> MeasuredRun:
    return MeasuredRun(
        name=name,
        source="made up",
        model=model,
        device="h100-sxm",
        engine="vllm",
        precision="bf16",
        prompt_tokens=100,
        output_tokens=50,
        prefill_gpus=1,
        decode_gpus=1,
        in_flight=in_flight,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
    )


def replay_of(name: str, tpot_s: float, ttft_s: float) -> Replay:
    return Replay(
        name=name,
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        e2e_s=ttft_s + 49 * tpot_s,
        prompt_s=ttft_s,
        queued_s=0.0,
        preemptions=0,
        steps=1,
    )


def test_the_way_to_the_engine_is_learnt_from_other_models() -> None:
    """Requests pass a front end of 40 ms; the model that is judged took no part in finding that."""
    times = [0.01 * (1 + number % 9) for number in range(60)]
    pairs = [
        (
            run_of(f"{model} {at}", model, tpot_s=0.02, ttft_s=0.04 + 2 * time),
            replay_of(f"{model} {at}", tpot_s=0.02, ttft_s=time),
        )
        for model in ("one", "other")
        for at, time in enumerate(times)
    ]
    found = answered(pairs)
    assert len(found) == len(pairs)
    row = figures(found, {"one 0": (0.1, 0.02)})
    assert row["fitted_ttft"] < 0.02
    assert 0.5 < row["ttft"] < 1, "as printed, without the way: less than half of what was measured"
    assert row["e2e"] == pytest.approx(1 - (0.05 + 50 * 0.02) / (0.04 + 2 * 0.05 + 50 * 0.02), abs=1e-4)
    assert (row["tpot"], row["tpot_p99"], row["answered"]) == (0.0, 0.0, 1)
    shares = fitted(pairs)["vllm fixed"]
    assert shares[0] + 0.02 * shares[2] == pytest.approx(0.04, abs=0.005), "a constant, as such or as steps"


def test_a_load_keeps_its_mean_lengths_and_stays_in_its_range() -> None:
    drawn = load_of(MeasuredRun(**{**_fields(run_of("drawn", "one", 0.02, 0.1, in_flight=40)), "prompt_tokens": 921}))
    lengths = [request.prompt_tokens for request in drawn.requests]
    assert (min(lengths) >= 818, max(lengths) <= 1024) == (True, True)
    assert sum(lengths) / len(lengths) == pytest.approx(921, rel=0.03)
    many = load_of(run_of("many", "one", 0.02, 0.1, in_flight=500))
    assert len(many.requests) == 3 * 500, "the second round has others behind it until its last request ends"
    fixed = load_of(run_of("fixed", "one", 0.02, 0.1))
    assert {request.prompt_tokens for request in fixed.requests} == {100}
    assert (fixed.concurrency, len(fixed.requests)) == (4, 12)
    assert 46 <= min(request.output_tokens for request in fixed.requests) < 50, "clients drift apart"
    again = load_of(run_of("another record", "other", 0.03, 0.2))
    assert again == fixed, "records with one load have one schedule"


def _fields(run: MeasuredRun) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


def test_recorded_runs_have_every_request() -> None:
    files = sorted(FILES.glob("*.json"))
    assert len(files) == 4
    for file in files:
        rows = json.loads(file.read_text(encoding="utf-8"))["requests"]
        assert len(rows) == 300
        assert all(arrival <= first <= last for _, _, arrival, _, _, first, last in rows)


def test_errors_are_relative_to_what_was_measured() -> None:
    measured = Served(arrival=[0.0, 0.0], scheduled=[1.0, 1.0], first=[2.0, 2.0], last=[4.0, 4.0], outputs=[3, 3])
    slower = Served(arrival=[0.0, 0.0], scheduled=[2.0, 2.0], first=[4.0, 4.0], last=[8.0, 8.0], outputs=[3, 3])
    assert set(errors(measured, slower).values()) == {1.0}
    assert set(errors(measured, measured).values()) == {0.0}


def test_the_knee_is_where_the_first_token_jumps() -> None:
    assert knee([1, 5, 25, 50], [0.4, 0.5, 1.6, 16.0]) == 50
    assert knee([1, 5, 25], [0.4, 0.5, 0.6]) is None


def test_the_cache_is_full_within_one_step_of_the_measured_concurrency() -> None:
    rows = DATA["knee"]
    numbers = [row["in_flight"] for row in rows]
    replayed, measured = (knee(numbers, [row[name] for row in rows]) for name in ("ttft_s", "measured_ttft_s"))
    assert replayed is not None
    assert measured is not None
    assert abs(numbers.index(replayed) - numbers.index(measured)) <= 1
    for row in rows:
        assert row["tpot_s"] == pytest.approx(row["measured_itl_s"], rel=0.12)


def test_at_the_recorded_pace_one_scheduler_queues_as_recorded() -> None:
    paced = [row for row in DATA["recorded"] if "pace" in row["steps"] and "dp2" not in row["name"]]
    assert len(paced) == 3
    for row in paced:
        assert abs(row["errors"]["queued, mean"]) <= 0.03
        assert abs(row["errors"]["E2E, mean"]) <= 0.03
        assert row["moved"] == 0, "every first token in its recorded place"


def test_the_page_says_what_the_data_say() -> None:
    text = (DOCS / "evidence" / "serving-replay.md").read_text(encoding="utf-8")
    for section in page.sections(DATA).values():
        assert section in text
