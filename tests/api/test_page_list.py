from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.measurements.profile.request import list_pages


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "c.webp", "notes.md"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_a_folder_is_its_images_by_name(pages: Path) -> None:
    found = list_pages(str(pages), sample=None, seed=0)
    assert [Path(page).name for page in found] == ["a.JPG", "b.png", "c.webp"]


def test_a_list_holds_sizes_and_files_beside_it(pages: Path) -> None:
    (pages / "list.txt").write_text("# two\n90x130\n\n b.png \n", encoding="utf-8")
    assert list_pages(str(pages / "list.txt"), sample=None, seed=0) == ("90x130", str(pages / "b.png"))


def test_one_file_or_size_is_one_page(pages: Path) -> None:
    assert list_pages(str(pages / "b.png"), sample=None, seed=0) == (str(pages / "b.png"),)
    assert list_pages("1240x1754", sample=5, seed=0) == ("1240x1754",)


def test_a_sample_is_the_same_for_a_seed_and_keeps_the_order(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("\n".join(f"{side}x{side}" for side in range(10, 60)), encoding="utf-8")

    def sample(seed: int) -> tuple[str, ...]:
        return list_pages(str(tmp_path / "list.txt"), sample=7, seed=seed)

    assert sample(1) == sample(1) != sample(2)
    assert len(set(sample(1))) == 7
    assert list(sample(1)) == sorted(sample(1))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no page"):
        list_pages(str(tmp_path / "none.png"), sample=None, seed=0)
    with pytest.raises(UsageError, match="There are no pages"):
        list_pages(str(tmp_path), sample=None, seed=0)
