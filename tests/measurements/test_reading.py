"""Measurements in every form that people have them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.measurements.measurement import MeasuredRun, Quantity
from llm_perf_opt.measurements.read import read_measured
from tests.examples import examples
from tests.measurements.made_results import (
    aiperf_result,
    detailed_vllm_result,
    genai_perf_result,
    guidellm_benchmark,
    guidellm_report,
    text_of,
    vllm_result,
)

SERVING: dict[str, Any] = {
    "vllm bench serve": vllm_result(),
    "vllm bench serve, detailed": detailed_vllm_result(),
    "genai-perf": genai_perf_result(),
    "AIPerf": aiperf_result(),
    "guidellm": guidellm_report(),
}


def one_run(file: Path, content: str | bytes) -> MeasuredRun:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (run,) = read_measured(file).runs
    return run


def seconds(run: MeasuredRun) -> tuple[float | None, float | None]:
    found = [run.time_of(quantity) for quantity in (Quantity.TTFT, Quantity.TPOT)]
    return (found[0].seconds if found[0] else None, found[1].seconds if found[1] else None)


@pytest.mark.parametrize("name", SERVING)
def test_a_load_generator_is_read_in_the_form_it_writes(name: str, tmp_path: Path) -> None:
    run = one_run(tmp_path / "result.json", text_of(SERVING[name]))
    assert run.source == name.partition(",")[0]
    assert seconds(run) == pytest.approx((0.480, 0.020))
    assert (run.model, run.concurrency, run.batch) == ("Qwen/Qwen3-8B", 16, None)
    assert (run.input_tokens, run.output_tokens, run.decode_context) == (2048, 128, 2112)


def test_appended_results_of_vllm_are_several_runs(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_bytes(b"\n".join(text_of(vllm_result(max_concurrency=load)) for load in (1, 64)))
    assert [run.concurrency for run in read_measured(file).runs] == [1, 64]


def test_a_sweep_of_guidellm_is_several_runs_and_an_empty_load_is_none(tmp_path: Path) -> None:
    empty = guidellm_benchmark(32, 0.0, 0.0)
    file = tmp_path / "benchmarks.json"
    report = guidellm_report(guidellm_benchmark(1, 50.0, 8.0), empty, guidellm_benchmark(64, 900.0, 40.0))
    file.write_bytes(text_of(report))
    assert [(run.concurrency, *seconds(run)) for run in read_measured(file).runs] == [
        (1, pytest.approx(0.050), pytest.approx(0.008)),
        (64, pytest.approx(0.900), pytest.approx(0.040)),
    ]


def test_without_a_stated_concurrency_it_follows_from_rate_and_latency(tmp_path: Path) -> None:
    """Little's law: 3.2 requests each second, each of 0.51 s + 127 x 21 ms = 3.177 s, are 10.2 in flight."""
    run = one_run(tmp_path / "result.json", text_of(vllm_result(max_concurrency=None, request_rate=3.2)))
    assert run.concurrency == 10
    without = genai_perf_result(input_config={"perf_analyzer": {"stimulus": {"request_rate": 3.2}}})
    assert one_run(tmp_path / "export.json", text_of(without)).concurrency == 10  # 3.2 x 3.05 s


def test_means_count_where_no_median_was_written(tmp_path: Path) -> None:
    result = {name: value for name, value in vllm_result().items() if not name.startswith("median")}
    run = one_run(tmp_path / "result.json", text_of(result))
    assert seconds(run) == pytest.approx((0.510, 0.021))
    assert {time.statistic for time in run.times} == {"mean of the requests"}


def test_speculative_decoding_gives_several_tokens_in_a_step(tmp_path: Path) -> None:
    run = one_run(tmp_path / "result.json", text_of(vllm_result(spec_decode_acceptance_length=2.5)))
    assert run.tokens_per_step == 2.5


