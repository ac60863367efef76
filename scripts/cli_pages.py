"""Put the real `--help` and the real output of commands into the pages, between their markers.

    python -m scripts.cli_pages            writes README.md and docs/**/*.md
    python -m scripts.cli_pages --check    exit code 1 if a page is not current

`<!-- help: VERB -->` is followed by a text block with the help; `<!-- output: COMMAND -->` by one with what the command
prints to stdout, all of it or, with `| head -n N`, its first lines. Commands run in one folder, which holds a trace in
`run/` and one of the base mode in `base/`. What differs between machines is not shown this way.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from scripts.gate.warm_python import warm_python

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARKED = re.compile(r"(<!-- (help|output): (.+?) -->\n)(?:```text\n.*?```\n)?", re.DOTALL)
MAIN = ["-c", "from llm_perf_opt.cli import main; main()"]
HEAD = " | head -n "
LIMIT_BROKEN = 3  # the exit code of an answer that a run does not fit: nothing failed
TRACE = ["trace", "deepseek-ocr", "--image", "1240x1754"]


def run(python: str, words: list[str], folder: Path) -> str:
    """Standard output of one command, as a terminal of 100 columns shows it; `python` may be a warm one."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [python, *MAIN, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, LIMIT_BROKEN):
        raise SystemExit(f"llm-perf-opt {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


def refreshed(page: str, answer: Callable[[str, str], str]) -> str:
    """The page with every marked block filled in anew."""

    def fill(match: re.Match[str]) -> str:
        lines = [line.rstrip() for line in answer(match[2], match[3]).strip("\n").splitlines()]
        return match[1] + "```text\n" + "\n".join(lines) + "\n```\n"

    return MARKED.sub(fill, page)


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale = []
    with tempfile.TemporaryDirectory() as name, warm_python(sys.executable) as warm:
        folder, python = Path(name), str(warm / "python")
        run(python, [*TRACE, "--out", "run"], folder)
        run(python, [*TRACE, "--mode", "base", "--out", "base"], folder)

        @functools.cache
        def answer(kind: str, text: str) -> str:
            if kind == "help":
                return run(python, [*text.split(), "--help"], folder)
            command, _, lines = text.partition(HEAD)
            printed = run(python, shlex.split(command)[1:], folder).splitlines()
            return "\n".join(printed[: int(lines)] if lines else printed)

        for path in PAGES:
            before = path.read_text("utf-8")
            after = refreshed(before, answer)
            if after != before:
                stale.append(str(path.relative_to(ROOT)))
                if not check:
                    path.write_text(after, "utf-8")
    if check and stale:
        raise SystemExit(f"Not current: {', '.join(stale)}. Run: python -m scripts.cli_pages")
    print("current" if not stale else f"wrote {', '.join(stale)}")


if __name__ == "__main__":
    main()
