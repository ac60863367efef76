"""Plans under traffic: which are considered, how requests are dealt, what is refused; once through the real vLLM."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

import llm_perf_opt as lpo
from llm_perf_opt.cli import main as command
from llm_perf_opt.cli.serve_command import DemandOptions
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity import replays as capacity_replays
from llm_perf_opt.serving.capacity.replays import dealt
from llm_perf_opt.serving.engine_process.environment import EngineRecipe, find
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.serving.traffic_text import read_page_mix
from tests.api.one_by_one import OneByOne

needs_tables = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no tables of measured kernels")
TINY = "deepseek-ocr-tiny"
OCR = "4 at once pages=A4@150dpi output=20 requests=12"


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words])
    with pytest.raises(SystemExit) as left:
        command()
    return int(left.value.code or 0)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> type[OneByOne]:
    monkeypatch.setattr(capacity_replays, "ReplayProcess", OneByOne)
    monkeypatch.setattr(capacity_replays, "find", lambda engine: None)
    return OneByOne


def test_requests_are_dealt_in_turn_and_clients_shared_out() -> None:
    traffic = as_traffic("5 at once prompt=8 output=2 requests=11")
    shares = dealt(traffic, 3)
    assert [len(share.requests) for share in shares] == [4, 4, 3]
    assert [share.concurrency for share in shares] == [2, 2, 1]
    assert sorted(one.id for share in shares for one in share.requests) == sorted(one.id for one in traffic.requests)
    assert [one.id for one in shares[1].requests] == ["r1", "r4", "r7", "r10"]


@needs_tables
def test_pages_take_the_model_s_own_tokens_and_an_encoder_that_takes_time(one_by_one: type[OneByOne]) -> None:
    answer = lpo.capacity(TINY, "h100-sxm", OCR)
    (job,) = one_by_one.asked  # clients that wait scale with the steps: the edges need no replay
    described = lpo.trace(TINY, image="1240x1754").graphs[0].workload
    request = job.traffic.requests[0]
    assert request.images[0].tokens == described["image_tokens"]
    assert request.prompt_tokens == described["context_tokens"]
    assert job.table is not None
    assert job.table.images is not None
    assert job.table.images(request.images[0].tokens) > 0
    banded = answer.best.banded
    assert banded.high.seconds / banded.low.seconds == pytest.approx(job.table.high / job.table.low)
    assert answer.best.outcome.pages == 12


@needs_tables
def test_fleets_of_several_devices_stand_side_by_side_the_cheapest_first(
    one_by_one: type[OneByOne], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = lpo.capacity(
        TINY, "l40s, h100-sxm", OCR, pages=10**9, within="24h", prices={"h100-sxm": 0.001, "l40s": 10.0}
    )
    assert [fleet.considered.device for fleet in answer.fleets] == ["h100-sxm", "l40s"]
    assert {job.settings.device.name for job in one_by_one.asked} == {one_by_one.asked[0].settings.device.name}
    listed = lpo.capacity(TINY, "l40s, h100-sxm", OCR, pages=10**9, within="24h", prices={"l40s": 1000.0})
    assert [fleet.considered.device for fleet in listed.fleets] == ["h100-sxm", "l40s"], "the list price stands in"
    monkeypatch.setattr("llm_perf_opt.core.hardware.prices.shipped_prices", dict)
    unpriced = lpo.capacity(TINY, "l40s, h100-sxm", OCR, pages=10**9, within="24h", prices={"l40s": 1000.0})
    assert [fleet.considered.device for fleet in unpriced.fleets] == ["l40s", "h100-sxm"], "no price is not a low one"
    first = answer.report().tables[0].rows[0]
    assert str(first[0]) == "How many GPUs for 1,000,000,000 pages in 24 h?"
    assert answer.deadline is not None
    assert str(first[1]).startswith(f"{answer.best.gpus_for(answer.deadline)} x h100-sxm")


@needs_tables
def test_the_fewest_replicas_that_meet_a_slo_are_found(one_by_one: type[OneByOne]) -> None:
    traffic = "2000/s constant prompt=64 output=8 requests=400"
    answer = lpo.capacity(TINY, "8x h100-sxm", traffic, slo="ttft=20ms", tp=1)
    fewest = answer.best.fewest
    assert fewest is not None
    tried = {}
    for job in one_by_one.asked:
        if job.slower == 1.0:
            tried[round(400 / len(job.traffic.requests))] = job
    assert fewest in tried
    assert fewest == 1 or fewest - 1 in tried


@needs_tables
def test_limits_of_a_step_are_tried_one_by_one_and_reach_the_engine(one_by_one: type[OneByOne]) -> None:
    answer = lpo.capacity(TINY, "h100-sxm", OCR, max_sequences="2,16", max_batched_tokens=512)
    assert {one.max_sequences for one in answer.considered} == {2, 16}
    assert one_by_one.asked[0].settings.max_batched_tokens == 512
    assert one_by_one.asked[0].settings.cache_bytes is not None


@needs_tables
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plan_has_one_number_of_tokens_in_its_cache_whichever_verb_is_asked(
    one_by_one: type[OneByOne], tmp_path: Path, ranks: int
) -> None:
    """Whole blocks, by the fit that `predict` prints; a mean length of 71 tokens is no multiple of a block."""
    from tests.api.tiny_folders import llama_folder

    folder, devices = llama_folder(tmp_path / "llama"), f"{ranks}x h100-sxm"
    answer = lpo.capacity(folder, devices, "4 at once prompt=64 output=7 requests=8", tp=ranks)
    fit = lpo.trace(folder, prompt_tokens=300, tp=ranks).predict(devices).serving
    assert fit is not None
    (considered,) = answer.considered
    assert considered.cache_tokens == fit.cache_tokens
    assert considered.cache_tokens % 16 == 0
    assert one_by_one.asked[0].settings.cache_bytes == fit.room_bytes


@needs_tables
def test_a_page_has_one_mean_step(one_by_one: type[OneByOne]) -> None:
    answer = lpo.capacity(TINY, "h100-sxm", "4 at once prompt=64 output=7 requests=8", tp=1)
    assert answer.best.considered.best is not None
    assert sum(answer.step_seconds.values()) == pytest.approx(answer.best.considered.best.step_s)


@needs_tables
@pytest.mark.parametrize(("asked", "told"), [(None, "auto"), ("fp8", "fp8"), ("int8", "int8_per_token_head")])
def test_the_engine_is_told_the_cache_that_was_asked_for(
    one_by_one: type[OneByOne], asked: str | None, told: str
) -> None:
    lpo.capacity(TINY, "h100-sxm", "4 at once prompt=64 output=7 requests=8", tp=1, cache=asked)
    assert one_by_one.asked[0].settings.cache_dtype == told


@needs_tables
def test_measured_results_stand_beside_and_measured_steps_correct(one_by_one: type[OneByOne], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "\n".join(
            f"Iteration({at}): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, "
            "iteration elapsed time: 500.00 ms"
            for at in range(5)
        )
    )
    plain = lpo.capacity(TINY, "h100-sxm", OCR, measured="ttft=1s tpot=5ms")
    assert any(table.title.startswith("Measured and replayed") for table in plain.report().tables)
    slow = lpo.capacity(TINY, "h100-sxm", OCR, measured=[log])
    assert slow.best.outcome.tpot is not None
    assert slow.best.outcome.tpot.median_s == pytest.approx(0.5, rel=0.1)
    with pytest.raises(UsageError, match="one plan"):
        lpo.capacity(TINY, "h100-sxm, l40s", OCR, measured=[log])


@needs_tables
def test_the_command_writes_a_page_and_a_trace_for_perfetto(
    one_by_one: type[OneByOne],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, trace = tmp_path / "capacity.html", tmp_path / "replay.json"
    words = ["serve", TINY, "--gpus", "h100-sxm", "--traffic", OCR, "--price", "h100-sxm=2.5"]
    assert main(monkeypatch, *words, "--out", str(page), "--chrome-trace", str(trace)) == 0
    assert "Throughput against latency" in page.read_text()
    assert len(json.loads(trace.read_text())["traceEvents"]) > 12
    assert main(monkeypatch, *words) == 0
    assert "What is the bottleneck?" in capsys.readouterr().out


@needs_tables
def test_limits_that_nothing_keeps_are_told_and_end_with_exit_code_3(
    one_by_one: type[OneByOne], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/evidence/reliability.md says of exit codes; a step takes longer than a nanosecond."""
    words = ("serve", TINY, "--gpus", "h100-sxm", "--slo", "tpot=0.000001ms", "--json")
    assert main(monkeypatch, *words, "--traffic", OCR) == 3
    (fleets,) = (table for table in json.loads(capsys.readouterr().out)["tables"] if table["title"] == "Fleets")
    assert {row["meets_the_slo"] for row in fleets["rows"]} == {"no"}
    assert main(monkeypatch, *words, "--input", "64", "--output", "8", "--users", "2") == 3
    assert "No fleet meets tpot=0.000001ms" in capsys.readouterr().err