LINE = "ttft=0.48s tpot=20ms concurrency=16 input_tokens=2048 output_tokens=128 model=Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("line.txt", LINE),
        ("line.txt", f"# of last Tuesday\n{LINE.replace(' ', ', ')}  # busy\n"),
        ("run.toml", 'ttft_ms = 480\ntpot = "20ms"\nconcurrency = 16\nisl = 2048\nosl = 128\nmodel = "Qwen/Qwen3-8B"'),
        (
            "run.toml",
            "[[run]]\nttft_ms = 480.0\ntpot_us = 20000\nconcurrency = 16\nisl = 2048\n"
            'osl = 128\nmodel = "Qwen/Qwen3-8B"',
        ),
        (
            "run.json",
            '{"ttft_ms": 480, "tpot_ms": 20, "concurrency": 16, "isl": 2048, "osl": 128, "model": "Qwen/Qwen3-8B"}',
        ),
        ("runs.csv", "ttft_ms,tpot_ms,concurrency,isl,osl,model\n480,20,16,2048,128,Qwen/Qwen3-8B\n"),
        ("runs", "ttft_s,tpot_ms,concurrency,isl,osl,model\n0.48,20,16,2048,128,Qwen/Qwen3-8B\n"),
    ],
)
def test_figures_that_a_person_wrote_are_the_same_run_in_every_form(name: str, text: str, tmp_path: Path) -> None:
    run = one_run(tmp_path / name, text)
    assert seconds(run) == pytest.approx((0.480, 0.020))
    assert (run.concurrency, run.input_tokens, run.output_tokens, run.model) == (16, 2048, 128, "Qwen/Qwen3-8B")


def test_a_line_may_stand_in_place_of_a_file() -> None:
    (run,) = read_measured("tpot=20ms batch=4").runs
    assert (seconds(run), run.batch, run.concurrency) == ((None, pytest.approx(0.020)), 4, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ttft=0.5", "a time with one unit"),
        ("ttft_ms=500ms", "a time with one unit"),
        ("ttft=0s", "a time above zero"),
        ("ttft=-1s", "a time above zero"),
        ("ttft=nans", "a time with one unit"),
        ("tpot=20ms batch=2.5", "a whole number"),
        ("tpot=20ms batch=0", "batch and concurrency are between"),
        ("tpot=20ms isl=99999999999999", "lengths are between"),
        ("tpot=20ms tpot_ms=20", "each once"),
        ("tpot=20ms tpot=20ms", "once"),
        ("tpott=20ms", "one of ttft_ms, tpot_ms"),
        ("batch=4", "neither a time to the first token"),
        ("tpot=1e9s", "below a day"),
        ("tpot=20ms garbage", "name=value"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_looked_for(line: str, reason: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_measured(line)
    assert reason in str(refusal.value)
    assert "vllm bench serve" in refusal.value.fix


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[1]",
        b"{}",
        b"\x00\xff\xfe",
        b'{"mean_ttft_ms": -1}',
        b'{"mean_ttft_ms": "fast"}',
        b'{"mean_ttft_ms": NaN}',
        b'{"benchmarks": []}',
        b'{"benchmarks": [{"metrics": {"time_to_first_token_ms": 3}}]}',
        b'{"time_to_first_token": {"avg": 3, "unit": "furlong"}}',
        b'{"tables": []}',
        b'{"tables": [], "title": "x"}',
        b'{"pages": 1}',
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"ttft_ms,tpot_ms\n",
        b'ttft_ms,tpot_ms\n"1,2\n',
        b'{"mean_ttft_ms": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_broken_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    with pytest.raises(PerfOptError) as refusal:
        read_measured(file)
    assert "broken.json" in refusal.value.what
    assert refusal.value.why
    assert refusal.value.fix


def test_a_file_that_is_not_there_and_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="There is no measurement"):
        read_measured(tmp_path / "nothing.json")
    with pytest.raises(PerfOptError, match="There is no metrics file"):
        read_measured(tmp_path)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(sorted(SERVING)))
def test_a_damaged_result_is_read_or_refused_and_never_a_traceback(
    data: st.DataObject, name: str, tmp_path: Path
) -> None:
    good = bytearray(text_of(SERVING[name]))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    file = tmp_path / "damaged.json"
    file.write_bytes(bytes(good))
    try:
        found = read_measured(file)
    except PerfOptError as error:
        assert len(str(error)) < 3000
    else:
        assert found.runs or found.recordings


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=60))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        read_measured(f"tpot=20ms {text}")
    except PerfOptError as error:
        assert error.what


def test_names_are_made_visible(tmp_path: Path) -> None:
    run = one_run(tmp_path / "result.json", json.dumps(vllm_result(model_id="evil\x1b[31m")))
    assert run.model == "evil\\x1b[31m"
