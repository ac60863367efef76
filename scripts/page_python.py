"""Run the Python that the pages show: the blocks of one page one after the other, in one process; two pages at a time.

    python -m scripts.page_python REPOSITORY TRACE [PAGE ...]

Each page is a fork of one process that has imported torch and transformers. TRACE is a folder with call graphs; a page
finds a copy of it as `run/`, unless it writes that itself. The guides that begin with
`add-a-` or `add-an-` are left out, since tests follow their steps;
FIRST_HOUR_SLOW=1 runs the slow pages too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from scripts.gate.warm_python import warm_python
from scripts.page_blocks import Block, blocks
from scripts.page_commands import STUDY

LEFT_OUT = {"docs/reference/metrics-file.md": "needs a timed run on a device with a known peak"}
GUIDES = ("docs/contributing/add-a-", "docs/contributing/add-an-")
SLOW = {"docs/start/how-fast-is-it.md": "runs the full-size model for real"}


def program_of(page_blocks: list[Block]) -> str:
    return "\n".join(block.body for block in page_blocks if block.not_run is None)


def run(program: str, trace: Path, python: str) -> str | None:
    """The error of a program that does not run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if 'save("run' not in program:
            shutil.copytree(trace, folder / "run")
        if "study.yaml" in program:
            (folder / "study.yaml").write_text(json.dumps(STUDY), encoding="utf-8")  # JSON is YAML
        (folder / "page.py").write_text(program, encoding="utf-8")
        done = subprocess.run([python, "page.py"], cwd=folder, capture_output=True, text=True)
    return None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def run_page(page: str, page_blocks: list[Block], trace: Path, python: str) -> str | None:
    """What is wrong with a page; how long it took is told."""
    started = time.perf_counter()
    error = run(program_of(page_blocks), trace, python)
    print(f"   {time.perf_counter() - started:6.1f} s  {len(page_blocks)} blocks of {page}", flush=True)
    return error and f"The Python of {page} fails: {error}"


def main() -> None:
    repository, trace, *pages = sys.argv[1:]
    left_out = LEFT_OUT if os.environ.get("FIRST_HOUR_SLOW") else {**LEFT_OUT, **SLOW}
    by_page: dict[str, list[Block]] = {}
    for block in blocks(Path(repository), "python"):
        if not block.page.startswith(GUIDES) and (not pages or block.page in pages):
            by_page.setdefault(block.page, []).append(block)
    for page in by_page.keys() & left_out.keys():
        print(f"   left out ({left_out[page]}): {page}")
    wanted = {page: texts for page, texts in by_page.items() if page not in left_out}
    longest_first = sorted(wanted, key=lambda page: -len(program_of(wanted[page])))
    with ThreadPoolExecutor(max_workers=2) as workers, warm_python(sys.executable) as warm:
        python = str(warm / "python")
        running = [workers.submit(run_page, page, wanted[page], Path(trace), python) for page in longest_first]
        for done in as_completed(running):
            if error := done.result():
                workers.shutdown(cancel_futures=True)
                sys.exit(error)


if __name__ == "__main__":
    main()