def test_groups_that_share_experts_are_not_called_as_whole_replicas_are() -> None:
    assert ParallelPlan(tp=2, dp=4).describe() == "tp2 dp4"
    assert ParallelPlan(tp=2, attention_dp=4, ep=8).describe() == "tp2 ep8 attention-dp4"
    with pytest.raises(UsageError, match="takes no dp"):
        DemandOptions.make(traffic=OCR, dp=2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--input", "4", "--measured", "ttft=1s"], "--measured needs --traffic"),
        (["--traffic", OCR, "--users", "4"], "--users and --traffic exclude each other"),
        (["--traffic", OCR, "--engine", "sglang"], "--engine has no effect with --traffic"),
        (["--traffic", OCR, "--price", "h100-sxm"], "is not a price"),
        (["--traffic", OCR, "--slo", "fast"], "is not clear"),
        (["--traffic", OCR, "--pages", "5"], "--within is missing"),
        (["--traffic", OCR, "--max-sequences", "few"], "is not a value of max_sequences"),
        (["--traffic", "20/s"], "is not a description of traffic"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_work(
    one_by_one: type[OneByOne],
    words: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(monkeypatch, "serve", TINY, "--gpus", "h100-sxm", *words) == 2
    assert why in capsys.readouterr().err


def test_without_vllm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(engine: EngineRecipe) -> None:
        raise PerfOptError("There is no vLLM to replay requests with.", why="none", fix="make it")

    monkeypatch.setattr(capacity_replays, "find", nothing)
    with pytest.raises(PerfOptError, match="no vLLM"):
        lpo.capacity(TINY, "h100-sxm", OCR)


def test_a_model_that_reads_no_pages_says_so(one_by_one: type[OneByOne], tmp_path: Path) -> None:
    from tests.api.tiny_folders import llama_folder

    with pytest.raises(UsageError, match="does not run with an image"):
        lpo.capacity(llama_folder(tmp_path / "llama"), "h100-sxm", OCR)


def test_the_sizes_of_pages_are_read_from_the_headers_of_images(tmp_path: Path) -> None:
    for name, size in (("a.png", (64, 32)), ("b.png", (64, 32)), ("c.jpg", (10, 20))):
        Image.new("RGB", size).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    mix = read_page_mix(str(tmp_path))
    assert dict(zip((size.text for size in mix.sizes), mix.shares, strict=True)) == {"64x32": 2 / 3, "10x20": 1 / 3}
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no image"):
        read_page_mix(str(tmp_path / "empty"))


def _has_vllm() -> bool:
    try:
        find()
    except PerfOptError:
        return False
    return True


@pytest.mark.slow
@needs_tables
@pytest.mark.skipif(not _has_vllm(), reason="no environment with vLLM")
def test_pages_go_through_the_real_scheduler_with_their_images() -> None:
    answer = lpo.capacity("deepseek-ocr", "a100-sxm-80g", "3 at once pages=640x640 output=6 requests=6")
    assert answer.engine["scheduler"] == "AsyncScheduler"
    assert answer.best.outcome.output_tokens == 36
    assert answer.best.outcome.pages == 6
    assert answer.best.outcome.prompt_tokens == 6 * 294


@pytest.mark.slow
@needs_tables
@pytest.mark.skipif(not _has_vllm(), reason="no environment with vLLM")
def test_recorded_requests_find_the_blocks_that_another_one_left_in_the_cache(tmp_path: Path) -> None:
    from tests.api.tiny_folders import llama_folder

    rows = (
        {"timestamp": 0, "input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 3]},
        {"timestamp": 10_000, "input_length": 1200, "output_length": 4, "hash_ids": [1, 2, 4]},
        {"timestamp": 20_000, "input_length": 700, "output_length": 4, "hash_ids": [1, 5]},
    )
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    answer = lpo.capacity(llama_folder(tmp_path / "llama"), "h100-sxm", file, tp=1)
    assert answer.best.outcome.cached_tokens == 1024 + 512
