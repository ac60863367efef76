"""Traces that ship with the package: what the models' code runs now, to the last digit, and answered without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core import store
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.tracing import stored_traces
from llm_perf_opt.tracing.origin import find_origin
from llm_perf_opt.tracing.stored_traces import (
    SHIPPED,
    SHIPPED_SUFFIX,
    read_shipped,
    shipped_file,
    shipped_graphs,
    trace_ingredients,
)
from scripts.catalogue_traces import shipped_names

ROOT = Path(__file__).parents[2]
LANDING = int((ROOT / ".ci" / "landing").read_text())
MODEL = "Qwen/Qwen3-0.6B"
MOST_BYTES = 12 * 10**6  # of all: the wheel has 20 MB
REMADE = "python -m scripts.catalogue_traces makes them again"


def file_of(name: str) -> Path:
    return shipped_file(name, {})


def small_ones() -> list[str]:
    """The smaller half of the models: a tenth of it in each landing."""
    by_size = sorted(shipped_names(), key=lambda name: (file_of(name).stat().st_size, name))
    return by_size[: len(by_size) // 2][LANDING % 10 :: 10]


def check(names: list[str]) -> None:
    """In a process of its own, whose hash seed is that of the shipped traces."""
    words = [word for name in names for word in ("--name", name)]
    command = [sys.executable, "-m", "scripts.catalogue_traces", "--check", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-2000:]}\n{REMADE}"
    assert json.loads(done.stdout)["checked"] == len(names) > 0


def test_a_tenth_of_the_shipped_traces_is_what_the_model_runs() -> None:
    check(small_ones())


@pytest.mark.breadth
@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_every_shipped_trace_is_what_the_model_runs(tenth: int) -> None:
    check(shipped_names()[tenth::10])


def test_all_shipped_traces_together_stay_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.glob(f"*{SHIPPED_SUFFIX}")) < MOST_BYTES


def test_a_model_of_the_catalogue_is_answered_without_torch(tmp_path: Path) -> None:
    script = f"""
import sys, llm_perf_opt as lpo
assert lpo.serve({MODEL!r}, "mi300x", input=400, output=8, users=4).best
lpo.trace({MODEL!r}, weights="fp8", device="l4").stages()
print([name for name in ("torch", "transformers", "duckdb") if name in sys.modules])
"""
    environment = {**os.environ, store.VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_another_library_or_configuration_finds_no_shipped_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = find_origin(MODEL)
    ingredients = trace_ingredients(origin)
    assert ingredients is not None
    assert shipped_graphs(origin.source, ingredients) is not None
    assert shipped_graphs(origin.source, {**ingredients, "routing": "one"}) is None
    for library in ("torch", "transformers"):
        for installed, is_found in (("0.1", False), (store.NOT_INSTALLED, True)):
            with monkeypatch.context() as patch:
                asked = {library: installed}
                patch.setattr(
                    stored_traces, "installed_version", lambda name, asked=asked: asked.get(name, store.NOT_INSTALLED)
                )
                assert (shipped_graphs(origin.source, ingredients) is not None) is is_found


def test_a_damaged_shipped_file_is_refused(tmp_path: Path) -> None:
    raw = file_of(MODEL).read_bytes()
    for number, damaged in enumerate((raw[: len(raw) // 2], raw[:100] + bytes([raw[100] ^ 8]) + raw[101:], b"", b"x")):
        file = tmp_path / str(number)
        file.write_bytes(damaged)
        with pytest.raises(PerfOptError):
            read_shipped(file)
