from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.pipeline.profile.run_folder import open_run_folder
from tests.analyses.profile.made_runs import made_page, made_pass

PAGE = made_page(made_pass(20, 10, (3, 5)), made_pass(21, 11, (4, 6)), cold=made_pass(40, 20, (7, 8)))


def test_a_page_comes_back_as_it_was(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "run", "a: 1\n", force=False) as folder:
        folder.keep_page(3, PAGE)
    with open_run_folder(tmp_path / "run", "a: 1\n", force=False) as folder:
        assert folder.finished_page(3, "page.png") == PAGE
        assert folder.finished_page(3, "another.png") is None
        assert folder.finished_page(2, "page.png") is None


def test_two_in_one_process_do_not_share_a_folder_either(tmp_path: Path) -> None:
    with (
        open_run_folder(tmp_path, "a: 1\n", force=False),
        pytest.raises(PerfOptError, match="Another run is writing"),
        open_run_folder(tmp_path, "a: 1\n", force=False),
    ):
        pass


def test_the_lock_ends_with_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyError), open_run_folder(tmp_path, "a: 1\n", force=False):
        raise KeyError
    with open_run_folder(tmp_path, "a: 1\n", force=False) as folder:
        assert folder.path == tmp_path


def test_another_configuration_is_refused_unless_forced(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, "a: 1\n", force=False) as folder:
        folder.keep_page(0, PAGE)
        folder.write_text("metrics.json", "{}")
    (tmp_path / "my notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PerfOptError, match="another configuration"), open_run_folder(tmp_path, "a: 2\n", force=False):
        pass
    with open_run_folder(tmp_path, "a: 2\n", force=True) as folder:
        assert folder.finished_page(0, "page.png") is None
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"config.yaml", ".lock", "my notes.txt"}  # what is not a run's stays


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...", encoding="utf-8")
    with pytest.raises(PerfOptError, match="not empty and holds no run"), open_run_folder(tmp_path, "", force=False):
        pass


def test_pages_of_another_environment_are_refused(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, "a: 1\n", force=False) as folder:
        folder.keep_environment({"threads": 2})
        folder.keep_environment({"threads": 1})  # nothing was measured yet
        folder.keep_page(0, PAGE)
    with (
        open_run_folder(tmp_path, "a: 1\n", force=False) as folder,
        pytest.raises(PerfOptError, match="another environment"),
    ):
        folder.keep_environment({"threads": 2})


@pytest.mark.parametrize("text", ["{", "[]", '{"image": "page.png"}'])
def test_a_page_that_somebody_edited_is_told(tmp_path: Path, text: str) -> None:
    with open_run_folder(tmp_path, "", force=False) as folder:
        folder.keep_page(0, PAGE)
        (tmp_path / "pages" / "00000.json").write_text(text, encoding="utf-8")
        with pytest.raises(PerfOptError, match="no measurement that can be read"):
            folder.finished_page(0, "page.png")


def test_no_figure_that_json_does_not_know_is_written(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, "", force=False) as folder, pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_json("metrics.json", {"mfu": float("nan")})
