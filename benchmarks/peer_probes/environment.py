"""The tools in an environment of their own, asked in processes of their own; and the names that a tool defines.

Each tool is installed by a call of pip that may fail without harm to the others. A process gives the answer or the
reason why there is none, time, and peak memory. A look at the names in a tool's sources says where an absence was
looked for.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from benchmarks.pages import ROOT

TIME_LIMIT_S = 240
REASON_LENGTH = 200
_ERROR = re.compile(
    r"^([\w.]*(?:Error|Exception|Interrupt|Failure))\b:? ?(.*(?:\n(?!Traceback|The above|During|\s*$).+)?)$",
    re.MULTILINE,
)
Row = dict[str, Any]


def measured(python: Path, peer: str, question: str, environment: Mapping[str, str]) -> Row:
    """One question in one process; seconds and bytes count the whole process, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        out, stderr = Path(folder) / "answer.json", Path(folder) / "stderr"
        started = time.perf_counter()
        with stderr.open("wb") as errors:
            command = [str(python), "-m", "benchmarks.peer_probes", peer, str(out), question]
            child = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=errors)
            watch = threading.Timer(TIME_LIMIT_S, child.kill)
            watch.start()
            _, status, used = os.wait4(child.pid, 0)
            watch.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        spent = {
            "wall_s": round(time.perf_counter() - started, 2),
            "cpu_s": round(used.ru_utime + used.ru_stime, 2),
            "peak_bytes": used.ru_maxrss * 1024,
        }
        return told(question, out, stderr.read_text(errors="replace"), child.returncode) | spent


def told(question: str, out: Path, stderr: str, code: int) -> Row:
    kind, subject, weights = question.split("/")
    row: Row = {"question": kind, "subject": subject, "weights": weights}
    if out.exists():
        return row | {"status": "ok"} | json.loads(out.read_text())
    if code == -9:
        return row | {"status": "failed", "reason": f"took longer than {TIME_LIMIT_S} s, or more memory than there is"}
    return row | {"status": "failed", "reason": reason(stderr)}


def reason(stderr: str) -> str:
    """The error that began it, in one line without places on the disk; errors that wrap another come after it."""
    errors = _ERROR.findall(stderr)
    if not errors:
        return (stderr.strip().splitlines() or ["no reason given"])[-1][:REASON_LENGTH]
    kind, message = errors[0]
    text = re.sub(r"(?<![\w.])/[\w.+@-]+(?:/[\w.+@-]+)+", lambda path: Path(path[0]).name, message)
    return shorten(f"{kind.rpartition('.')[2]}: {text}".strip(": "), REASON_LENGTH, placeholder=" ...")


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
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    return packages


def surroundings(threads: int, llm_viewer: Path | None) -> dict[str, str]:
    """What a probe sees: this project's sources, this many threads, and no network."""
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


SUBJECTS = {
    "memory": r"memory|byte|footprint",
    "kv-cache": r"kv_?cache|past_key",
    "predicted-time": r"latency|roofline|ttft|inference_time",
    "serving": r"throughput|ttft|tpot|^serving",
    "picture": r"draw|graphviz|_dot$|svg|mermaid|plot",
    "backward": r"backward|back_?prop",
}


def names_about(sources: Path) -> dict[str, list[str]]:
    """Public functions, classes, methods and fields with a matching name, by subject."""
    files = [sources] if sources.is_file() else sorted(sources.rglob("*.py"))
    names = {name for file in files for name in _defined(ast.parse(file.read_text(encoding="utf-8")))}
    return {
        subject: sorted(name for name in names if re.search(pattern, name, re.IGNORECASE))
        for subject, pattern in SUBJECTS.items()
    }


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        else:
            continue
        if not name.startswith("_"):
            yield name
