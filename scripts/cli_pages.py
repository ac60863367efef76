"""Put the real `--help` and the real output of commands into the pages of the verbs, between their markers.

    python scripts/cli_pages.py            writes docs/cli/*.md
    python scripts/cli_pages.py --check    exit code 1 if a page is not current

`<!-- help: VERB -->` is followed by a text block with the help; `<!-- output: COMMAND -->` by one with what the command
prints to stdout. Commands run in one folder, which holds a trace in `run/`. What differs between machines is not shown
this way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- (help|output): (.+?) -->\n)(?:```text\n.*?```\n)?", re.DOTALL)
COMMAND = [sys.executable, "-c", "from llm_perf_opt.cli import main; main()"]


def run(words: list[str], folder: Path) -> str:
    """Standard output of one command, as a terminal of 100 columns shows it."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    done = subprocess.run([*COMMAND, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(["trace", "deepseek-ocr", "--image", "1240x1754", "--out", "run"], folder)

        def answer(kind: str, text: str) -> str:
            words = [*text.split(), "--help"] if kind == "help" else text.removeprefix("llm-perf-opt ").split()
            return run(words, folder)

        for path in sorted((ROOT / "docs" / "cli").glob("*.md")):
            before = path.read_text("utf-8")
            after = refreshed(before, answer)
            if after != before:
                stale.append(path.name)
                if not check:
                    path.write_text(after, "utf-8")
    if check and stale:
        raise SystemExit(f"Not current: {', '.join(stale)}. Run: python scripts/cli_pages.py")
    print("current" if not stale else f"wrote {', '.join(stale)}")


if __name__ == "__main__":
    main()
