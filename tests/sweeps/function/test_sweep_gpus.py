"""A sweep on several GPUs: each has the figures of a sweep on it alone, and the model is traced once."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.report import LineChart
from llm_perf_opt.sweeps import run_function as function_module
from tests.sweeps.function.test_sweep import CONFIG

GPUS = ("l4", "h100-sxm", "mi300x")
PLACE = "decode", 4, 32


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The function of a tiny model, which needs no trace to be asked again."""
    folder = tmp_path_factory.mktemp("several") / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return lpo.sweep(folder, users="2..9", input="16..70").save_function(folder / "tiny.function.json")


@pytest.fixture(scope="module")
def several(file: Path) -> lpo.SweepAnswer:
    return lpo.sweep(file, points=4, gpus=",".join(GPUS))


@pytest.mark.parametrize("gpu", GPUS)
def test_each_gpu_has_the_figures_of_a_sweep_on_it_alone(several: lpo.SweepAnswer, file: Path, gpu: str) -> None:
    alone = lpo.sweep(file, points=4, gpus=gpu)
    assert {point.gpu for point in alone.points} == {gpu}
    assert len({point.high_s for point in alone.points}) > 1
    for name in ("points", "added", "bends", "largest_batches"):
        assert [one for one in getattr(several, name) if one.gpu == gpu] == list(getattr(alone, name)), name


def test_gpus_differ_in_times_and_agree_in_costs(several: lpo.SweepAnswer) -> None:
    by_gpu = {gpu: [point for point in several.points if point.gpu == gpu] for gpu in GPUS}
    costs = [[(point.flops, point.bytes_moved, point.needed_bytes) for point in points] for points in by_gpu.values()]
    assert costs[0] == costs[1] == costs[2]
    slow, fast, _ = by_gpu.values()
    pairs = [(one.lower_bound_s, other.lower_bound_s) for one, other in zip(slow, fast, strict=True)]
    assert all(one is not None and other is not None and one > other for one, other in pairs)


def test_a_model_is_traced_once_for_all_gpus(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, asked = function_module.trace_targets, list[tuple[int, int]]()

    def counted(tracer: Any, adapter: Any, targets: Any, deployment: Any) -> Any:
        asked.append((targets[0].workload["batch"], targets[0].workload["prompt_tokens"]))
        return traced(tracer, adapter, targets, deployment)

    monkeypatch.setattr(function_module, "trace_targets", counted)
    counts = []
    for gpus in ("l4", "l4,h100-sxm"):
        found = lpo.sweep(file.parent, users=[2, 3], input=[16, 24], traces=1, gpus=gpus)  # too few to prove anything
        assert {str(point.origin) for point in found.points} == {"trace"}
        counts.append(len(asked))
        asked.clear()
    assert counts[0] == counts[1] > 4


def test_the_terminal_and_the_page_show_each_gpu(several: lpo.SweepAnswer) -> None:
    first, *_ = several.summary().tables
    assert first.title == "Each GPU at batch 4 and context 32"
    assert [row[0] for row in first.rows] == list(GPUS)
    decode = {point.gpu: point for point in several.points if (point.phase, point.batch, point.context) == PLACE}
    assert [row[3:6] for row in first.rows] == [
        (decode[gpu].low_s, decode[gpu].high_s, decode[gpu].bound_by) for gpu in GPUS
    ]
    largest = {limit.gpu: limit for limit in several.largest_batches if limit.context == 32}
    assert [row[6:] for row in first.rows] == [(largest[gpu].batch, largest[gpu].served) for gpu in GPUS]
    assert several.answer[1].startswith(
        "On 3 GPUs, engine kernels (fused, CUDA graphs), the largest batch: context 70:"
    )
    report = several.report()
    names = [find_device(gpu, None).name for gpu in GPUS]
    titles = [chart.title for chart in report.charts]
    assert [title for title in titles if "per token" in title] == [
        f"Time per token on {name}: prefill against decode" for name in names
    ]
    over_batch = report.chapters[0].charts
    assert [chart.title for chart in over_batch if chart.title.startswith("Time")] == [
        f"Time over batch on {name}" for name in names
    ]
    (memory,) = [chart for chart in over_batch if chart.title.startswith("Memory")]
    assert isinstance(memory, LineChart)
    assert [line.name for line in memory.lines][-3:] == [f"memory of {name}" for name in names]


def test_the_command_takes_several_and_the_table_names_each(
    file: Path, tmp_path: Path, several: lpo.SweepAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "points.csv"
    words = ("--points", "4", "--gpus", ",".join(GPUS), "--csv", str(table))
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "sweep", str(file), *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    lines = [line for line in table.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    assert [(row["gpu"], int(row["batch"]), int(row["flops"])) for row in rows] == [
        (point.gpu, point.batch, point.flops) for point in several.points
    ]


def test_processors_and_gpus_cannot_share_a_trace(file: Path) -> None:
    processor = replace(find_device("l4", None), id="mine", threads=8)
    with pytest.raises(UsageError, match="CPUs and GPUs"):
        lpo.sweep(file, gpus=[processor, "l4"])


@pytest.mark.parametrize("word", ["--batch", "--context", "--device", "--decode-steps", "--prompt-tokens"])
def test_earlier_words_are_unknown(
    word: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "sweep", str(file), word, "1"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert f"No such option: {word}" in capsys.readouterr().err
