"""A file of the program is read back as its record, and not when a digit of it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    trace = lpo.trace(module, (torch.zeros(2, 8),), out=place)
    trace.cost().save_files(place)
    trace.graph().save(place / "picture.view.json")
    lpo.profile(module, (torch.zeros(2, 8),), out=place / "run", warmup=0, repeats=1)
    return place


KINDS = {
    "forward.callgraph.json": ("call_counts", b'"calls":1', b'"calls":7'),
    "static_compute.json": ("total", b'"params": 108', b'"params": 109'),
    "picture.view.json": ("boxes", b'"calls": 1', b'"calls": 2'),
    "run/metrics.json": ("pages", b'"decode_steps": 0', b'"decode_steps": 1'),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_read_as_its_record(folder: Path, name: str) -> None:
    assert getattr(lpo.read_result(folder / name), KINDS[name][0])


def test_the_figures_are_those_of_the_answer(folder: Path) -> None:
    """Two matmuls of 2 rows: 2 x 8 x 8 and 2 x 8 x 4 multiply-adds, of two FLOPs each."""
    static = lpo.read_result(folder / "static_compute.json")
    assert static.total.flops == 2 * (2 * 8 * 8 + 2 * 8 * 4)  # type: ignore[union-attr]
    assert static.total.params == 8 * 8 + 8 + 8 * 4 + 4  # type: ignore[union-attr]


@pytest.mark.parametrize("name", KINDS)
def test_a_digit_that_changed_is_found(folder: Path, tmp_path: Path, name: str) -> None:
    _, old, new = KINDS[name]
    raw = (folder / name).read_bytes()
    assert old in raw
    changed = tmp_path / "changed.json"
    changed.write_bytes(raw.replace(old, new, 1))
    with pytest.raises(PerfOptError) as refusal:
        lpo.read_result(changed)
    assert "changed.json" in refusal.value.what


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"boxes": 1}', '"call_counts"'])
def test_what_is_none_of_them_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(PerfOptError):
        lpo.read_result(file)


def test_operators_that_were_changed_are_made_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = folder / "run"
    plain = (run / "operators.csv").read_bytes()
    digest, name = (run / "operators.csv.sha256").read_text().split()
    assert (len(digest), name) == (64, "operators.csv")
    (run / "operators.csv").write_bytes(plain.replace(b",1,", b",2,", 1))
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    answer = lpo.profile(module, (torch.zeros(2, 8),), out=run, warmup=0, repeats=1)
    assert answer.resumed_pages == 1
    assert "operators.csv was changed after it was written: it is made again" in caplog.text
    assert {one.operator for one in answer.operators} >= {"aten::linear", "aten::relu"}


def test_a_page_that_was_changed_is_refused(folder: Path) -> None:
    page = folder / "run" / "pages" / "00000.json"
    good = page.read_bytes()
    page.write_bytes(good.replace(b'"decode_steps": 0', b'"decode_steps": 1', 1))
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    try:
        with pytest.raises(PerfOptError, match="was changed after it was written"):
            lpo.profile(module, (torch.zeros(2, 8),), out=folder / "run", warmup=0, repeats=1)
    finally:
        page.write_bytes(good)
