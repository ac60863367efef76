"""What a script sees first: the names of the package, how its objects show themselves, and ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import read_ends

PAGE = next((Path(__file__).parents[2] / "docs").rglob("python-api.md"))


def test_dir_lists_what_scripts_use_and_nothing_else() -> None:
    assert dir(lpo) == sorted(lpo.__all__)
    assert not set(dir(lpo)) & {"importlib", "annotations", "TYPE_CHECKING", "_HOMES"}


def test_every_name_can_be_loaded_and_stands_in_a_group_of_the_page() -> None:
    grouped = PAGE.read_text("utf-8").partition("## Names")[2].partition("\n## ")[0]
    for name in lpo.__all__:
        assert getattr(lpo, name) is not None
        assert f"`{name}`" in grouped, name


def test_a_trace_has_no_plan_that_is_none() -> None:
    assert not hasattr(lpo.Trace, "plan")


@pytest.mark.parametrize("given", ["1..512", (1, 512), range(1, 513), [1, 512]])
def test_a_range_reads_as_one_whatever_its_words(given: object) -> None:
    assert read_ends(given, "batch") == (1, 512)  # type: ignore[arg-type]


def test_one_number_is_both_ends_and_an_empty_range_is_refused() -> None:
    assert read_ends(8, "batch") == (8, 8)
    assert read_ends("1k..2k", "context") == (1024, 2048)
    with pytest.raises(UsageError, match="batch cannot be"):
        read_ends(range(0), "batch")


def test_a_function_shows_itself_as_a_small_table(tmp_path: Path) -> None:
    function = lpo.trace("deepseek-ocr-tiny", mode="tiny").over(batch="1..2", context="40..44", traces=12)
    shown = repr(function).splitlines()
    assert shown[0] == "deepseek-ocr-tiny as a function of batch and context"
    assert any(line.split()[:3] == ["decode", "1..2", "40..44"] for line in shown)
    assert len(shown) < 12
