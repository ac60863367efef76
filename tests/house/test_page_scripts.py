"""The scripts that do what the pages say find all of it, and notice when it fails."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import nbformat
import pytest

from scripts import page_commands, page_python, take_report_screenshots, take_screenshots
from scripts.page_blocks import blocks
from scripts.page_commands import Shown, shown_commands
from scripts.run_notebook import figures, what_is_gone, without_talk

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "deepseek_ocr.ipynb"


def a_page(folder: Path, text: str) -> Path:
    (folder / "docs").mkdir()
    for name in ("README.md", "CONTRIBUTING.md"):
        (folder / name).write_text("")
    (folder / "docs" / "page.md").write_text(text)
    return folder


def test_every_page_with_a_shell_block_shows_a_command_and_not_only_forms() -> None:
    with_blocks = {block.page for block in blocks(ROOT, "sh")}
    with_commands = {shown.page for shown in shown_commands(ROOT) if shown.left_out != "a form to fill in"}
    assert with_blocks == with_commands


def test_every_reason_to_leave_a_command_out_is_still_needed() -> None:
    lines = [shown.line for shown in shown_commands(ROOT)]
    reasons = {**page_commands.LEFT_OUT, **page_commands.SLOW}
    assert [pattern for pattern in reasons if not any(re.search(pattern, line) for line in lines)] == []
    assert {**page_python.LEFT_OUT, **page_python.SLOW}.keys() <= {block.page for block in blocks(ROOT, "python")}


def test_a_line_is_taken_whole_and_a_fence_inside_it_ends_no_block(tmp_path: Path) -> None:
    text = (
        "```sh\n(echo '```mermaid'; llm-perf-opt graph run/) >> README.md   # a comment\n"
        "jq . run/x.json | \\\n  sort\n```\n"
        "<!-- not run: needs a crane -->\n```sh\nllm-perf-opt lift\n```\n```python\nx = 1\n```\n"
    )
    assert shown_commands(a_page(tmp_path, text)) == [
        Shown("docs/page.md", "(echo '```mermaid'; llm-perf-opt graph run/) >> README.md", None),
        Shown("docs/page.md", "jq . run/x.json |    sort", None),
        Shown("docs/page.md", "llm-perf-opt lift", "needs a crane"),
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("echo told; exit 3", "left with exit code 3"),
        ("false | cat", "left with exit code 1"),
        ("echo > other.txt # --out file.txt", "wrote no file.txt"),
        ("true llm-perf-opt doctor", "printed nothing"),
    ],
)
def test_a_command_that_does_not_do_what_it_says_is_told_with_its_output(tmp_path: Path, line: str, wrong: str) -> None:
    runner = page_commands.Runner(store=a_page(tmp_path, "") / "docs", place=tmp_path, warm=tmp_path)
    _, told = runner.run(Shown("docs/page.md", line, None))
    assert told is not None
    assert told.startswith(f"docs/page.md: {line}\n{wrong}")
    assert ("told" in told.partition(wrong)[2]) == ("echo told" in line)


def test_a_command_that_does_what_it_says_is_fine(tmp_path: Path) -> None:
    runner = page_commands.Runner(store=a_page(tmp_path, "some text") / "docs", place=tmp_path, warm=tmp_path)
    seconds, told = runner.run(Shown("README.md", "cat page.md > copy.md", None))
    assert told is None and seconds > 0


def test_the_first_command_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_commands, "prepare", lambda store, command: None)
    later = [Shown("README.md", f"sleep 0.2; echo {number} >> {tmp_path}/ran", None) for number in range(30)]
    with pytest.raises(SystemExit, match="left with exit code 1"):
        page_commands.run_all([Shown("README.md", "false", None), *later], preloaded=("json",))
    assert len((tmp_path / "ran").read_text().splitlines()) < 10


def test_the_python_of_a_page_is_one_program_and_its_error_is_told(tmp_path: Path) -> None:
    page = a_page(
        tmp_path,
        "```python\nx = 1\n```\n<!-- not run: a reason -->\n```python\n1 / 0\n```\n```python\nassert x == 1\n```\n",
    )
    program = page_python.program_of(list(blocks(page, "python")))
    assert program == "x = 1\n\nassert x == 1\n"
    listing = program + "import os\nassert os.listdir('run') == ['page.md']\n"
    assert page_python.run(listing, page / "docs", sys.executable) is None
    assert "ZeroDivisionError" in (page_python.run(f"{program}1 / 0", page / "docs", sys.executable) or "")


def test_every_picture_of_the_documentation_is_made_by_the_script() -> None:
    scenes = {f"{name}.png" for name in (*take_screenshots.SCENES, *take_report_screenshots.SCENES)}
    drawn = set(re.findall(r'\$folder/([\w-]+\.svg)"', (ROOT / "scripts" / "pictures.sh").read_text("utf-8")))
    assert scenes | drawn == {file.name for file in (ROOT / "docs" / "images").iterdir()}


def test_an_output_or_a_figure_of_the_notebook_that_is_gone_is_noticed() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    assert sum(len(figures(cell)) for cell in stored.cells if cell.cell_type == "code") > 100
    assert what_is_gone(stored, stored) == []
    shown = [number for number, cell in enumerate(stored.cells) if cell.get("outputs")]
    without, other = copy.deepcopy(stored), copy.deepcopy(stored)
    without.cells[shown[1]].outputs = []
    data = other.cells[shown[0]].outputs[0].data
    data["text/plain"] = data["text/plain"].replace("3,336,106,240", "3,336,106,241")
    assert len(what_is_gone(stored, without)) == 1
    assert what_is_gone(stored, other) == [f"cell {shown[0]} no longer says 3,336,106,240"]


def test_a_warning_of_a_library_is_no_output_of_a_notebook() -> None:
    talk = nbformat.v4.new_output("stream", name="stderr", text="/some/place: IProgress not found")
    said = nbformat.v4.new_output("stream", name="stdout", text="12,345")
    cell = nbformat.v4.new_code_cell("print()", outputs=[talk, said])
    without_talk(nbformat.v4.new_notebook(cells=[cell]))
    assert cell.outputs == [said]
