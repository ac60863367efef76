from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.measurements.profile.request import (
    DeviceChoice,
    ModelChoice,
    ProfilerChoice,
    ProfileRequest,
    RunChoice,
    StaticChoice,
    WorkloadChoice,
    read_request,
)
from llm_perf_opt.measurements.profile.run_folder import RunFolder, open_run_folder
from tests.measurements.profile.made_runs import made_page, made_pass


def asked(**changes: Any) -> ProfileRequest:
    request = ProfileRequest(workload=WorkloadChoice(prompt="free OCR " * 20), device=DeviceChoice(devices="a b " * 40))
    return replace(request, **changes)


def opened(path: Path, request: ProfileRequest, *, force: bool = False) -> AbstractContextManager[RunFolder]:
    return open_run_folder(path, request, f"as a person writes it: {request}\n", force=force)


ONE, TWO = asked(), asked(run=RunChoice(repeats=4))
PAGE = made_page(made_pass(20, 10, (3, 5)), made_pass(21, 11, (4, 6)), cold=made_pass(40, 20, (7, 8)))


def test_a_page_comes_back_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "run", ONE) as folder:
        folder.keep_page(3, PAGE)
    with opened(tmp_path / "run", ONE) as folder:
        assert folder.finished_page(3, "page.png") == PAGE
        assert folder.finished_page(3, "another.png") is None
        assert folder.finished_page(2, "page.png") is None


def test_two_in_one_process_do_not_share_a_folder_either(tmp_path: Path) -> None:
    with (
        opened(tmp_path, ONE),
        pytest.raises(PerfOptError, match="Another run is writing"),
        opened(tmp_path, ONE),
    ):
        pass


def test_the_lock_ends_with_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyError), opened(tmp_path, ONE):
        raise KeyError
    with opened(tmp_path, ONE) as folder:
        assert folder.path == tmp_path


def test_another_configuration_is_refused_unless_forced(tmp_path: Path) -> None:
    with opened(tmp_path, ONE) as folder:
        folder.keep_page(0, PAGE)
        folder.write_text("metrics.json", "{}")
    (tmp_path / "my notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PerfOptError, match="another configuration"), opened(tmp_path, TWO):
        pass
    with opened(tmp_path, TWO, force=True) as folder:
        assert folder.finished_page(0, "page.png") is None
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"config.yaml", "request.json", ".lock", "my notes.txt"}  # what is not a run's stays


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("request_text", [None, "{}", '{"model": {"name": "mine"}, "workload": {}}', "[]", "mine"])
def test_a_folder_of_something_else_is_refused_and_left_as_it_was(
    tmp_path: Path, request_text: str | None, force: bool
) -> None:
    theirs = {"pages/00001.json": "{}", "pages/index.html": "...", "report.md": "mine", "metrics.json": "{}"}
    if request_text is not None:
        theirs["request.json"] = request_text
    (tmp_path / "pages").mkdir()
    for name, text in theirs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(PerfOptError, match=r"holds no run|request of a run"), opened(tmp_path, ONE, force=force):
        pass
    left = {str(file.relative_to(tmp_path)): file.read_text("utf-8") for file in tmp_path.rglob("*") if file.is_file()}
    assert left == theirs


def test_force_clears_what_a_run_writes_and_nothing_else(tmp_path: Path) -> None:
    ours = ("env.json", "nsys.nsys-rep", "ncu.csv", "failure.txt", "report.html")
    with opened(tmp_path, ONE) as folder:
        folder.keep_page(0, PAGE)
        for name in ours:
            folder.write_text(name, "{}")
    (tmp_path / "pages" / "about.json").write_text("mine", encoding="utf-8")
    with opened(tmp_path, ONE, force=True):
        pass
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {".lock", "config.yaml", "request.json", "pages/about.json"}


@pytest.mark.parametrize(
    "changes",
    [
        {"device": DeviceChoice(name="rtx-5090", devices=None)},
        {"device": DeviceChoice(devices="c d e " * 30)},
        {"static_analysis": StaticChoice(enabled=False, image="40x40")},
    ],
    ids=["device.name", "device.devices", "static_analysis"],
)
def test_what_pages_are_held_against_may_change_without_measuring_again(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with opened(tmp_path, ONE) as folder:
        folder.keep_page(0, PAGE)
        folder.write_text("operators.csv", "measured")
        folder.write_text("metrics.json", "{}")
    other = asked(**changes)
    assert other != ONE
    with opened(tmp_path, other) as folder:
        assert folder.finished_page(0, "page.png") == PAGE
        assert (tmp_path / "operators.csv").is_file()
        assert not (tmp_path / "metrics.json").exists()  # it was of the other configuration
    assert str(other) in (tmp_path / "config.yaml").read_text("utf-8")
    assert read_request(tmp_path / "request.json") == other


@pytest.mark.parametrize(
    "changes",
    [
        {"device": DeviceChoice(torch="cuda", devices="a b " * 40)},
        {"model": ModelChoice(name="deepseek-ocr-tiny")},
        {"workload": WorkloadChoice(prompt="free OCR " * 19)},
        {"profiler": ProfilerChoice(modules=True)},
    ],
    ids=["device.torch", "model.name", "workload.prompt", "profiler.modules"],
)
def test_what_pages_depend_on_may_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    with opened(tmp_path, ONE):
        pass
    with (
        pytest.raises(PerfOptError, match="another configuration"),
        opened(tmp_path, asked(**changes)),
    ):
        pass


def test_pages_of_another_environment_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, ONE) as folder:
        folder.keep_environment({"threads": 2})
        folder.keep_environment({"threads": 1})  # nothing was measured yet
        folder.keep_page(0, PAGE)
    with (
        opened(tmp_path, ONE) as folder,
        pytest.raises(PerfOptError, match="another environment"),
    ):
        folder.keep_environment({"threads": 2})


@pytest.mark.parametrize("text", ["{", "[]", '{"image": "page.png"}'])
def test_a_page_that_somebody_edited_is_told(tmp_path: Path, text: str) -> None:
    with opened(tmp_path, ONE) as folder:
        folder.keep_page(0, PAGE)
        (tmp_path / "pages" / "00000.json").write_text(text, encoding="utf-8")
        with pytest.raises(PerfOptError, match="measurement of a page"):
            folder.finished_page(0, "page.png")


def test_no_figure_that_json_does_not_know_is_written(tmp_path: Path) -> None:
    with opened(tmp_path, ONE) as folder, pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_json("metrics.json", {"mfu": float("nan")})
