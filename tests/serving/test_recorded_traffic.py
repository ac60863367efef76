"""Recorded traffic: what other programs wrote becomes requests in order of arrival."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.read_traffic import as_traffic


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _bench_serve(**changed: Any) -> str:
    document = {
        "request_rate": 2.0,
        "max_concurrency": None,
        "input_lens": [64, 128, 32],
        "output_lens": [12, 0, 7],
        "start_times": [105.0, 105.5, 104.0],
        "ttfts": [0.1, 0.0, 0.2],
    }
    return json.dumps({**document, **changed})


def test_bench_serve_requests_come_when_they_came_and_failed_ones_are_left_out(tmp_path: Path) -> None:
    traffic = as_traffic(_written(tmp_path / "run.json", _bench_serve()))
    assert [(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in traffic.requests] == [
        (0.0, 32, 7),
        (1.0, 64, 12),
    ]
    assert traffic.concurrency is None
    assert traffic.origin == "recorded in run.json"


def test_bench_serve_clients_stay_clients(tmp_path: Path) -> None:
    text = _bench_serve(request_rate="inf", max_concurrency=2)
    traffic = as_traffic(_written(tmp_path / "run.json", text))
    assert traffic.concurrency == 2
    assert [one.arrival_s for one in traffic.requests] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"start_times": None}, "when requests came"),
        ({"output_lens": [1]}, "save-detailed"),
        ({"input_lens": [64, 128, "many"]}, "whole number"),
        ({"output_lens": [0, 0, 0]}, "no request"),
        ({"start_times": [10**400, 1.0, 2.0]}, "start_times"),
        ({"start_times": [2**64, 1.0, 2.0]}, "start_times"),
        ({"max_concurrency": 10**400, "request_rate": None, "start_times": None}, "when requests came"),
    ],
)
def test_a_run_that_does_not_tell_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_traffic(_written(tmp_path / "run.json", _bench_serve(**changed)))


def test_json_lines_are_in_milliseconds_and_share_the_blocks_that_others_have(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 9]},
        {"timestamp": 1000, "input_length": 1200, "output_length": 10, "hash_ids": [1, 2, 5]},
        {"timestamp": 2000, "input_length": 700, "output_length": 5, "hash_ids": [1, 6]},
    ]
    traffic = as_traffic(_written(tmp_path / "trace.jsonl", "\n".join(map(json.dumps, rows))))
    assert [one.arrival_s for one in traffic.requests] == [0.0, 1.0, 2.0]
    assert [one.blocks for one in traffic.requests] == [(1, 2), (1,), (1, 2)]
    assert {one.block_tokens for one in traffic.requests} == {512}


def test_a_table_with_dates_runs_over_midnight(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.9000000,374,44\n"
        "2023-11-17 00:00:00.4000000,396,109\n"
    )
    traffic = as_traffic(_written(tmp_path / "azure.csv", text))
    assert [one.arrival_s for one in traffic.requests] == pytest.approx([0.0, 0.5], abs=1e-6)
    assert [(one.prompt_tokens, one.output_tokens) for one in traffic.requests] == [(374, 44), (396, 109)]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n1,2\n", "no column for the output"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,2,3\n", "seconds or a date"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "3 cells"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 2}\n{"timestamp": 1}\n', "no column for the output"),
        ("a.jsonl", '{"timestamp": -1, "input_length": 2, "output_length": 3}\n{}\n', "from 0 on"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_traffic(_written(tmp_path / name, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        as_traffic(tmp_path / "nowhere.jsonl")
