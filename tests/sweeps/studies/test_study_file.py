"""Study files: what is read, and what is refused with its reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.sweeps.studies.study import combinations, numbers_of, read_plan, read_study, values_of

TEXT = """
name: small
models: [deepseek-ocr-tiny, {model: got-ocr2, crops: 2x1}]
workload: {users: 1..4, input: "1k,2k", dtype: "bfloat16,float16", output: 100}
deployments: {plan: [one device, tp2 dp2], weights: [checkpoint, fp8]}
gpus: [h100-sxm, l40s]
prices: {h100-sxm: 2.5}
"""


def study_file(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return path


def test_the_grid_is_the_product_of_its_axes(tmp_path: Path) -> None:
    study = read_study(study_file(tmp_path))
    assert study.batches == (1, 2, 3, 4)
    assert study.contexts == (1024, 2048)
    assert study.plans == (ParallelPlan(), ParallelPlan(tp=2, dp=2))
    assert study.weights == (None, "fp8")
    assert study.points == 2 * 2 * (4 * 2) * (2 * 2 * 2)  # models, dtypes, batch x context, plans x formats x devices


def test_an_override_replaces_what_the_file_says(tmp_path: Path) -> None:
    overrides = ["workload.users=range(8,33,8)", "gpus=l4", "deployments.cache=fp8"]
    study = read_study(study_file(tmp_path), overrides)
    assert study.batches == (8, 16, 24, 32)
    assert study.devices == ("l4",)
    assert study.caches == ("fp8",)


def test_what_a_model_says_itself_goes_first(tmp_path: Path) -> None:
    study = read_study(study_file(tmp_path))
    found = {(model.name, workload["dtype"], workload.get("crops")) for model, workload in combinations(study)}
    assert ("got-ocr2", "float16", "2x1") in found
    assert len(found) == 4


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("choice(1,8)", (1, 8)),
        ("range(3)", (0, 1, 2)),
        ("a, b", ("a", "b")),
        ([1, 2], (1, 2)),
        (None, (None,)),
        ("640x480", ("640x480",)),
    ],
)
def test_axes_are_written_as_hydra_writes_sweeps(text: object, values: tuple[object, ...]) -> None:
    assert values_of(text) == values


def test_a_range_of_numbers_is_thinned_to_round_ones() -> None:
    assert numbers_of("1k..8k", "context", points=4) == (1024, 2048, 4096, 8192)
    assert numbers_of("range(1,1001)", "batch") == tuple(range(1, 1001))


@pytest.mark.parametrize("text", ["tp0", "tp2 tp4", "xp2", "", "tp"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_plan(text)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("traffic: [8/s prompt=8 output=2 for 1s]", "under traffic takes no"),
        ("traffic: [7]", "a line of text"),
        ("nmae: x", "a known key"),
        ("anchors: &a [1]\nmore: *a", "alias"),
        ("prices: {l40s: -1}", "above 0"),
        ("workload: {prompt_tokens: 5}", "takes no prompt_tokens"),
        ("workload: {batch: 5}", "takes no batch"),
        ("workload: {users: 'range(1,100000000)'}", "is not an axis"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, change: str, word: str) -> None:
    key = change.partition(":")[0]
    lines = [line for line in TEXT.splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(UsageError) as refused:
        read_study(study_file(tmp_path, "\n".join([*lines, change])))
    assert word in str(refused.value)


def test_a_pattern_stands_for_folders_with_a_configuration(tmp_path: Path) -> None:
    for name in ("b", "a", "empty"):
        (tmp_path / "models" / name).mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / "models" / name / "config.json").write_text("{}")
    study = read_study(
        study_file(tmp_path, TEXT.replace("[deepseek-ocr-tiny, {model: got-ocr2, crops: 2x1}]", "['models/*']"))
    )
    assert [model.name for model in study.models] == ["a", "b"]


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    text = TEXT.replace("[deepseek-ocr-tiny, {model: got-ocr2, crops: 2x1}]", "[x/llama, y/llama]")
    names = [model.name for model in read_study(study_file(tmp_path, text)).models]
    assert len(set(names)) == 2
    assert all(name.startswith("llama-") for name in names)


@pytest.mark.parametrize("overrides", [(), ("trust_remote_code=true",)])
def test_a_file_may_ask_to_run_code_and_only_whoever_runs_it_may_allow_it(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    text = TEXT if overrides else f"{TEXT}trust_remote_code: true\n"
    with pytest.raises(UsageError, match="add trust_remote_code=True"):
        read_study(study_file(tmp_path, text), overrides)
    assert read_study(study_file(tmp_path, text), overrides, trust_remote_code=True).trust_remote_code
    assert not read_study(study_file(tmp_path, TEXT)).trust_remote_code


def test_brackets_in_the_name_of_a_folder_are_no_pattern(tmp_path: Path) -> None:
    for place in ("st[1]/models/a", "st[1]/models/b[2]"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "st[1]").mkdir(exist_ok=True)
    pattern = TEXT.replace("deepseek-ocr-tiny", "models/*")
    names = [model.name for model in read_study(study_file(tmp_path / "st[1]", pattern)).models]
    assert names[:2] == ["a", "b-2-"]
    literal = TEXT.replace("deepseek-ocr-tiny", '"models/b[2]"')
    assert read_study(study_file(tmp_path / "st[1]", literal)).models[0].source.endswith("models/b[2]")


@pytest.mark.parametrize("text", ["name: " + "[" * 100_000, "name: " + "{a: " * 100_000, "- " * 200_000])
def test_a_file_nested_without_end_is_refused_at_once(tmp_path: Path, text: str) -> None:
    """To read it to its end takes PyYAML minutes."""
    (tmp_path / "study.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(UsageError, match="nested too deeply"):
        read_study(tmp_path / "study.yaml")
    assert time.process_time() - began < 5
