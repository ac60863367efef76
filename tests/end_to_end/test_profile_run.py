"""The tiny twin over 20 synthetic pages: every artifact is there, and every figure follows from what lies beside it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import pytest

from llm_perf_opt import costs
from llm_perf_opt.measurements import profile as profile_analysis
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from tests.end_to_end.profile_commands import TINY, call, made_device
from tests.measurements.profile.made_runs import DEVICE

pytestmark = pytest.mark.slow
SHAPES = ((30, 40), (90, 135), (60, 120), (150, 100))  # uncut, 2x3, 1x2, 3x2
SIZES = [f"{width * scale // 10}x{height * scale // 10}" for scale in (6, 7, 8, 9, 10) for width, height in SHAPES]
NEW_TOKENS = 4
SCHEMA = Path(profile_analysis.__file__).parent / "metrics.schema.json"
STATIC_SCHEMA = Path(costs.__file__).parent / "static_compute.schema.json"


@dataclass(frozen=True)
class Done:
    folder: Path
    out: str
    err: str

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return json.loads((self.folder / "metrics.json").read_text("utf-8"))

    def stage(self, name: str) -> dict[str, Any]:
        (found,) = [stage for stage in self.metrics["stages"] if stage["name"] == name]
        return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    place = tmp_path_factory.mktemp("profile")
    (place / "pages.txt").write_text("# sizes of blank pages\n" + "\n".join(SIZES), encoding="utf-8")
    words = [*TINY, *made_device(place), f"workload.image={place / 'pages.txt'}", "workload.mode=gundam"]
    words += [f"workload.max_new_tokens={NEW_TOKENS}", "run.repeats=3", f"run.folder={place / 'run'}"]
    code, out, err = call(*words)
    assert code == 0, err
    yield Done(place / "run", out, err)


def test_every_artifact_is_there_and_told(done: Done) -> None:
    artifacts = {
        *("config.yaml", "request.json", "env.json", "metrics.json", "report.md", "report.html"),
        *("operators.csv", "chrome-trace.json", "static_compute.json", "static_compute.md"),
    }
    beside = {".lock", "pages", "operators.csv.sha256"}
    assert {file.name for file in done.folder.iterdir()} == artifacts | beside
    assert {
        Path(line.split(" ", 1)[1]).name for line in done.err.splitlines() if line.startswith("Wrote ")
    } == artifacts
    assert done.err.splitlines()[-1].startswith("Next: ")
    assert len(list((done.folder / "pages").iterdir())) == len(SIZES) == 20


def test_the_metrics_follow_their_schema(done: Done) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(done.metrics, schema)
    static = json.loads((done.folder / "static_compute.json").read_text("utf-8"))
    jsonschema.validate(static, json.loads(STATIC_SCHEMA.read_text("utf-8")))


def test_mfu_can_be_recomputed_by_hand(done: Done) -> None:
    """From raw samples and costs alone: medians over passes, sums over pages, one division."""
    pages, costs = done.metrics["pages"], done.metrics["costs"]
    peak = DEVICE.peak_flops_per_s["fp32"]
    assert done.metrics["device"]["peak_flops_per_s"] == peak
    whole_flops, whole_ns = 0, 0.0
    for name in ("sam", "clip", "projector", "prefill", "decode"):
        flops = sum(costs[page["costs_index"]]["stages"][name]["flops"] for page in pages)
        spent_ns = sum(median(sum(one["stages_ns"][name]) for one in page["passes"]) for page in pages)
        assert done.stage(name)["flops"] == flops > 0
        assert done.stage(name)["total_ns"] == spent_ns
        assert done.stage(name)["mfu"] == pytest.approx(flops / (spent_ns * 1e-9) / peak, rel=1e-3)
        whole_flops, whole_ns = whole_flops + flops, whole_ns + spent_ns
    figure = done.metrics["model_figure"]
    assert figure["flops"] == whole_flops
    assert figure["mfu"] == pytest.approx(whole_flops / (whole_ns * 1e-9) / peak)


def test_samples_are_raw_and_complete(done: Done) -> None:
    for page, size in zip(done.metrics["pages"], SIZES, strict=True):
        assert page["image"] == size
        assert len(page["passes"]) == 3
        assert len(page["token_ids"]) == NEW_TOKENS
        assert page["decode_steps"] == NEW_TOKENS - 1
        assert page["cache_tokens"] == page["context_tokens"] + NEW_TOKENS - 1
        for one in page["passes"]:
            stages = one["stages_ns"]
            assert (len(stages["decode"]), len(stages["sampling"])) == (NEW_TOKENS - 1, NEW_TOKENS)
            assert sum(map(sum, stages.values())) <= one["wall_ns"]
            assert len(stages["sam"]) == (1 if page["workload"]["crops"] is None else 2)
    assert [page["cold"] is not None for page in done.metrics["pages"]] == [True] + [False] * 19


def test_costs_are_those_of_the_page_and_not_of_a_formula_for_another(done: Done) -> None:
    """Decode: a constant plus 4 FLOPs per layer, hidden value and token of context, on the average over the steps."""
    decoder = DeepSeekOcrConfig.tiny().decoder
    slope = 4 * decoder.num_hidden_layers * decoder.hidden_size
    constants = set()
    for page in done.metrics["pages"]:
        flops = done.metrics["costs"][page["costs_index"]]["stages"]["decode"]["flops"]
        contexts = [page["context_tokens"] + step + 1 for step in range(page["decode_steps"])]
        constants.add(flops - slope * sum(contexts))
    assert len({page["context_tokens"] for page in done.metrics["pages"]}) > 3
    assert len(constants) == 1


def test_operators_are_those_of_the_trace(done: Done) -> None:
    rows = list(csv.DictReader((done.folder / "operators.csv").open(encoding="utf-8")))
    assert {"sam", "clip", "projector", "prefill", "decode"} <= {row["stage"] for row in rows}
    events = json.loads((done.folder / "chrome-trace.json").read_text("utf-8"))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "cpu_op"]
    calls = sum(int(row["calls"]) for row in rows if row["operator"] == "aten::linear")
    assert calls == names.count("aten::linear") > 0


def test_the_reports_tell_what_the_metrics_hold(done: Done) -> None:
    markdown = (done.folder / "report.md").read_text("utf-8")
    page = (done.folder / "report.html").read_text("utf-8")
    for text in (markdown, page):
        for title in ("Time by stage", "Efficiency by stage", "Cold start", "Roofline", "Latency of a decode step"):
            assert title in text
    assert "Efficiency by stage" in done.out
    assert "Roofline" not in done.out  # pictures stay out of a terminal


def test_the_same_command_again_measures_nothing(done: Done) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in (done.folder / "pages").iterdir()}
    request = done.metrics["request"]
    words = [*TINY, f"device.devices={request['device']['devices']}", f"device.name={DEVICE.id}"]
    words += [f"workload.image={request['workload']['image']}", "workload.mode=gundam"]
    words += [f"workload.max_new_tokens={NEW_TOKENS}", "run.repeats=3", f"run.folder={done.folder}"]
    code, _, err = call(*words)
    assert code == 0, err
    assert "20 of 20 pages were finished by an earlier run" in err
    assert {file.name: file.stat().st_mtime_ns for file in (done.folder / "pages").iterdir()} == before
    again = json.loads((done.folder / "metrics.json").read_text("utf-8"))
    assert again == done.metrics
