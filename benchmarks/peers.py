"""What other tools say of the same two models, what it costs to ask them, and what they cannot be asked.

    python -m benchmarks.peers --docs                       everything; writes docs/data/peers.json and the page
    python -m benchmarks.peers --docs --llm-viewer FOLDER   with LLM-Viewer, which is a repository and no package
    python -m benchmarks.peers --render                     only makes the page again from docs/data/peers.json

The page is docs/evidence/other-tools.md.

The tools are installed into an environment of their own (`--venv`). Each is asked about a model without memory first,
on the meta device, and with random weights where that fails. Needs about 12 GB and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from math import isclose
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.pages import DOCS, ROOT, table
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
from benchmarks.peer_probes.questions import EXACT_FLOPS, SMALL_SIZES
from benchmarks.runner import parser

# docs/evidence/other-tools.md, from the record alone.

Row = Mapping[str, Any]
Told = Mapping[str, Any]  # all that one tool was asked
Record = Mapping[str, Any]


def counted(told: Told, subject: str) -> Row | None:
    """The first count of a subject that came, without weights if it came so."""
    return next((row for row in _counts(told, subject) if row["status"] == "ok"), None)


def offer(told: Told, kind: str) -> Row | None:
    return next((row for row in told["runs"] if row["question"] == kind and row["status"] == "ok"), None)


def failures(told: Told) -> list[Row]:
    return [row for row in told["runs"] if row["status"] != "ok"]


def weights_finding(told: Told, reads: str) -> str:
    """For which of the two models a count came only with weights in memory."""
    if reads == "config":
        return "no, reads a configuration"
    rows = {title: counted(told, subject) for title, subject in (("Llama", "dense-sdpa"), ("DeepSeek-OCR", "ocr"))}
    wanting = [title for title, row in rows.items() if row is None or row["weights"] != "none"]
    return "no" if not wanting else "yes" if len(wanting) == len(rows) else f"for {wanting[0]}"


def attention_finding(record: Record, told: Told, weights: str) -> str:
    row = _count(told, "fused-attention", weights)
    if row["status"] != "ok":
        return row["reason"]
    linear, tokens = record["small_sizes"]["attention_linear_flops"], record["small_sizes"]["attention_tokens"]
    if row["flops"] == record["exact_flops"]["fused-attention"]:
        return "counted"
    if row["flops"] == linear:
        return "attention left out"
    if row["flops"] * tokens == linear:
        return "attention left out, the linear map counted for one token"
    return _of_exact(record, row)


def direct_call_finding(record: Record, told: Told) -> str:
    row = _count(told, "direct-call", "random")
    if row["status"] != "ok":
        return row["reason"]
    share = "in the total" if row["flops"] == record["exact_flops"]["direct-call"] else _of_exact(record, row)
    if row["flops_by_module"] is None:
        return share
    own = row["flops_by_module"].get("first", 0)
    is_whole = isclose(own, record["small_sizes"]["one_of_two_linear_flops"], rel_tol=0.01)  # some print three digits
    return f"{share}, {'with a row of its own' if is_whole else 'no row of its own'}"


def experts_finding(record: Record, told: Told, weights: str) -> str:
    row = _count(told, "experts", weights)
    if row["status"] != "ok":
        return str(row["reason"])
    return "counted" if row["flops"] == record["exact_flops"]["experts"] else _of_exact(record, row)


def _of_exact(record: Record, row: Row) -> str:
    return f"{row['flops'] / record['exact_flops'][row['subject']]:.1%} of exact"


def _counts(told: Told, subject: str) -> list[Row]:
    return [row for row in told["runs"] if row["question"] == "count" and row["subject"] == subject]


def _count(told: Told, subject: str, weights: str) -> Row:
    (row,) = (row for row in _counts(told, subject) if row["weights"] == weights)
    return row


NOTHING = "(nothing came)"
BESIDES = {
    "memory": "memory",
    "kv-cache": "KV cache",
    "predicted-time": "time on a GPU",
    "serving": "serving",
    "picture": "picture",
    "backward": "backward",
    "values": "values of tensors",
    "activations": "activations",
    "measured-kernels": "measured kernels",
}
SHORT_BESIDES = ("memory", "kv-cache", "predicted-time", "serving", "picture", "backward", "values")

TEMPLATE = Path(__file__).parent / "peer_probes" / "page.md"
MODEL_COLUMNS = ("tool", "model", "weights", "its own figure", "as FLOPs", "of exact", "wall s", "CPU s", "peak GB")
TRAP_COLUMNS = (
    "tool", "fused attention, without memory", "fused attention, with weights", "child called by `forward`",
    "experts, without memory", "experts, with weights",
)  # fmt: skip
SHORT_COLUMNS = (
    "tool", "Llama-3.2-1B, 512 tokens", "s, GB", "DeepSeek-OCR, a page", "s, GB", "needs weights", "gives besides"
)  # fmt: skip


def page_of(record: Record) -> str:
    exact = record["exact_flops"]
    words = {
        "versions": _versions(record),
        "short_table": short_table(record).strip(),
        "dense_tokens": str(record["small_sizes"]["dense_tokens"]),
        "dense_exact": f"{exact['dense-sdpa']:,}",
        "dense_table": _model_table(record, ("dense-sdpa", "dense-eager")),
        "ocr_exact": f"{exact['ocr']:,}",
        "ocr_table": _model_table(record, ("ocr",)),
        "trap_table": _trap_table(record),
        "besides_table": _besides_table(record),
        "failed_offers": " ".join(_failed_offers(record)),
    }
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(words | _better(record))
    return re.sub(r"\n{3,}", "\n\n", page)  # what is empty leaves no hole


def short_table(record: Record) -> str:
    """Eight rows: what is found, what it costs to find it, and what else each tool gives."""
    rows: list[list[str]] = []
    for name, told in record["peers"].items():
        if "failure" in told:
            rows.append([PEERS[name].title, f"not asked: {told['failure']}", *[""] * 5])
            continue
        dense, page = counted(told, "dense-sdpa"), counted(told, "ocr")
        asked = ((dense, "dense-sdpa"), (page, "ocr"))
        besides = ", ".join(BESIDES[kind] for kind in SHORT_BESIDES if offer(told, kind) is not None)
        shares = [_share(record, row) if row else _no_share(told, subject) for row, subject in asked]
        cells = [PEERS[name].title, shares[0], _spent(dense), shares[1], _spent(page)]
        rows.append([*cells, weights_finding(told, PEERS[name].reads), besides or "nothing more"])
    return table(SHORT_COLUMNS, rows, "lrrrrll") + "\n"


def _versions(record: Record) -> str:
    made = dict(record["made_with"])
    threads, python = made.pop("threads"), made.pop("python")
    named = ", ".join(f"{name} {version}" for name, version in made.items())
    return f"Made with Python {python}, {named}, with {threads} threads of a CPU and no GPU."


def _model_table(record: Record, subjects: tuple[str, ...]) -> str:
    rows: list[list[str]] = []
    for name, told in record["peers"].items():
        for subject in subjects:
            rows += [_model_row(record, name, subject, row) for row in _counts(told, subject)]
        if "failure" in told:
            rows.append([PEERS[name].title, "", "", _cell(told["failure"]), *[""] * 5])
    return table(MODEL_COLUMNS, rows, "lllr")


def _model_row(record: Record, name: str, subject: str, row: Row) -> list[str]:
    cells = [PEERS[name].title, f"`{subject}`", row["weights"] if PEERS[name].reads == "module" else "configuration"]
    if row["status"] == "ok":
        cells += [f"{row['printed']:,.0f} {row['unit']}", f"{row['flops']:,}", _share(record, row)]
    else:
        cells += [_cell(row["reason"]), "", ""]
    return [*cells, str(row["wall_s"]), str(row["cpu_s"]), _gigabytes(row)]


def _trap_table(record: Record) -> str:
    rows = []
    for name, told in record["peers"].items():
        if "failure" in told or PEERS[name].reads != "module":
            continue
        cells = [
            PEERS[name].title,
            attention_finding(record, told, "none"),
            attention_finding(record, told, "random"),
            direct_call_finding(record, told),
            experts_finding(record, told, "none"),
            experts_finding(record, told, "random"),
        ]
        rows.append([_cell(text) for text in cells])
    return table(TRAP_COLUMNS, rows, "l")


def _besides_table(record: Record) -> str:
    kinds = ("memory", "kv-cache", "predicted-time", "serving", "picture", "backward")
    asked = {name: told for name, told in record["peers"].items() if "failure" not in told}
    rows = [(PEERS[name].title, *(_besides(told, kind) for kind in kinds)) for name, told in asked.items()]
    return table(("tool", *(BESIDES[kind] for kind in kinds)), rows, "l")


def _besides(told: Mapping[str, Any], kind: str) -> str:
    offered = offer(told, kind)
    if offered is not None:
        return _cell(f"{_figure(offered)}: {offered['of']}")
    names = told["names"][kind]
    if not names:
        return "no"
    return f"only names: {', '.join(f'`{name}`' for name in names[:3])}{' and more' if len(names) > 3 else ''}"


def _failed_offers(record: Record) -> Iterator[str]:
    for name, told in record["peers"].items():
        for row in failures(told):
            if row["question"] != "count":
                wanted = BESIDES[row["question"]]
                yield f"{PEERS[name].title} was asked for {wanted} and failed: {_cell(row['reason'])}."


def _better(record: Record) -> dict[str, str]:
    peers = record["peers"]

    def given(name: str, kind: str) -> str:
        offered = offer(peers[name], kind)
        return NOTHING if offered is None else f"{_figure(offered)}, {offered['of']}"

    def of(name: str, subject: str, say: Callable[[Row], str]) -> str:
        row = counted(peers[name], subject)
        return NOTHING if row is None else say(row)

    one_head = record["small_sizes"]["dense_flops_with_one_head_position"]
    return {
        "torchinfo_call": of("torchinfo", "dense-sdpa", lambda row: f"{row['call_wall_s']:.1f} s"),
        "fvcore_silent": of("fvcore", "ocr", lambda row: str(len(row["left_out"]))),
        "torch_backward": given("torch-counter", "backward"),
        "calflops_both": of("calflops", "dense-sdpa", lambda row: f"{row['printed']:,.0f} next to {row['flops']:,}"),
        "torchlens_values": given("torchlens", "values"),
        "viewer_share": of("llm-viewer", "dense-sdpa", lambda row: f"{row['flops'] / one_head:.2%}"),
        "aic_kernels": given("aiconfigurator", "measured-kernels"),
        "aic_serving": given("aiconfigurator", "serving"),
    }


def _figure(offered: Row) -> str:
    if offered["unit"] == "bytes":
        large = offered["figure"] >= 1e9
        return f"{offered['figure'] / (1e9 if large else 1e6):.3g} {'GB' if large else 'MB'}"
    if offered["unit"] == "s":
        return f"{offered['figure'] * 1e3:.2g} ms"
    return f"{offered['figure']:,.0f} {offered['unit']}"


def _no_share(told: Mapping[str, Any], subject: str) -> str:
    """Why there is none: the tool answers, but counts no FLOPs, or it does not answer."""
    reasons = [str(row["reason"]) for row in failures(told) if row["subject"] == subject]
    return "counts no FLOPs" if any(reason.startswith("LookupError") for reason in reasons) else "no answer"


def _share(record: Record, row: Row) -> str:
    exact = record["exact_flops"][row["subject"]]
    share = row["flops"] / exact
    return "exact" if row["flops"] == exact else f"{share:.1%}" if abs(share - 1) > 0.001 else f"{share:.3%}"


def _spent(row: Row | None) -> str:
    return "" if row is None else f"{row['wall_s']:.0f}, {_gigabytes(row)}"


def _gigabytes(row: Row) -> str:
    return f"{row['peak_bytes'] / 1e9:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


DATA, PAGE = DOCS / "data" / "peers.json", DOCS / "evidence" / "other-tools.md"
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
        PAGE.write_text(page_of(json.loads(DATA.read_text())), encoding="utf-8")
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
        PAGE.write_text(page_of(record), encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    flags = {"docs": "write the record and the page", "render": "write the page from the record that is there"}
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
