"""Run a notebook from top to bottom in a fresh kernel; `--write` keeps the outputs in the file.

python scripts/run_notebook.py NOTEBOOK [--write]
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> None:
    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = sum(1 for cell in cells for output in cell.outputs if "text/html" in output.get("data", {}))
    print(f"   {len(cells)} cells ran, {shown} of their outputs show as HTML")
    if "--write" in sys.argv[2:]:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
