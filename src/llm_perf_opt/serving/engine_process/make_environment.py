"""Make the environment of an engine, once: `llm-perf-opt engines install vllm`.

It is a virtual environment of its own, because an engine pins what it needs, torch first, and those pins are not ours.
The build for processors is enough on any machine: no model is computed there. A machine that has an official engine
needs none of this: name its Python in the environment variable, or install this package next to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import venv
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import make_folder, write_whole
from llm_perf_opt.serving.engine_process.environment import UNFINISHED, VLLM, EngineRecipe, version_in

log = logging.getLogger(__name__)
_STAND_IN = "torchvision_without_operators"
_STAND_IN_CODE = '''"""Lets torchvision be imported where its compiled operators do not load (CUDA ones, CPU torch).

Engines import torchvision for image transforms alone. Only the registration of fake operators is left out.
"""

import importlib.abc
import importlib.util
import sys


class _Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Nothing())
'''


def make(folder: Path, engine: EngineRecipe = VLLM) -> str:
    """An environment with an engine in `folder`, which is not there yet. The version of the engine that it holds.

    What an earlier call could not finish does not count as there, and is made anew.
    """
    if (folder / UNFINISHED).exists():
        log.info("Removing %s, which was never finished ...", folder)
        shutil.rmtree(folder)
    if folder.exists():
        raise UsageError(
            f"{folder} is there already.",
            why="an environment is made from nothing, and what is there may be in use",
            fix=f"remove it first, name another folder, or use it: export {engine.variable}={folder}/bin/python",
        )
    log.info("Making a virtual environment in %s ...", folder)
    make_folder(folder)
    write_whole(folder / UNFINISHED, [b"made by an install that has not ended\n"])
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    for step in engine.steps:
        _run(python, "-m", "pip", *step)
    if subprocess.run([str(python), "-c", "import torchvision"], env=_variables(), capture_output=True).returncode != 0:
        log.info("torchvision does not load its operators here: leaving them out ...")
        _write_stand_in(python)
    _run(python, "-c", engine.check)
    version = version_in(python, engine)
    assert version is not None, "pip installed it"
    (folder / UNFINISHED).unlink()
    return version


def _write_stand_in(python: Path) -> None:
    """A module, and a line that imports it whenever that Python starts."""
    said = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = Path(said.stdout.strip())
    write_whole(packages / f"{_STAND_IN}.py", [_STAND_IN_CODE.encode()])
    write_whole(packages / f"{_STAND_IN}.pth", [f"import {_STAND_IN}\n".encode()])


def _run(python: Path, *arguments: str) -> None:
    shown = " ".join(("python", *arguments))
    log.info("%s ...", shown)
    done = subprocess.run([str(python), *arguments], env=_variables())
    if done.returncode:
        raise PerfOptError(
            f"`{shown}` failed in the new environment.",
            why=f"it ended with code {done.returncode}; what it said is above",
            fix="mend that, and try again",
        )


def _variables() -> dict[str, str]:
    """Without a path of this process: its packages are not to be found there."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
