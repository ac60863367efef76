"""One question about a deployment, asked of models small enough to trace in a fraction of a second."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api import serve as serve_module
from llm_perf_opt.cli import main as command
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.serving.capacity import replays as capacity_replays
from tests.api.one_by_one import OneByOne
from tests.api.tiny_folders import llama_folder, mixtral_folder

needs_tables = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no tables of measured kernels")
ASKED: dict[str, Any] = {"input": 200, "output": 50, "users": 16, "slo": "ttft=2s,tpot=40ms"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def answer(llama: Path) -> lpo.ServeAnswer:
    return lpo.serve(llama, "l4,h100-sxm,mi300x", **ASKED)


@needs_tables
def test_the_answer_is_three_lines_and_the_cheapest_comes_first(answer: lpo.ServeAnswer) -> None:
    assert answer.best is not None
    assert answer.best.device == "l4"
    report = answer.report()
    assert len(report.answer) == 3
    assert report.answer[0].startswith("1 x l4 (one device, vLLM) serves 16 users: TTFT ")
    assert report.answer[2].startswith("The runner-up, 1 x h100-sxm (one device, vLLM), costs ")
    assert "By its data sheet alone 1 x mi300x would do" in report.answer[2]
    assert [row[0] for row in report.tables[0].rows] == ["l4", "h100-sxm", "mi300x"]
    assert [chart.title for chart in report.charts] == [
        "Throughput per GPU against tokens/s per user",
        "TTFT and TPOT on 1 x l4",
    ]
    json.dumps(answer.to_dict())


@needs_tables
def test_list_prices_are_named_with_their_date(answer: lpo.ServeAnswer, llama: Path) -> None:
    price = shipped_prices()["l4"]
    notes = " ".join(note.text for note in answer.report().notes)
    assert f"l4 ${price.per_hour:g}" in notes
    assert str(price.as_of) in notes
    own = lpo.serve(llama, "l4,h100-sxm", prices={"l4": 100.0}, **ASKED)
    assert own.best is not None
    assert own.best.device == "h100-sxm"
    unknown = lpo.serve(llama, "mi355x", **ASKED).report()
    assert any("No list price is known for mi355x" in note.text for note in unknown.notes)
    assert "Its price is not known: add --price." in unknown.answer[1]


@needs_tables
def test_a_gpu_without_measured_kernels_says_so(answer: lpo.ServeAnswer, llama: Path) -> None:
    by_name = {fleet.device: fleet for fleet in answer.fleets}
    assert by_name["h100-sxm"].is_measured
    assert not by_name["mi300x"].is_measured
    assert by_name["mi300x"].tpot.band.high / by_name["mi300x"].tpot.band.low == pytest.approx(4.0)
    alone = lpo.serve(llama, "mi300x", **ASKED).report().answer[0]
    assert "data-sheet times" in alone


@needs_tables
def test_the_step_is_the_one_that_a_prediction_has(llama: Path, answer: lpo.ServeAnswer) -> None:
    fleet = next(fleet for fleet in answer.fleets if fleet.device == "h100-sxm")
    context = 200 + 50 // 2
    trace = lpo.trace(llama, batch=16, prompt_tokens=context - 1, torch_device="cuda")
    step = trace.predict("h100-sxm", execution="fused").speed.step
    assert step is not None
    assert fleet.state.plain_s == pytest.approx(step.expected, rel=1e-12)


@needs_tables
def test_what_does_not_fit_names_the_longest_context(tmp_path: Path) -> None:
    deep = llama_folder(tmp_path / "tiny-llama", num_hidden_layers=30)
    answer = lpo.serve(deep, "2x l4", input=16_000_000, output=1, users=1)
    assert answer.best is None
    (line,) = answer.report().answer
    assert line == (
        "tiny-llama with 16,000,001 tokens does not fit on 2x l4: the longest context is 2,048 tokens, "
        "with l4 tp2, its trained length."
    )
    assert any("trained for at most 2,048" in note.text for note in answer.report().notes)


@needs_tables
def test_a_high_load_asks_for_a_replay(llama: Path) -> None:
    free = lpo.serve(llama, "1x l4", input=200, output=50)
    assert free.best is not None
    most = free.best.state.requests_per_s
    for share, is_said in ((0.5, False), (0.9, True)):
        answer = lpo.serve(llama, "1x l4", input=200, output=50, rate=f"{share * most:.3f}/s")
        assert answer.best is not None
        assert answer.best.load == pytest.approx(share, rel=0.05)
        assert any("Add --replay" in note.text for note in answer.report().notes) is is_said


@needs_tables
def test_engines_stand_side_by_side(llama: Path) -> None:
    answer = lpo.serve(llama, "h100-sxm", engine="vllm,trtllm", **ASKED)
    assert {fleet.engine for fleet in answer.fleets} == {"vllm", "trtllm"}
    assert "engine" in [column.name for column in answer.report().tables[0].columns]


@needs_tables
def test_experts_may_be_shared_by_groups(tmp_path: Path) -> None:
    answer = lpo.serve(mixtral_folder(tmp_path / "tiny-mixtral"), "8x h100-sxm", **ASKED)
    assert {"tp2", "tp2 ep2", "ep2 attention-dp2"} <= {fleet.plan for fleet in answer.plans}
    assert all(fleet.gpus <= 8 for fleet in answer.plans)


@needs_tables
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_replay_stands_beside_the_steady_state(llama: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    asked = []
    monkeypatch.setattr(capacity_replays, "ReplayProcess", OneByOne)
    monkeypatch.setattr(capacity_replays, "find", lambda found: asked.append(found.name))
    answer = lpo.serve(llama, "l4", replay=True, engine=engine, **ASKED)
    ((fleet, _),) = answer.replayed
    assert (fleet.device, fleet.engine, asked) == ("l4", engine, [engine])
    table = next(table for table in answer.report().tables if table.title.startswith("Steady state and replay"))
    assert [row[1] for row in table.rows][:2] == ["requests/s", "TTFT p50, s"]


@needs_tables
def test_the_files_that_start_it_have_the_settings_of_the_answer(
    answer: lpo.ServeAnswer, llama: Path, tmp_path: Path
) -> None:
    paths = answer.save_deployment(tmp_path / "deploy")
    assert [path.name for path in paths] == ["serve.sh", "compose.yaml", "kubernetes.yaml"]
    assert answer.best is not None
    considered = answer.best.candidate.replica.considered
    words = shlex.split(paths[0].read_text(), comments=True)
    assert words[words.index("--max-num-seqs") + 1] == str(considered.max_sequences)
    assert words[words.index("--max-num-batched-tokens") + 1] == str(considered.max_batched_tokens)
    assert str(llama) in words
    with pytest.raises(PerfOptError, match="Would overwrite"):
        answer.save_deployment(tmp_path / "deploy")
    nothing = lpo.serve(llama, "l4", input=200, output=50, users=1, slo="tpot=1ms,ttft=1ms")
    with pytest.raises(UsageError, match="nothing to start"):
        nothing.save_deployment(tmp_path / "other")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input": 200, "users": 2, "rate": "2/s"}, "exclude each other"),
        ({"users": 2}, "prompt length is missing"),
        ({"input": 200, "pages": 10}, "A deadline is a number of pages and a time"),
        ({"input": 200, "engine": "vllm,none"}, "'none' is not an engine"),
        ({"input": 200, "slo": "soon"}, "'soon'"),
        ({"input": "many"}, "is not a length in tokens"),
        ({"input": 200, "rate": "often"}, "is not a rate above zero"),
        ({"input": 200, "page": "A4@150dpi"}, "does not run with an image"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_trace(
    llama: Path, given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "sized_fleets", None)  # nothing gets that far
    with pytest.raises(UsageError, match=message):
        lpo.serve(llama, "h100-sxm", **given)


def test_a_gpu_that_nobody_knows_is_refused(llama: Path) -> None:
    with pytest.raises(UsageError):
        lpo.serve(llama, "h100-sxm,nonsense", **ASKED)
    with pytest.raises(UsageError, match="No GPU is named"):
        lpo.serve(llama, " , ", **ASKED)


@needs_tables
def test_the_command_prints_the_answer_first(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["serve", str(llama), "--gpus", "l4", "--input", "200", "--output", "50", "--rate", "20/s"]
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words, "--write", str(tmp_path / "deploy")])
    with pytest.raises(SystemExit) as left:
        command()
    assert not left.value.code
    out, err = capsys.readouterr()
    assert out.startswith("1 x l4 (one device, vLLM) sustains 20 requests/s: TTFT ")
    assert (tmp_path / "deploy" / "serve.sh").is_file()
    assert err.count("Wrote ") == 3


@needs_tables
def test_an_answer_of_one_token_has_no_time_between_tokens(llama: Path) -> None:
    """Hundreds of prompts come in a step then: no chance vanishes, and none takes as long as all."""
    one = lpo.serve(llama, "h100-sxm", input=200, output=1, rate="2000/s")
    assert "TPOT" not in one.report().answer[0]
    assert one.best is not None
    (two,) = lpo.serve(llama, "h100-sxm", input=200, output=2, rate="2000/s").fleets
    assert one.best.state.step_s > 0
    assert one.best.gpus <= two.gpus


@needs_tables
def test_all_stands_for_every_gpu(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: device for name, device in load_devices().devices.items() if name in ("l4", "l40s")}
    table = replace(load_devices(), devices=known)
    monkeypatch.setattr("llm_perf_opt.core.hardware.links.load_devices", lambda _: table)
    assert {fleet.device for fleet in lpo.serve(llama, "all", **ASKED).fleets} == {"l4", "l40s"}
