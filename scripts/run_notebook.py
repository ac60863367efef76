"""Run a notebook from top to bottom in a fresh kernel, and compare what comes out with what the file shows.

    python scripts/run_notebook.py NOTEBOOK            exit code 1 if an output or one of its figures is gone
    python scripts/run_notebook.py NOTEBOOK --write    keeps the new outputs in the file instead

Figures are the FLOPs, MACs, bytes and whole numbers of five digits and more in the text of an output. What a cell says
on stderr, such as a library's warning about widgets, is no output.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FIGURE = re.compile(r"(?<![\d.,])[1-9](?:[\d.,]* (?:[kMGTP]?(?:FLOP|MAC)|[KMGT]iB)\b|\d{0,2}(?:,\d{3})+|\d{4,})")


def kinds(cell: nbformat.NotebookNode) -> list[list[str]]:
    """How each output of a cell can be shown."""
    return [sorted(output.get("data", {output.output_type: ""})) for output in cell.outputs]


def figures(cell: nbformat.NotebookNode) -> set[str]:
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return {figure for text in texts for figure in FIGURE.findall(text)}


def what_is_gone(stored: nbformat.NotebookNode, ran: nbformat.NotebookNode) -> list[str]:
    """One line for each cell that no longer shows what the file says it shows."""
    gone_lines = []
    for number, (before, after) in enumerate(zip(stored.cells, ran.cells, strict=True)):
        if before.cell_type != "code":
            continue
        if kinds(before) != kinds(after):
            gone_lines.append(f"cell {number} shows {kinds(after)}, and {kinds(before)} in the file")
        elif gone := figures(before) - figures(after):
            gone_lines.append(f"cell {number} no longer says {', '.join(sorted(gone))}")
    return gone_lines


def without_talk(notebook: nbformat.NotebookNode) -> None:
    """Take what was said on stderr out of the outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]


def main() -> None:
    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    stored = copy.deepcopy(notebook)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    without_talk(notebook)
    if "--write" in sys.argv[2:]:
        nbformat.write(notebook, path)
    elif gone := what_is_gone(stored, notebook):
        sys.exit("\n".join([f"{path.name} is not what comes out:", *gone]))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    print(f"   {len(cells)} cells ran; {sum(len(figures(cell)) for cell in cells)} figures equal the file's")


if __name__ == "__main__":
    main()
