"""One code path times every model: the twin, folders of transformers, a module; with the same artifacts and figures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import device_text
from llm_perf_opt.core.hardware.calibration import measured_device
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, write_folder
from tests.timing.made_calibrations import calibration, table

transformers = pytest.importorskip("transformers", reason="folders are run by it")
NEW_TOKENS = 4
SHORT = ("run.repeats=2", "run.warmup=0", "run.threads=1", "workload.max_new_tokens=4", "model.dtype=float32")
OUTSIDE = ("preprocess", "sampling")


@dataclass(frozen=True)
class Case:
    config: dict[str, Any] | None  # of a folder; None: the registered twin
    words: tuple[str, ...]
    stages: tuple[str, ...]  # of the model, in the order in which they first end


CASES = {
    "twin": Case(
        None, ("workload.image=90x130", "workload.mode=gundam"), ("sam", "clip", "projector", "prefill", "decode")
    ),
    "experts": Case(MIXTRAL, ("workload.prompt_tokens=9",), ("prefill", "decode")),
    "vision": Case(LLAVA, ("workload.image=32x32",), ("vision", "projector", "prefill", "decode")),
    "encoder-decoder": Case(T5, ("workload.prompt_tokens=9",), ("prefill", "decode")),
}


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, str]:
    """The device file of a calibrated processor, far faster than any there is, and its id."""
    ticks = {"rows": (1, 64), "columns": (640,), "depth": (640,)}
    tables = (
        table("matmul", "float32", ticks, lambda rows, columns, depth: 2 * rows * columns * depth / 1e15),
        table("copy", "float32", {"elements": (16,)}, lambda count: count * 1e-14),
    )
    device = measured_device(replace(calibration(*tables), threads=1))
    file = tmp_path / "machine.toml"
    file.write_text(device_text(device), encoding="utf-8")
    return file, device.id


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Phases that the weightless tracer ran."""
    counts: Counter[str] = Counter()
    trace = WeightlessTracer.trace

    def counting(tracer: WeightlessTracer, target: Target) -> Any:
        counts[target.phase] += 1
        return trace(tracer, target)

    monkeypatch.setattr(WeightlessTracer, "trace", counting)
    return counts


def artifacts(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if not file.name.startswith(".")}


EVERY_ARTIFACT = {
    *("config.yaml", "request.json", "env.json", "pages", "chrome-trace.json"),
    *("operators.csv", "operators.csv.sha256"),
    *("static_compute.json", "static_compute.md", "metrics.json", "report.md", "report.html"),
}


def place_model(case: Case, tmp_path: Path) -> str:
    if case.config is None:
        return "deepseek-ocr-tiny"
    (tmp_path / "model").mkdir()
    return str(write_folder(tmp_path / "model", case.config))


@pytest.mark.parametrize("name", CASES)
def test_the_command_times_any_model(
    run: Run, tmp_path: Path, machine: tuple[Path, str], traced: Counter[str], name: str
) -> None:
    case, (file, device) = CASES[name], machine
    model = place_model(case, tmp_path)
    words = (f"model={model}", *SHORT, *case.words, f"device.devices={file}", f"device.name={device}")
    code, out, err = run("profile", *words, f"run.folder={tmp_path / 'run'}")
    assert code == 0, err
    assert "Efficiency by stage" in out
    assert artifacts(tmp_path / "run") == EVERY_ARTIFACT
    assert traced == {"prefill": 1, "decode": 1}  # costs and static report share one trace of the page
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["device"]["is_measured"]
    stages = {stage["name"]: stage for stage in metrics["stages"]}
    assert set(stages) == {*OUTSIDE, *case.stages}
    for stage in case.stages:
        seconds = stages[stage]["total_ns"] * 1e-9
        expected = stages[stage]["flops"] / seconds / metrics["device"]["peak_flops_per_s"]
        assert stages[stage]["mfu"] == pytest.approx(expected, rel=1e-2)
        assert stages[stage]["mfu"] > 0 and stages[stage]["mbu"] > 0
    assert metrics["model_figure"]["stages"] == list(case.stages)
    (page,) = metrics["pages"]
    assert (page["decode_steps"], len(page["token_ids"])) == (NEW_TOKENS - 1, NEW_TOKENS)
    for one in page["passes"]:
        assert (len(one["stages_ns"]["decode"]), len(one["stages_ns"]["sampling"])) == (NEW_TOKENS - 1, NEW_TOKENS)
    if page["context_tokens"] is not None:
        assert page["cache_tokens"] == page["context_tokens"] + NEW_TOKENS - 1


@pytest.mark.parametrize("name", ["experts", "vision"])
def test_costs_are_those_of_a_trace_of_the_same_workload(tmp_path: Path, name: str) -> None:
    folder = place_model(CASES[name], tmp_path)
    asked: dict[str, Any] = {"image": "32x32"} if name == "vision" else {"prompt_tokens": 9}
    answer = lpo.profile(folder, **asked, dtype="float32", max_new_tokens=3, repeats=1, warmup=0, operators=False)
    trace = lpo.trace(folder, **asked, dtype="float32", decode_steps=2, torch_device="cpu")
    (costs,) = answer.costs
    assert costs is not None
    assert {stage: work.flops for stage, work in costs.works.items()} == {
        stage.name: stage.flops for stage in trace.cost(["counted"]).stages
    }


