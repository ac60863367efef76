"""The tools in an environment of their own, each by a call of pip that may fail without harm to the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_probes.processes import reason

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One tool. `requirement` is what pip is asked for, None where torch brings it or no package exists.

    `sources` are its files below site-packages, for a look at the names it defines. `reads` is `module` or `config`.
    """

    title: str
    requirement: str | None
    sources: str
    reads: str = "module"


PEERS: Mapping[str, Peer] = {
    "llm-perf-opt": Peer(title="llm-perf-opt", requirement=None, sources="llm_perf_opt"),
    "torchinfo": Peer(title="torchinfo", requirement="torchinfo", sources="torchinfo"),
    "fvcore": Peer(title="fvcore", requirement="fvcore", sources="fvcore/nn"),
    "torch-counter": Peer(title="torch's FlopCounterMode", requirement=None, sources="torch/utils/flop_counter.py"),
    "calflops": Peer(title="calflops", requirement="calflops", sources="calflops"),
    "torchlens": Peer(title="TorchLens", requirement="torchlens", sources="torchlens"),
    "llm-viewer": Peer(title="LLM-Viewer", requirement=None, sources=".", reads="config"),
    "aiconfigurator": Peer(
        title="aiconfigurator", requirement="aiconfigurator", sources="aiconfigurator", reads="config"
    ),
}


def make_environment(folder: Path) -> dict[str, str]:
    """Build what is missing in `folder`; the answer is why a tool could not be installed, by its name."""
    python = python_of(folder)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *project["optional-dependencies"]["kernels"]]
    for wanted in ([TORCH, "--extra-index-url", CPU_WHEELS], ["transformers", *own]):
        pip(python, *wanted).check_returncode()
    failures = {}
    for name, peer in PEERS.items():
        if peer.requirement is not None:
            asked = pip(python, peer.requirement, TORCH)
            if asked.returncode:
                failures[name] = f"pip: {reason(asked.stderr)}"
    return failures


def pip(python: Path, *wanted: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, check=False)


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    (found,) = (folder / "lib").glob("python3*/site-packages")
    return found


def surroundings(threads: int, llm_viewer: Path | None) -> dict[str, str]:
    """What a probe sees: this project's sources, so many threads, and no network."""
    told = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": str(threads)}
    told |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    return told | ({} if llm_viewer is None else {"LLM_VIEWER": str(llm_viewer.resolve())})


def versions(python: Path) -> dict[str, str]:
    """Of everything that has a version, by the name that pip knows."""
    names = ["torch", "transformers", *(peer.requirement for peer in PEERS.values() if peer.requirement)]
    code = (
        "import json, sys; from importlib import metadata as m;"
        "found = {d.metadata['Name'].lower() for d in m.distributions()};"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:] if n in found}))"
    )
    asked = subprocess.run([str(python), "-c", code, *names], text=True, capture_output=True, check=True)
    return dict(json.loads(asked.stdout))
