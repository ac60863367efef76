"""Traces of full-size models, made once for all workers and all runs: a file for each, named after what made it.

The name holds the digest of every source file that can change a trace and the versions of the libraries that run the
model, so a changed source never finds an old trace. `LLM_PERF_OPT_KEPT_TRACES` names another folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import llm_perf_opt
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.json_reader import read_callgraph
from llm_perf_opt.core.callgraph.json_writer import write_callgraph

PACKAGE = Path(llm_perf_opt.__file__).parent
MAKERS = ("core", "ops", "weightless", "harness", "models", "tracing", "api")  # what runs on the way to a trace
LIBRARIES = ("torch", "transformers", "numpy")
VARIABLE = "LLM_PERF_OPT_KEPT_TRACES"
_KEPT_S = 14 * 24 * 3600  # traces of older sources go when a new digest first appears


def source_digest(package: Path = PACKAGE) -> str:
    """Of the sources and data that make a trace, the libraries and the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for name in LIBRARIES:
        digest.update(f"{name} {_version(name)}\n".encode())
    for maker in MAKERS:
        for file in sorted((package / maker).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(package)}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def kept_graph(what: str, make: Callable[[], CallGraph]) -> CallGraph:
    """The trace that `what` describes in full: model, workload and phase. Made if no run of these sources has."""
    file = _folder() / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"
    if file.exists():
        return read_callgraph(file)
    graph = make()
    write_callgraph(graph, file, overwrite=True, with_events=True)  # whole or not at all, so workers may race
    return graph


@cache
def _folder() -> Path:
    named = os.environ.get(VARIABLE)
    cache_folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    store = Path(named) if named else Path(cache_folder) / "llm-perf-opt" / "kept-traces"
    folder = store / source_digest()
    if not folder.exists():
        for old in store.glob("*/*.json"):
            if time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
