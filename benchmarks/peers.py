"""What other tools say of the same two models, what it costs to ask them, and what they cannot be asked.

    python -m benchmarks.peers --docs                       everything; writes docs/data/peers.json and the pages
    python -m benchmarks.peers --docs --llm-viewer FOLDER   with LLM-Viewer, which is a repository and no package
    python -m benchmarks.peers --render                     only makes the pages again from docs/data/peers.json

The pages are docs/beside-other-tools.md and the short table of README.md.

The tools are installed into an environment of their own (`--venv`). Each is asked about a model without memory first,
on the meta device, and with random weights where that fails. Needs about 12 GB and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, ROOT, replace_section
from benchmarks.peer_probes.environment import (
    PEERS,
    Peer,
    make_environment,
    measured,
    names_about,
    python_of,
    site_packages,
    surroundings,
    versions,
)
from benchmarks.peer_probes.page import page_of, readme_table
from benchmarks.peer_probes.questions import EXACT_FLOPS, SMALL_SIZES
from benchmarks.runner import parser

DATA, PAGE = DOCS / "data" / "peers.json", DOCS / "beside-other-tools.md"
README, SECTION = ROOT / "README.md", "beside other tools"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llm-perf-opt" / "peers-venv"
LARGE = ("dense-sdpa", "dense-eager", "ocr")
SMALL = ("fused-attention", "direct-call", "experts")
AICONFIGURATOR = ("memory", "kv-cache", "predicted-time", "serving", "measured-kernels")
OFFERS = {
    "torchinfo": ("memory/dense-sdpa/none",),
    "fvcore": ("activations/dense-sdpa/none",),
    "torch-counter": ("backward/direct-call/random",),
    "calflops": ("backward/direct-call/random",),
    "torchlens": (
        "memory/dense-sdpa/random",
        "backward/direct-call/random",
        "values/experts/random",
        "picture/experts/random",
    ),
    "llm-viewer": tuple(f"{kind}/dense-sdpa/none" for kind in ("memory", "kv-cache", "predicted-time", "picture")),
    "aiconfigurator": tuple(f"{kind}/dense-sdpa/none" for kind in AICONFIGURATOR),
    "llm-perf-opt": (
        *(f"{kind}/dense-sdpa/none" for kind in ("memory", "kv-cache", "predicted-time", "serving")),
        "picture/experts/none",
    ),
}


def main() -> int:
    options = parsed()
    if options.render:
        write_pages(json.loads(DATA.read_text()))
        return 0
    failures = make_environment(options.venv)
    python, environment = python_of(options.venv), surroundings(options.threads, options.llm_viewer)
    if options.llm_viewer is None:
        failures["llm-viewer"] = "no package on PyPI; give its code with --llm-viewer"
    peers = {}
    for name, peer in PEERS.items():
        if options.only and name not in options.only:
            continue
        peers[name] = about(name, peer, failures.get(name), python, environment)
        if name not in failures:
            peers[name]["names"] = names_about(sources_of(name, peer, options))
    record = {
        "made_with": versions(python) | {"python": platform.python_version(), "threads": str(options.threads)},
        "exact_flops": {name: exact() for name, exact in EXACT_FLOPS.items()},
        "small_sizes": SMALL_SIZES,
        "peers": peers,
    }
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if options.docs:
        DATA.write_text(text)
        write_pages(record)
    return 0


def write_pages(record: dict[str, Any]) -> None:
    PAGE.write_text(page_of(record), encoding="utf-8")
    replace_section(README, SECTION, readme_table(record))


def parsed() -> argparse.Namespace:
    flags = {"docs": "write the record and the pages", "render": "write the pages from the record that is there"}
    made = parser(__doc__, **flags)
    made.add_argument("--venv", type=Path, default=CACHE, help="where the tools are installed")
    made.add_argument("--llm-viewer", type=Path, help="a folder with the code of github.com/hahnyuan/LLM-Viewer")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--only", nargs="+", choices=PEERS, help="ask these tools alone")
    options = made.parse_args()
    if options.only and options.docs:
        made.error("--docs writes what one run says of every tool; leave --only out")
    return options


def about(name: str, peer: Peer, failure: str | None, python: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Everything that one tool was asked."""
    if failure is not None:
        return {"failure": failure, "runs": []}
    print(f"== {peer.title}", file=sys.stderr)
    runs = []
    for subject in LARGE:
        runs.append(measured(python, name, f"count/{subject}/none", environment))
        if runs[-1]["status"] != "ok" and peer.reads == "module":
            runs.append(measured(python, name, f"count/{subject}/random", environment))
    small = [f"count/{subject}/{weights}" for subject in SMALL for weights in ("none", "random")]
    more = [*(small if peer.reads == "module" else []), *OFFERS[name]]
    runs += [measured(python, name, question, environment) for question in more]
    for row in runs:
        if row["subject"] != "direct-call":
            row.pop("flops_by_module", None)
    return {"runs": runs}


def sources_of(name: str, peer: Peer, options: argparse.Namespace) -> Path:
    if name == "llm-viewer":
        return Path(options.llm_viewer)
    return (ROOT / "src" if name == "llm-perf-opt" else site_packages(options.venv)) / peer.sources


if __name__ == "__main__":
    sys.exit(main())
