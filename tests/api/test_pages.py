"""What pages cost, against closed forms and the recorded facts; and what one more crop adds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import MODELS, REPORTERS

ONE_CROP = 388_149_837_824  # FLOPs of one 640 x 640 crop through SAM, CLIP and projector
GLOBAL_VIEW = 1_139_967_033_344
CACHE_PER_TOKEN = 61_440


def decoder_flops(tokens: int) -> int:
    return tokens * 1_148_192_256 + 61_440 * tokens**2


def tokens_of(columns: int, rows: int, side: int = 10) -> int:
    """BOS, 16 rows of 17 and a separator for the global view, the crops, and 20 tokens of text."""
    crops = 0 if (columns, rows) == (1, 1) else (columns * side + 1) * rows * side
    return 1 + 273 + crops + 20


@pytest.mark.slow
def test_pages_of_the_released_model_cost_what_the_facts_say() -> None:
    answer = lpo.pages("deepseek-ocr", page=["128x128", "1024x1024", "A4@150dpi", "A4@300dpi"], gpus="h100-sxm")
    small, square, upright, fine = answer.pages
    assert (small.run.crops, square.run.grid, upright.run.grid) == (0, (2, 2), (2, 3))
    assert upright.run is fine.run, "the same crops: one trace"
    for page, crops, tokens in ((small, 0, 294), (square, 4, tokens_of(2, 2)), (upright, 6, tokens_of(2, 3))):
        assert page.run.context_tokens == tokens
        assert page.run.image_tokens == tokens - 21
        assert page.run.vision_flops == GLOBAL_VIEW + crops * ONE_CROP
        assert page.run.prefill_flops == decoder_flops(tokens)
        assert page.run.cache_bytes == CACHE_PER_TOKEN * tokens
        assert page.run.prefill_low_s is not None and page.run.prefill_high_s is not None
        assert 0 < page.run.prefill_low_s < page.run.prefill_high_s < 1
    one, two = answer.added
    assert (one.smaller, one.grid, two.smaller, two.grid) == ((2, 1), (2, 2), (2, 2), (2, 3))
    for step in (one, two):
        assert step.vision_flops == ONE_CROP
        assert step.image_tokens == 105  # a row of two crops has 10 rows of 2 * 10 + 1 tokens
        assert step.cache_bytes == 105 * CACHE_PER_TOKEN
    assert two.prefill_flops == (decoder_flops(924) - decoder_flops(714)) / 2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_grid_equals_its_closed_form(attention: str) -> None:
    grids = [(1, 1), (2, 1), (1, 3), (3, 3)]
    answer = lpo.pages("deepseek-ocr-tiny", crops=grids, attention=attention, prompt_tokens=7)
    adapter = MODELS.get("deepseek-ocr-tiny")()
    assert len(answer.pages) == len(grids)
    for page, grid in zip(answer.pages, grids, strict=True):
        workload = adapter.workload_type.make(crops=grid, attention=attention, prompt_tokens=7)
        formulas = {figures.stage: figures for figures in adapter.closed_forms(workload)}
        assert page.run.vision_flops == sum(formulas[name].flops for name in ("sam", "clip", "projector"))
        assert page.run.prefill_flops == formulas["prefill"].flops
        assert page.run.cache_bytes == formulas["prefill"].kv_cache_bytes


def test_what_one_crop_adds_is_the_difference_of_two_grids() -> None:
    answer = lpo.pages("deepseek-ocr-tiny", crops=["2x2", "2x3", "1x1", "3x1"])
    by_grid = {page.run.grid: page.run for page in answer.pages}
    steps = {step.grid: step for step in answer.added}
    assert list(steps) == [(3, 1), (2, 2), (2, 3)], "by crops, and a page that is not cut adds none"
    step, before, after = steps[2, 3], by_grid[2, 2], by_grid[2, 3]
    assert step.crops == 2
    assert before.prefill_flops is not None and after.prefill_flops is not None
    assert step.prefill_flops == (after.prefill_flops - before.prefill_flops) / 2
    assert steps[3, 1].smaller == (2, 1), "of one row the last column goes"


def test_without_a_device_there_is_no_time() -> None:
    answer = lpo.pages("deepseek-ocr-tiny", crops=["1x1"], decode_steps=0)
    assert answer.pages[0].run.prefill_low_s is None
    assert answer.pages[0].run.cache_bytes is None, "the cache is found in a decode step"
    assert answer.tables == ("What a page costs",)


def test_the_curve_and_the_bars_hold_the_figures_of_the_table() -> None:
    answer = lpo.pages("deepseek-ocr-tiny", crops=["1x1", "2x1", "2x2"], gpus="h100-sxm")
    bars, times, curve = answer.report().charts
    assert [sum(parts) for parts in zip(*(series.values for series in bars.series), strict=True)] == [
        page.run.flops for page in answer.pages
    ]
    assert [series.values for series in times.series][1] == tuple(page.run.prefill_high_s for page in answer.pages)
    assert curve.lines[2].points == tuple((page.run.crops, page.run.flops) for page in answer.pages)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("got-ocr2", {"page": ["640x640"]}, "takes no page"),
        ("deepseek-ocr-tiny", {"page": ["640x640"], "crops": ["2x2"]}, "exclude each other"),
        ("deepseek-ocr-tiny", {"page": "A4"}, "not the size of a page"),
        ("deepseek-ocr-tiny", {"crops": "2by2"}, "not a grid"),
        ("deepseek-ocr-tiny", {"image": "640x640"}, "image is a single page"),
        ("deepseek-ocr-tiny", {"page": ()}, "page names no page"),
        ("deepseek-ocr-tiny", {"page": "640x640", "gpus": "l4,h100-sxm"}, "timed on one GPU"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_work(model: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lpo.pages(model, **options)  # type: ignore[arg-type]


Shown = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Exit code, stdout and stderr of `llm-perf-opt sweep deepseek-ocr-tiny`."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "sweep", "deepseek-ocr-tiny", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


def test_the_command_prints_and_writes(tmp_path: Path, sweep: Shown) -> None:
    code, out, _ = sweep("--crops", "1x1, 2x2", "--json")
    rows = json.loads(out)["tables"][0]["rows"]
    assert code == 0 and len(rows) == 2
    assert sweep("--crops", "1x1,2x1,2x2", "--out", str(tmp_path / "pages.html"))[0] == 0
    assert "FLOPs of the prefill, by crops" in (tmp_path / "pages.html").read_text()
    assert sweep("--crops", "1x1", "--out", str(tmp_path / "pages.html"))[0] == 1, "it exists"
    assert sweep("--crops", "1x1", "--out", str(tmp_path / "pages.odd"))[0] == 2


def test_a_sweep_over_pages_is_what_python_answers(sweep: Shown) -> None:
    words = ("--page", "90x130,A5@40dpi", "--gpus", "l4", "--users", "3", "--input", "11", "--output", "2")
    code, out, _ = sweep(*words, "--json")
    workload = {"batch": 3, "prompt_tokens": 11, "decode_steps": 2}
    answer = lpo.pages("deepseek-ocr-tiny", page=["90x130", "A5@40dpi"], gpus="l4", **workload)
    assert code == 0
    assert json.loads(out) == json.loads(REPORTERS.get("json")().render(answer.report()))
    assert answer.pages[0].run.context_tokens == (answer.pages[0].run.image_tokens or 0) + 11 + 1


@pytest.mark.parametrize(
    ("execution", "text"), [("fused", "engine kernels (fused, CUDA graphs)"), ("eager", "eager PyTorch")]
)
def test_the_first_lines_say_whose_kernels_are_timed(execution: str, text: str, sweep: Shown) -> None:
    words = () if execution == "fused" else ("--execution", execution)
    code, out, _ = sweep("--crops", "1x1", "--gpus", "l4", *words)
    assert code == 0
    assert f"On NVIDIA L4, {text} the prefill takes " in " ".join(out.split("\n\n")[0].split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--users", "1..4"), "--users 1..4 and pages cannot both vary"),
        (("--input", "16,32"), "--input 16,32 and pages cannot both vary"),
        (("--csv", "points.csv"), "A sweep of pages takes no --csv"),
        (("--traces", "3"), "A sweep of pages takes no --traces"),
    ],
)
def test_what_belongs_to_a_grid_is_refused_with_pages(words: tuple[str, ...], message: str, sweep: Shown) -> None:
    code, out, err = sweep("--page", "90x130", *words)
    assert (code, out) == (2, "")
    assert message in err
