"""`docs/contributing/add-an-option.md` is followed literally in a scratch copy: one file is edited, and the
option is everywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import llm_perf_opt

PACKAGE = Path(llm_perf_opt.__file__).parent
GUIDE = (Path(__file__).parents[2] / "docs" / "contributing" / "add-an-option.md").read_text("utf-8")
STEP = re.compile(r"\*\*Declare it\*\* in `(\w+)` in `src/(\S+\.py)`:\n\n\s*```python\n(.*?)```", re.DOTALL)
STEPS = STEP.findall(GUIDE)
CASES = [
    ("cached_tokens", 64, "llm_perf_opt/core/workload.py"),
    ("scan_dpi", 300, "llm_perf_opt/models/deepseek_ocr/options.py"),
]

EVERY_HELP = """
import contextlib, sys
from llm_perf_opt.cli import main
for verb in ("trace", "cost", "export", "report"):
    sys.argv = ["llm-perf-opt", verb, "--help"]
    with contextlib.suppress(SystemExit):
        main()
"""
IN_PYTHON = """
import json, sys
import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import workload_type
name, value, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
trace = lpo.trace("deepseek-ocr", mode="tiny", decode_steps=0, **{name: value})
trace.save(folder)
(graph,) = lpo.load(folder).graphs
again = workload_type(graph.model).from_header(graph.workload)
refusals = []
for given in ({name: value, "decode_steps": -1}, {"no_such_field": 1}):
    try:
        lpo.trace("got-ocr2", **given)
    except UsageError as error:
        refusals.append(str(error))
print(json.dumps({"saved": graph.workload[name], "read": getattr(again, name), "refusals": refusals}))
"""


@pytest.fixture(scope="module", params=[0, 1], ids=["common field", "option of one model"])
def followed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A copy of the package in which the one line of the guide was added to the one file it names."""
    place = tmp_path_factory.mktemp("followed")
    shutil.copytree(PACKAGE, place / "llm_perf_opt", ignore=shutil.ignore_patterns("__pycache__"))
    record, path, block = STEPS[request.param]
    name, value, file = CASES[request.param]
    assert path == file
    text = (place / path).read_text("utf-8")
    start = text.index("\n\n", text.index("taken_by: ClassVar", text.index(f"class {record}"))) + 2
    (place / path).write_text(text[:start] + textwrap.indent(textwrap.dedent(block), "    ") + text[start:])
    return place, name, value


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(place), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=place, env=environment)
    assert done.returncode in (0, 2), done.stderr
    return done


def test_it_is_an_option_of_every_verb(followed: tuple[Path, str, int]) -> None:
    place, name, _ = followed
    flag = f"--{name.replace('_', '-')}"
    lines = [line for line in run(place, "-c", EVERY_HELP).stdout.splitlines() if flag in line]
    assert len(lines) == 4
    assert {"For deepseek-ocr" in line for line in lines} == {name == "scan_dpi"}


def test_hydra_takes_it_and_checks_it(followed: tuple[Path, str, int]) -> None:
    place, name, value = followed
    shown = run(place, "-m", "llm_perf_opt", "profile", "--show-config", f"workload.{name}={value}").stdout
    assert f"{name}: {value}" in shown
    refused = run(place, "-m", "llm_perf_opt", "profile", f"workload.{name}=-1", f"run.folder={place / 'run'}")
    assert refused.returncode == 2 and f"{name} cannot be -1" in refused.stderr


def test_python_takes_it_and_a_saved_trace_keeps_it(followed: tuple[Path, str, int]) -> None:
    place, name, value = followed
    said = json.loads(run(place, "-c", IN_PYTHON, name, str(value), str(place / name)).stdout)
    assert (said["saved"], said["read"]) == (value, value)
    own, unknown = said["refusals"]
    assert ("GOT-OCR 2.0 takes no scan_dpi" in own) == (name == "scan_dpi")
    assert "trace takes no 'no_such_field'" in unknown
