"""The verb `profile`: overrides in, one folder per run out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from PIL import Image

import llm_perf_opt.conf
from llm_perf_opt.cli.profile_config import show_config
from llm_perf_opt.core.hardware import device_text
from llm_perf_opt.measurements.profile.request import ProfileRequest, list_pages
from llm_perf_opt.measurements.profile.run_folder import read_sweep
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.cli.conftest import Run
from tests.measurements.profile.made_runs import DEVICE

CONF = Path(llm_perf_opt.conf.__file__).parent
GROUPS = ("model", "workload", "device", "run", "static_analysis", "profiler")
CHOICES = [f"{group}={file.stem}" for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
SMALL = ("model=deepseek-ocr-tiny", "workload.image=40x40", "workload.max_new_tokens=2", "run=quick")
ALONE = ("profiler=off", "static_analysis=off")


def test_the_defaults_are_those_of_the_records() -> None:
    shown = yaml.safe_load(show_config([]))
    expected = asdict(ProfileRequest())
    workload = {**expected["workload"], "image": "1240x1754", "mode": "base"}
    run = {**expected["run"], "folder": "profiles/${now:%Y-%m-%dT%H-%M-%S}"}
    assert shown == {**expected, "workload": workload, "run": run}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_makes_a_configuration(choice: str) -> None:
    group, _, name = choice.partition("=")
    said = yaml.safe_load((CONF / group / f"{name}.yaml").read_text("utf-8")) or {}
    said = said.get(group, said)  # a file that also chooses in another group
    shown = yaml.safe_load(show_config([choice]))[group]
    assert {key: shown[key] for key in said} == said


@pytest.mark.parametrize(("choice", "crops"), [("page", [1, 1]), ("tiles", [2, 3])])
def test_a_page_is_shown_whole_or_cut_into_two_by_three_tiles_besides(choice: str, crops: list[int]) -> None:
    workload = yaml.safe_load(show_config([f"workload={choice}"]))["workload"]
    asked = {name: workload[name] for name in ("image", "mode")}
    assert DeepSeekOcrAdapter().targets(DeepSeekOcrWorkload(**asked))[0].workload["crops"] == crops


def test_every_group_is_a_folder_of_choices() -> None:
    assert {folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "__pycache__"} == set(GROUPS)
    assert len(CHOICES) >= 2 * len(GROUPS) - 1


def test_the_configuration_can_be_looked_at(run: Run) -> None:
    code, out, _ = run("profile", "--show-config", "model=deepseek-ocr-tiny", "run.repeats=7")
    assert code == 0
    assert yaml.safe_load(out)["run"]["repeats"] == 7
    assert yaml.safe_load(out)["model"]["dtype"] == "float32"


def test_a_word_alone_is_the_model(run: Run, tmp_path: Path) -> None:
    code, out, err = run("profile", "deepseek-ocr-tiny", "--show-config")
    assert code == 0
    assert yaml.safe_load(out)["model"]["name"] == "deepseek-ocr-tiny"
    assert "run.folder=DIR" in err
    _, out, err = run("profile", "deepseek-ocr-tiny", "--show-config", f"run.folder={tmp_path}")
    assert yaml.safe_load(out)["run"]["folder"] == str(tmp_path)
    assert "run.folder=DIR" not in err


def test_options_are_words_of_the_configuration(run: Run) -> None:
    code, out, _ = run("profile", "--image", "page of 5.png", "--device", "rtx-5090", "--join", "--show-config")
    assert code == 0
    shown = yaml.safe_load(out)
    assert shown["workload"]["image"] == "page of 5.png"
    assert (shown["device"]["name"], shown["device"]["torch"]) == ("rtx-5090", "cuda")
    assert (shown["profiler"]["join"], shown["profiler"]["nsight"]) == (True, "installed")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["model=unheard-of"], "There is no model named 'unheard-of'"),
        (["device=unheard-of"], "Could not find 'device/unheard-of'"),
        (["model=no/such/folder"], "There is no folder 'no/such/folder'"),
        (["model=got-ocr2", "model.folder=somewhere"], "got-ocr2 takes no model.folder"),
        (["model=got-ocr2", "model.weights=stored"], "got-ocr2 comes without weights"),
        (["model=got-ocr2", "workload.mode=base"], "GOT-OCR 2.0 takes no mode"),
        (["model=deepseek-ocr-tiny", "workload.prompt=words"], "A prompt in words needs a tokenizer"),
        (["run.repeat=3"], "Key 'repeat' not in 'RunChoice'"),
        (["run.repeats=many"], "could not be converted to Integer"),
        (["run.repeats=0"], "run.repeats cannot be 0"),
        (["workload.crops=two"], "'two' is not a grid"),
        (["profiler.nsight=vtune"], "known: none, nsys, ncu, installed"),
        (["--join", "static_analysis=off"], "profiler.join needs the static analysis"),
        (["--join", "profiler=off"], "profiler.join cannot be recorded"),
        (["model.weights=best"], "known: random, stored"),
        (["workload.image=nowhere.png"], "There is no page 'nowhere.png'"),
        (["a b c"], "There is no model named 'a b c'"),
        (["~run.nothing"], "cannot be made"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_wrong_usage(run: Run, tmp_path: Path, words: list[str], why: str) -> None:
    code, out, err = run("profile", *words, f"run.folder={tmp_path / 'run'}")
    assert (code, out) == (2, "")
    assert why in err
    assert "Traceback" not in err


def test_without_hydra_the_way_to_get_it_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hydra", None)
    code, _, err = run("profile")
    assert code == 1
    assert "hydra is not installed" in err
    assert "pip install 'llm-perf-opt[profile]'" in err


def test_the_table_goes_to_stdout_and_the_talk_to_stderr(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, err = run("profile", *SMALL, *ALONE, f"run.folder={folder}")
    assert code == 0, err
    assert "Time by stage, per page" in out
    assert "devices calibrate" in out  # how MFU would become known
    assert f"Wrote {folder / 'metrics.json'}" in err
    assert yaml.safe_load((folder / "config.yaml").read_text("utf-8"))["run"]["repeats"] == 2
    assert json.loads((folder / "env.json").read_text("utf-8"))["torch"]["threads"] >= 1
    code, out, _ = run("profile", *SMALL, *ALONE, f"run.folder={folder}", "--json")
    assert code == 0
    assert "Latency of a decode step" in json.dumps(json.loads(out))  # a program gets everything


def test_a_folder_is_made_of_the_date(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("profile", *SMALL, *ALONE)
    assert code == 0, err
    (folder,) = (tmp_path / "profiles").iterdir()
    assert (folder / "report.html").is_file()


def test_a_sample_of_a_folder_of_images(run: Run, tmp_path: Path) -> None:
    for name, colour in (("a.png", "red"), ("b.png", "blue"), ("c.png", "white")):
        Image.new("RGB", (50, 70), colour).save(tmp_path / name)
    words = (*SMALL, *ALONE, f"workload.image={tmp_path}", "workload.sample=2", "workload.seed=5")
    code, _, err = run("profile", *words, f"run.folder={tmp_path / 'run'}")
    assert code == 0, err
    pages = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))["pages"]
    chosen = list_pages(str(tmp_path), sample=2, seed=5)
    assert [page["image"] for page in pages] == list(chosen)
    assert {page["workload"]["image"] for page in pages} == {"50x70"}


def test_a_failure_is_told_once_and_in_our_words(run: Run, tmp_path: Path) -> None:
    code, out, err = run("profile", *SMALL, *ALONE, "device.name=abacus", f"run.folder={tmp_path / 'run'}")
    assert (code, out) == (2, "")
    assert "abacus" in err
    assert "Error executing job" not in err


def test_many_runs_and_one_that_fails(run: Run, tmp_path: Path) -> None:
    words = ("profile", "--multirun", *SMALL, *ALONE, "workload.mode=base,nonsense,tiny", f"run.folder={tmp_path}")
    code, out, err = run(*words)
    assert code == 1
    assert "1 of 3 runs failed" in err
    assert "DeepSeek-OCR has no mode named 'nonsense'" in err
    assert [line.split()[:3] for line in out.splitlines() if line[:1].isdigit() and "runs" not in line] == [
        ["0", "deepseek-ocr-tiny", "base"],
        ["1", "failed", "?"],
        ["2", "deepseek-ocr-tiny", "tiny"],
    ]
    modes = [json.loads((tmp_path / run / "metrics.json").read_text("utf-8"))["request"]["workload"] for run in "02"]
    assert [mode["mode"] for mode in modes] == ["base", "tiny"]
    assert not (tmp_path / "1" / "metrics.json").exists()


def rows(out: str) -> list[list[str]]:
    return [line.split()[:2] for line in out.splitlines() if line[:1].isdigit() and "runs" not in line]


@pytest.mark.parametrize(
    "launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")], ids=["one by one", "side by side"]
)
def test_a_run_that_cannot_be_configured_is_a_run_that_failed(
    run: Run, tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    words = ("profile", "--multirun", *launcher, *SMALL, *ALONE, "run.repeats=0,-1", f"run.folder={tmp_path}")
    code, out, err = run(*words)
    assert code == 1
    assert "2 of 2 runs failed" in err
    assert "run.repeats cannot be 0" in err
    assert f"with run.folder={tmp_path} measures only the unfinished runs" in err
    assert rows(out) == [["0", "failed"], ["1", "failed"]]
    assert "run.repeats cannot be -1" in (tmp_path / "1" / "failure.txt").read_text("utf-8")


def test_a_value_that_is_missing_in_one_run_stops_no_other(run: Run, tmp_path: Path) -> None:
    words = ("profile", "--multirun", *SMALL, *ALONE, "workload.crops=two,null", f"run.folder={tmp_path}")
    code, out, err = run(*words)
    assert code == 1
    assert "Wrote 1 runs" in err and "1 of 2 runs failed" in err
    assert rows(out) == [["0", "failed"], ["1", "deepseek-ocr-tiny"]]


def test_a_folder_of_an_earlier_sweep_is_no_run_of_this_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "failure.txt").write_text("long ago", encoding="utf-8")
    code, out, err = run("profile", "--multirun", *SMALL, *ALONE, "run.repeats=1,2", f"run.folder={tmp_path}")
    assert code == 0, err
    assert rows(out) == [["0", "deepseek-ocr-tiny"], ["1", "deepseek-ocr-tiny"]]


def test_a_run_without_figures_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    sweep = read_sweep(tmp_path, [tmp_path / "0"])
    assert sweep.failures == (f"{tmp_path / '0'} has no metrics.json",)


def test_a_refused_run_keeps_its_pages_for_a_corrected_device(run: Run, tmp_path: Path) -> None:
    """A device that is said to be slow makes the run impossible; with its real figures the pages are joined at once."""
    for name, peak in (("slow", 1), ("fast", 10**15)):
        device = replace(DEVICE, peak_flops_per_s={"fp32": peak}, bandwidth_bytes_per_s=10**15)
        (tmp_path / f"{name}.toml").write_text(device_text(device), encoding="utf-8")
    words = ("profile", *SMALL, "profiler=off", f"device.name={DEVICE.id}", f"run.folder={tmp_path / 'run'}")
    code, _, err = run(*words, f"device.devices={tmp_path / 'slow.toml'}")
    assert code == 1 and "MFU" in err
    (page,) = (tmp_path / "run" / "pages").iterdir()
    measured = page.read_bytes()
    code, _, err = run(*words, f"device.devices={tmp_path / 'fast.toml'}")
    assert code == 0, err
    assert "1 of 1 pages were finished by an earlier run" in err
    assert page.read_bytes() == measured
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["device"]["peak_flops_per_s"] == 10**15


@pytest.mark.slow
def test_joblib_runs_them_side_by_side(run: Run, tmp_path: Path) -> None:
    words = ("profile", "--multirun", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *SMALL, *ALONE)
    code, out, err = run(*words, "workload.prompt_tokens=3,9", "run.threads=1", f"run.folder={tmp_path}")
    assert code == 0, err
    assert "2 runs in" in out
    pages = [json.loads((tmp_path / run / "metrics.json").read_text("utf-8"))["pages"][0] for run in "01"]
    assert pages[1]["context_tokens"] - pages[0]["context_tokens"] == 6
