"""Which packages of others a verb may import on a trace that was saved, in a process of its own.

A model that was traced needs nothing that runs models, and measured kernels that were read once need no reader.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.store import VARIABLE
from tests.timing.kernels.measured_tables import needs_tables

LIST = """
import json, sys
from llm_perf_opt.__main__ import main
try:
    main()
except SystemExit as end:
    code = end.code or 0
def is_foreign(module):
    return "-packages/" in (getattr(module, "__file__", None) or "")
names = {name.partition(".")[0] for name, module in list(sys.modules.items()) if is_foreign(module)}
print(json.dumps([code, sorted(name for name in names if not name.startswith("_"))]), file=sys.stderr)
"""
COMMAND = {"typer", "shellingham", "annotated_doc"}  # the command line itself
RECORDS = COMMAND | {"msgspec", "typing_extensions"}  # files that are read back
ARRAYS = RECORDS | {"numpy"}
PAGES = ARRAYS | {"jinja2", "markupsafe"}
ALLOWED = {
    "--help": COMMAND,
    "serve --help": COMMAND,
    "models": RECORDS,
    "doctor": RECORDS,
    "devices list": ARRAYS,
    "trace RUN": ARRAYS,
    "trace RUN --device h100-sxm": ARRAYS,
    "trace RUN --device h100-sxm --execution fused": ARRAYS,
    "graph RUN --out PAGE": PAGES,
    "cost RUN": ARRAYS,
    "report RUN --out PAGE": PAGES,
    "compare RUN RUN": ARRAYS,
    "compare Qwen/Qwen3-8B Qwen/Qwen3-4B": ARRAYS | {"huggingface_hub"},  # where its cache lies, no requests
    "graph Qwen/Qwen3-8B": ARRAYS | {"huggingface_hub"},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    lpo.trace("deepseek-ocr-tiny", prompt_tokens=8, out=folder / "run")
    return folder


def imported(command: str, saved: Path) -> set[str]:
    """The packages in the memory of a process when the verb has ended."""
    words = [{"RUN": str(saved / "run"), "PAGE": str(saved / "page.html")}.get(word, word) for word in command.split()]
    forced = ["--force"] if "PAGE" in command.split() else []
    done = subprocess.run(
        [sys.executable, "-c", LIST, *words, *forced],
        env={**os.environ, VARIABLE: str(saved / "cache")},
        capture_output=True,
        text=True,
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(names)


@needs_tables
@pytest.mark.parametrize("command", ALLOWED)
def test_a_verb_imports_no_more_than_it_needs(command: str, saved: Path) -> None:
    if "--device" in command or "Qwen/" in command:
        imported(command, saved)  # the first read of a device is DuckDB's, a model of other libraries is traced once
    assert imported(command, saved) - ALLOWED[command] - {"llm_perf_opt"} == set()


@needs_tables
def test_the_first_read_of_a_device_is_seen(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(saved / "run")
    assert "duckdb" in imported("trace RUN --device h100-sxm --execution fused", tmp_path)
