"""Every exception of ours survives pickle, copy, a pool of processes and Ray, with all that it says."""

from __future__ import annotations

import ast
import builtins
import copy
import errno
import importlib
import multiprocessing
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError, in_python
from llm_perf_opt.core.output_files import cannot_write
from llm_perf_opt.core.protocols import PartialTrace
from llm_perf_opt.sweeps.studies.one_writer import run_local

PACKAGE = Path(lpo.__file__).parent
BUILT_IN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}


def exception_classes() -> dict[str, type[BaseException]]:
    """`module.name` -> the class, for each class of the package whose bases lead to an exception."""
    classes = {
        (".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts), node.name): {
            ast.unparse(base).rpartition(".")[2] for base in node.bases
        }
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    known = set(BUILT_IN)
    while new := {name for (_, name), bases in classes.items() if bases & known} - known:
        known |= new
    found = {
        place: vars(importlib.import_module(place[0]))[place[1]] for place in classes if place[1] in known - BUILT_IN
    }
    return {f"{module.removeprefix('llm_perf_opt.')}.{name}": kind for (module, name), kind in found.items()}


def partial_trace() -> PartialTrace:
    import torch  # here: the processes of the pools below import this file

    class Stops(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no more than {x.relu().shape[0]}")

    with pytest.raises(PartialTrace) as caught:
        lpo.trace(Stops(), (torch.zeros(2, 3),))
    return caught.value


SAID = {"what": "It broke.", "why": "too thin", "fix": "take a thicker one"}
ARGUMENTS: dict[str, Callable[[type], BaseException]] = {
    "core.errors.PerfOptError": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"], exit_code=3),
    "core.errors.BrokenBudgetError": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "core.missing_packages.CannotRunError": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "core.errors.UsageError": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "timing.step.step_table.UntimedKernels": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "core.work_limits.LimitReached": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "weightless.refusal.Refusal": lambda kind: kind(SAID["what"], why="too thin", fix=SAID["fix"]),
    "core.protocols.PartialTrace": lambda _: partial_trace(),
    "models.huggingface.inputs.search.NoInputs": lambda kind: _no_inputs(kind),
    "sweeps.function.program.program.NoRule": lambda kind: kind("sizes differ", {"batch": 3}),
    "harness.isolation._ReachedForwardError": lambda kind: kind((1, 2), {"three": 3}),
}


def _no_inputs(kind: type) -> BaseException:
    from types import SimpleNamespace

    found: BaseException = kind(SimpleNamespace(class_name="Odd"), ["too short", "too long"])
    return found


def made() -> Iterator[tuple[str, BaseException]]:
    """One of each class; one without a line in the table takes a text, as Python's own do."""
    for name, kind in exception_classes().items():
        yield name, ARGUMENTS.get(name, lambda kind: kind("a text"))(kind)


def said(error: BaseException) -> dict[str, object]:
    plain = {key: repr(value) for key, value in vars(error).items()}
    return {"type": type(error), "text": str(error), **plain}


def test_every_exception_survives_pickle_and_copy_with_all_that_it_says() -> None:
    for name, error in made():
        error.add_note("seen at noon")
        for version in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert said(pickle.loads(pickle.dumps(error, version))) == said(error), name
        assert said(copy.copy(error)) == said(error), name
        assert said(copy.deepcopy(error)) == said(error), name


def test_the_walk_finds_the_classes_that_are_known() -> None:
    classes = exception_classes()
    assert set(ARGUMENTS) <= classes.keys()
    assert len(classes) >= 13


def test_a_reason_that_was_added_later_survives_too() -> None:
    error = PerfOptError(**SAID)
    error.add_reason("and it was old")
    again = pickle.loads(pickle.dumps(error))
    assert (again.why, str(again)) == ("too thin; and it was old", str(error))


def full_disk(name: str) -> str:
    """What a task of a study does on a full disk."""
    raise cannot_write(Path(name), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.fixture
def this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes find the modules that this one has."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.usefixtures("this_tree")
def test_a_pool_of_processes_gives_the_error_back_and_does_not_hang() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.map_async(full_disk, ["part.parquet"])
        with pytest.raises(PerfOptError) as caught:
            waiting.get(timeout=60)
    assert caught.value.what == "Cannot write part.parquet."
    assert caught.value.why == os.strerror(errno.ENOSPC)


@pytest.mark.usefixtures("this_tree")
def test_a_full_disk_in_one_of_two_workers_is_called_that() -> None:
    outcomes = dict(run_local(full_disk, ["a", "b"], workers=2, task_memory_bytes=1))
    assert {task: getattr(error, "why", None) for task, error in outcomes.items()} == dict.fromkeys(
        "ab", os.strerror(errno.ENOSPC)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("this_tree")
def test_ray_gives_the_error_back() -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    from llm_perf_opt.sweeps.studies.ray_engine import run_on_ray

    ((_, error),) = run_on_ray(full_disk, ["a"], address=None, workers=1, task_memory_bytes=1)
    assert isinstance(error, PerfOptError)
    assert (error.what, error.why) == ("Cannot write a.", os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("leave --tracer, args and kwargs out", "leave tracer, args and kwargs out"),
        ("add --force to replace what is there", "add force=True to replace what is there"),
        ("use --load-weights random", 'use load_weights="random"'),
        ("leave --weights out, or trace again", "leave weights out, or trace again"),
        ("write --input 4000 --output 500", "write input=4000 decode_steps=500"),
        ("add --plan FILE", "add plan=FILE"),
        ("add --gpus l4,h100-sxm,h200-sxm", 'add gpus="l4,h100-sxm,h200-sxm"'),
        ("add --devices: llm-perf-opt devices list", "add devices_file: llm-perf-opt devices list"),
        ("llm-perf-opt trace DIR --out run/", "llm-perf-opt trace DIR --out run/"),
        ("pip download --no-deps aisimulate", "pip download --no-deps aisimulate"),
        ("models--Qwen--Qwen3 is a folder", "models--Qwen--Qwen3 is a folder"),
    ],
)
def test_a_hint_in_python_names_keywords_and_keeps_commands(flags: str, keywords: str) -> None:
    error = PerfOptError("It failed.", why="it cannot", fix=flags)
    assert str(error) == f"It failed.\n  why: it cannot\n  fix: {keywords}"
    assert error.fix == flags, "which the command prints"


def test_no_hint_of_the_package_shows_a_flag_in_python_outside_a_command() -> None:
    """Every text that an error outside `cli` is made of, with its fields left in braces."""
    left = []
    for file in sorted(Path(lpo.__file__).parent.rglob("*.py")):
        if "cli" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("fix", "why", "what"):
                texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                shown = in_python("".join(text for text in texts if isinstance(text, str)))
                clauses = (clause for clause in re.split("[;:.] ", shown) if not re.search(COMMANDS, clause))
                left += [f"{file.name}: {clause}" for clause in clauses if re.search(r"(?<![\w/-])--[a-z]", clause)]
    assert left == []


COMMANDS = r"llm-perf-opt|pip|vllm|ray|ncu|nsys|--print-units|--metrics|--save-detailed"
