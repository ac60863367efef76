"""`llm-perf-opt train`: the answer, what it is checked against, files for a trainer, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core import store
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.recorded_step import StepStoppedError
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.training import training_step
from llm_perf_opt.training.traced_layer import traced_layer
from llm_perf_opt.training.training_run import read_method
from tests.api.tiny_folders import llama_folder, mixtral_folder
from tests.cli.test_answer_first import answer_of

Command = Callable[..., tuple[int, str, str]]
ONE_RUN = ("--gpus", "h100-sxm", "--seq", "64", "--micro-batch", "2", "--recompute", "full")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Exit code, stdout and stderr."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "train", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


def test_three_lines_answer_on_one_screen(llama: Path, command: Command) -> None:
    code, out, _ = command(llama, *ONE_RUN, "--tokens", "1e6", "--price", "h100-sxm=3.6")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    fits, speed, cost = answer_of(out)
    assert fits.startswith("Fits: ")
    assert "tokens/s" in speed
    assert cost.startswith("1,000,000 tokens take ")
    assert "$" in " ".join(out.split("\n\n")[0].split())


def test_python_and_the_command_say_the_same(llama: Path, command: Command) -> None:
    _, out, _ = command(llama, *ONE_RUN, "--json")
    answer = lpo.train(llama, "h100-sxm", seq=64, micro_batch=2, recompute="full")
    assert json.loads(out) == json.loads(REPORTERS.get("json")().render(answer.report()))


def test_weights_and_states_are_those_of_the_trace(llama: Path) -> None:
    """With bf16 states each trained number takes 2 bytes as a weight, 2 as a gradient, and 4 in AdamW."""
    parameters = lpo.trace(llama).stages().parameters
    by_kind = lpo.train(llama, "h100-sxm", seq=64, states="bf16", recompute="none", micro_batch=1).by_kind
    assert by_kind["weights"] == 2 * parameters
    assert by_kind["gradients"] == 2 * parameters
    assert by_kind["optimizer states"] == 4 * parameters


def test_kinds_and_tokens_add_up(tmp_path: Path) -> None:
    answer = lpo.train(mixtral_folder(tmp_path / "moe"), "8x h100-sxm", seq=64, tokens=1e6)
    assert sum(answer.by_kind.values()) == pytest.approx(answer.needed_bytes, abs=len(answer.by_kind))
    assert answer.needed_bytes < answer.taken_bytes <= answer.memory_bytes
    assert answer.tokens_per_s is not None and answer.step_s is not None
    assert answer.tokens_per_s_low is not None and answer.tokens_per_s_high is not None
    assert answer.tokens_per_s_low < answer.tokens_per_s < answer.tokens_per_s_high
    assert answer.tokens_per_s * answer.step_s == pytest.approx(64 * 64)  # eight sequences for each of eight GPUs
    assert 0 < min(answer.mfu.values()) <= max(answer.mfu.values()) < 1


def test_a_format_without_a_peak_has_no_mfu_and_says_so(llama: Path) -> None:
    answer = lpo.train(llama, "a100-sxm-80g", seq=64, micro_batch=1, precision="fp8", compiled=True)
    assert answer.mfu == {}
    assert any("has no fp8 peak" in note.text for note in answer.report().notes)


def test_what_does_not_fit_ends_with_3_and_the_change_that_helps(tmp_path: Path, command: Command) -> None:
    wide = llama_folder(tmp_path / "wide", hidden_size=8192, intermediate_size=28672, head_dim=128, num_hidden_layers=8)
    code, out, err = command(wide, "--gpus", "l4", "--seq", "64", "--compiled")
    assert code == 3
    assert out.startswith("Does not fit, ")
    assert "To make it fit: " in out
    assert "does not fit on l4" in err
    shorter = re.search(r"it fits with\s+--seq (\d+)", out)
    assert shorter is None or int(shorter[1]) < 64


def test_a_rate_of_ones_own_is_explained_down_to_the_step(llama: Path, command: Command) -> None:
    """The parts of a step are as long as the measured step, copies from the host's memory among them."""
    predicted = lpo.train(llama, "2x h100-sxm", seq=64, micro_batch=2, plan="fsdp2", offload=True)
    assert predicted.tokens_per_s is not None and predicted.step_s is not None
    rate = predicted.tokens_per_s / 2
    words = (llama, "--gpus", "2x h100-sxm", "--seq", "64", "--micro-batch", "2", "--plan", "fsdp2", "--offload")
    code, out, _ = command(*words, "--measured", f"{rate}")
    assert code == 0
    assert "Your run: " in out and "50 % slower than predicted" in " ".join(out.split())
    _, printed, _ = command(*words, "--measured", f"{rate}", "--json")
    table = next(each for each in json.loads(printed)["tables"] if each["title"] == "Why the MFU is what it is")
    times = {row["part_of_a_step"]: row["time_seconds"] for row in table["rows"]}
    assert times["copies from the host's memory"] > 0
    assert sum(times.values()) == pytest.approx(predicted.step_s * 2)


def test_files_for_a_trainer_are_written_once(llama: Path, tmp_path: Path, command: Command) -> None:
    words = (llama, *ONE_RUN, "--write", tmp_path / "run")
    assert command(*words)[0] == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert written.keys() == {"train.sh", "accelerate.yaml", "sft.yaml"}
    code, _, err = command(*words)
    assert code == 1
    assert "--force" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == written
    assert command(*words, "--force")[0] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "dora:8"}, "no training method"),
        ({"plan": "tp3"}, "tp3"),
        ({"recompute": "some"}, "recompute cannot be 'some'"),
        ({"states": "fp4"}, "states cannot be 'fp4'"),
        ({"precision": "int8"}, "precision cannot be 'int8'"),
        ({"optimizer": "adam9"}, "adam9"),
        ({"seq": 0}, "0 of sequence"),
        ({"micro_batch": -1}, "-1 of micro batch"),
        ({"global_batch": 0}, "0 of sequences"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(llama: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        lpo.train(llama, "2x h100-sxm", compiled=True, **given)  # type: ignore[arg-type]
    assert refusal.value.fix


def test_a_model_that_generates_nothing_is_refused(command: Command) -> None:
    code, _, err = command("google-bert/bert-base-uncased", *ONE_RUN)
    assert code in (1, 2)
    assert "generates no tokens" in err or "no training step" in err


def test_a_sequence_beyond_the_learnt_positions_is_refused(command: Command) -> None:
    code, _, said = command("openai-community/gpt2", "--gpus", "a100-sxm-80g", "--seq", "2048")
    assert code == 2
    assert "does not train on 2,048 tokens" in said
    assert "--seq 1024" in said


def test_a_step_whose_code_raises_is_an_error_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above, because it runs short ones; with rules in the place of a trace where it runs none."""

    def stops(tokens: int) -> Callable[..., object]:
        def step(source: object, setup: TrainingSetup, **_: object) -> object:
            if setup.sequence > tokens:
                raise StepStoppedError(ValueError("too many tokens"))
            return SimpleNamespace(layer_saved_bytes=640, layer_input_bytes=64)

        return step

    monkeypatch.setenv(store.VARIABLE, store.OFF)
    for longest in (64, 8):
        monkeypatch.setattr(training_step, "trace_training_step", stops(longest))
        asked = partial(traced_layer, "Qwen/Qwen3-0.6B", read_method("full"), (), sequence=512)
        if longest == 64:
            with pytest.raises(UsageError, match=r"does not train on 512 tokens(.|\n)*too many tokens"):
                asked()
        else:
            assert asked() is None