def test_a_module_is_timed_with_its_own_weights(tmp_path: Path, machine: tuple[Path, str]) -> None:
    file, device = machine
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)).train()
    before = [weight.clone() for weight in module.parameters()]
    answer = lpo.profile(
        module, (torch.randn(4, 64),), device=device, devices_file=file, repeats=2, threads=1, out=tmp_path / "run"
    )
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))
    assert module.training
    assert [path for path, one in module.named_modules() if "forward" in vars(one)] == []
    (stage,) = answer.figures.stages
    assert (stage.name, stage.flops) == ("forward", 2 * 4 * (64 * 128 + 128 * 8))
    assert stage.efficiency is not None and stage.efficiency.mfu is not None
    assert (answer.figures.step, answer.figures.first_token, answer.decode_tokens_per_s) == (None, None, None)
    assert artifacts(tmp_path / "run") == EVERY_ARTIFACT
    assert answer.mfu == pytest.approx(stage.flops / (stage.total_ns * 1e-9) / answer.device.peak("float32"))  # type: ignore[union-attr]


def test_an_answer_is_plain_values_and_keeps_nothing_unless_asked() -> None:
    answer = lpo.profile(
        "deepseek-ocr-tiny", image="90x130", mode="gundam", crops=(2, 1), dtype="float32", max_new_tokens=3, repeats=2
    )
    plain = json.loads(json.dumps(answer.to_dict()))
    assert plain["figures"]["wall"]["samples"] == 2
    assert plain["pages"][0]["workload"]["crops"] == [2, 1]
    assert plain["mfu"] is None  # no device is known
    assert (answer.folder, answer.files) == (None, ())
    assert "stage" in answer.to_pandas().columns
    assert repr(answer).startswith("deepseek-ocr-tiny, float32, on this machine: a page ")
    assert "\ndeepseek-ocr-tiny: how fast it ran\n" in repr(answer)


def test_stored_weights_of_a_folder_decide_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="stored weights are read with it")
    folder = write_folder(tmp_path, LLAMA)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    safetensors.save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    asked: dict[str, Any] = {"prompt_tokens": 9, "dtype": "float32", "repeats": 1, "warmup": 0, "operators": False}
    answer = lpo.profile(folder, weights="stored", max_new_tokens=6, static=False, **asked)
    adapter = HuggingFaceAdapter(folder, False)
    inputs = adapter.targets(make_workload(adapter, prompt_tokens=9, dtype="float32"))[0].start(model)
    generated = model.generate(input_ids=inputs["input_ids"], do_sample=False, max_new_tokens=6, eos_token_id=-1)
    tokens = generated[0, -6:].tolist()
    assert list(answer.pages[0].token_ids) == tokens

    monkeypatch.setattr(HuggingFaceAdapter, "eos_token_id", tokens[2])
    ended = lpo.profile(folder, weights="stored", max_new_tokens=6, stop_at_eos=True, **asked)
    (page,) = ended.pages
    assert list(page.token_ids) == tokens[: tokens.index(tokens[2]) + 1]
    assert page.workload["decode_steps"] == page.decode_steps == len(page.token_ids) - 1


def test_a_folder_of_a_registered_model_runs_as_that_model(tmp_path: Path) -> None:
    decoder = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 8}
    decoder |= {"num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 4, "moe_intermediate_size": 8}
    decoder |= {"num_experts_per_tok": 2}
    width = {
        "clip-l-14-224": {"heads": 2, "image_size": 32, "layers": 1, "patch_size": 8, "width": 8},
        "sam_vit_b": {"downsample_channels": [8, 8], "global_attn_indexes": [0], "heads": 2, "layers": 1, "width": 8},
    }
    vision = {"vision_config": {"image_size": 1024, "width": width}}
    write_folder(tmp_path, {"model_type": "DeepseekOCR", "eos_token_id": 1, **decoder, **vision})
    answer = lpo.profile(tmp_path, image="64x64", mode="tiny", dtype="float32", max_new_tokens=2, repeats=1, warmup=0)
    assert "runs the blueprint, with the weights of the folder" in answer.notes
    assert {"sam", "clip", "projector", "prefill", "decode"} <= {stage.name for stage in answer.figures.stages}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"decode_steps": 3}, "profile takes no decode_steps"),
        ({"colour": "red"}, "profile takes no colour"),
        ({"prompt": "Free OCR."}, "needs a tokenizer"),
        ({"stop_at_eos": True}, "No token of this model is known to end a text"),
    ],
    ids=["steps", "unknown", "words", "end"],
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        lpo.profile("deepseek-ocr-tiny", **asked)


def test_a_module_takes_no_workload() -> None:
    with pytest.raises(UsageError, match="A module takes no prompt_tokens"):
        lpo.profile(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), prompt_tokens=3)


def test_code_of_a_folder_runs_only_when_it_is_trusted(run: Run, tmp_path: Path) -> None:
    config = {"model_type": "of-my-own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "code.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    write_folder(tmp_path / "model", config)
    code, _, err = run("profile", f"model={tmp_path / 'model'}", f"run.folder={tmp_path / 'run'}")
    assert code == 2
    assert "brings its own Python code" in err
    assert "model.trust_remote_code=true" in err
