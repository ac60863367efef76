"""What others made is listed with source and licence; nothing is unlisted; the check itself can fail."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from scripts import third_party

ROOT = Path(__file__).parents[2]
PACKAGE = "src/llm_perf_opt"
VENDOR = f"{PACKAGE}/formats/graph_page/vendor"
EXPLORE_VENDOR = f"{PACKAGE}/formats/explore_page/vendor"


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A tree with the list, the bundle, and one file of every row; no problems."""
    for name in (third_party.LIST, f"{VENDOR}/libraries.js", f"{VENDOR}/LICENCES.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for row in third_party.listed():
        for name in {row.pattern.replace("*", "nim.json"), row.licence_text} - {None}:
            place = tmp_path / str(name)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / str(name), place) if (ROOT / str(name)).exists() else place.write_text("{}")
    facts = [path.name for path in (tmp_path / third_party.FACTS).iterdir()]
    page = tmp_path / third_party.FACTS / "README.md"
    page.write_text("".join(f"| `{name}` | x | y |\n" for name in facts))
    return tmp_path


def test_everything_from_others_is_listed_with_source_and_licence() -> None:
    assert third_party.problems_of_tree() == []


def test_every_bundled_library_has_the_text_of_its_own_licence() -> None:
    text = (ROOT / VENDOR / "LICENCES.txt").read_text("utf-8")
    assert third_party.problems_of_bundle(text) == []
    assert third_party.problems_of_bundle(text.replace("d3-ease 3.0.2 (BSD-3-Clause)", "d3-ease 3.0.2 (MIT)")) == [
        "d3-ease 3.0.2 (MIT): not the text of MIT"
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (f"{VENDOR}/other.js", b"let a = 1\n", "neither of our kinds nor listed"),
        (f"{PACKAGE}/formats/fonts/inter.woff2", b"wOF2\0", "neither of our kinds nor listed"),
        (f"{PACKAGE}/core/borrowed.py", b"# Copyright 2020 Somebody\n", "a copyright or licence notice"),
        (f"{PACKAGE}/formats/graph_page/small.js", b"a" * 3000, "a minified line"),
        (f"{PACKAGE}/formats/graph_page/page.css", b"@font-face { }", "an embedded font"),
        (f"{PACKAGE}/ops/fast.py", b"\x7fELF\0", "binary content"),
        ("tests/facts/found.json", b"{}", "its source is not in tests/facts/README.md"),
    ],
)
def test_a_file_from_others_that_is_not_listed_is_found(
    small_tree: Path, name: str, content: bytes, problem: str
) -> None:
    assert third_party.problems_of_tree(small_tree) == []
    (small_tree / name).parent.mkdir(parents=True, exist_ok=True)
    (small_tree / name).write_bytes(content)
    (found,) = third_party.problems_of_tree(small_tree)
    assert name in found
    assert problem in found


def test_a_row_that_does_not_hold_is_found(small_tree: Path) -> None:
    page = small_tree / third_party.LIST
    page.write_text(page.read_text("utf-8").replace("MIT, ISC, BSD-3-Clause", "MIT, GPL-3.0"))
    (small_tree / PACKAGE / "core/hardware/priors.toml").unlink()
    assert third_party.problems_of_tree(small_tree) == [
        f"{VENDOR}/libraries.js: licence GPL-3.0 is not one that may be shipped",
        f"{PACKAGE}/core/hardware/priors.toml: listed, but there is no such file",
    ]


def _wheel(tree: Path, licences: tuple[str, ...]) -> Path:
    wheel = tree / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in third_party.shipped_files(tree):
            if name.startswith("src/"):
                archive.write(tree / name, name.removeprefix("src/"))
        for name in licences:
            archive.writestr(f"made-1.dist-info/licenses/{name}", "text")
    return wheel


def test_a_wheel_without_a_licence_or_with_a_stranger_is_found(small_tree: Path) -> None:
    """The real wheel is checked where it is built, in `scripts/first_hour.sh`."""
    licences = ("LICENSE", f"{EXPLORE_VENDOR}/LICENCES.txt", f"{VENDOR}/LICENCES.txt")
    assert third_party.problems_of_wheel(_wheel(small_tree, licences), small_tree) == []
    without = _wheel(small_tree, licences[:2])
    assert third_party.problems_of_wheel(without, small_tree) == [
        f"{VENDOR}/LICENCES.txt: a licence that the wheel does not hold"
    ]
    whole = _wheel(small_tree, licences)
    with zipfile.ZipFile(whole, "a") as archive:
        archive.writestr("llm_perf_opt/engine.so", "\x7fELF\0")
    assert third_party.problems_of_wheel(whole, small_tree) == [
        "llm_perf_opt/engine.so: binary code",
        "llm_perf_opt/engine.so: not of this tree",
    ]
