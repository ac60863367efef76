"""How soon an answer is there: later questions, first questions, ten thousand in one process, and two peers.

Each run is a process of its own with a store of its own, so nothing of the user's is read or written. A figure is the
median of the rounds; wall time is that of a machine with nothing else to do, and CPU time says how far it was busy.

    python -m benchmarks.instant                        every section; prints the tables
    python -m benchmarks.instant --docs --aiconfigurator FOLDER --accelerate FOLDER
                                                        and writes them into docs/evidence/performance.md
    python -m benchmarks.instant --section later --rounds 3

FOLDER is a virtual environment with that tool; without it the row says that it was not run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import runner
from benchmarks.pages import ROOT
from benchmarks.speed import Row, markdown, write_page

GPUS = "l4,l40s,a100-sxm-80g,h100-sxm,h200-sxm,b200-sxm"
DEMAND = ("--input", "2000", "--output", "300", "--rate", "20/s", "--slo", "ttft=2s,tpot=50ms")
SERVE = ("serve", "Qwen/Qwen3-32B", "--gpus", GPUS, *DEMAND)
_USERS, _INPUTS = (*range(1, 100), 512), (*range(1024, 32_768, 648), 32_768)  # 100 of 50, prefill and decode
GRID = ("--users", ",".join(map(str, _USERS)), "--input", ",".join(map(str, _INPUTS)), "--points", "1000")
SWEEP = ("sweep", "Qwen/Qwen3-32B", *GRID)
TRACE = ("trace", "Qwen/Qwen3-32B", "--prompt-tokens", "1000", "--device", "h100-sxm")
TRACED = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3")
CALLED = ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B")
LARGE = ("torch", "transformers", "duckdb")  # what a question that is answered from the store does without
TABLES = ("aiconfigurator_core", "aisimulate")
LIMIT_S, PEER_LIMIT_S = 1800.0, 120.0  # of one process
MOST_WHEEL_MB = 20.0
MOST_OF_PEERS = 3  # rounds: the planner takes half a minute

_COMMAND = "from llm_perf_opt.__main__ import main; main()"
_WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({(*LARGE, *TABLES)!r})); "
_TRACE_TIMES = re.compile(r"module calls in ([\d.]+) (ms|s)")
# What the command `accelerate estimate-memory` does once the Hub has answered: an empty model, and its sizes.
_ESTIMATE = """
import sys
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModelForCausalLM
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]))
print(calculate_maximum_sizes(model))
"""


# ---- one process


def spent(command: Sequence[str], store: str, limit_s: float = LIMIT_S) -> tuple[float, float, str, str]:
    """Wall and CPU seconds of a command that has to succeed, and what it wrote to both streams."""
    surroundings = {**os.environ, "HF_HUB_OFFLINE": "1", "LLM_PERF_OPT_CACHE": store}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files are what an installed package has
    before, began = _children_s(), time.perf_counter()
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=limit_s, check=False)
    wall, cpu = time.perf_counter() - began, _children_s() - before
    if done.returncode not in (0, 3):  # 3: an SLO that no fleet meets is an answer too
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{done.stderr[-2000:]}")
    return wall, cpu, done.stdout, done.stderr


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def ours(*arguments: str, before: str = "", flags: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *flags, "-c", before + _COMMAND, *arguments]


def medians(rounds: int, once: Callable[[], tuple[float, float, str, str]]) -> Row:
    runs = [once() for _ in range(rounds)]
    return {
        "wall s": statistics.median(wall for wall, *_ in runs),
        "CPU s": statistics.median(cpu for _, cpu, *_ in runs),
    }


@contextmanager
def own_store() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def large_imports(arguments: Sequence[str], store: str) -> int:
    """How many of the large libraries a command loads."""
    *_, stderr = spent(ours(*arguments, flags=("-X", "importtime")), store)
    loaded = {line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:")}
    return len(loaded & set(LARGE))


# ---- sections


def later(rounds: int, given: argparse.Namespace) -> list[Row]:
    """Questions about a model that was traced once."""
    rows = []
    with own_store() as store:
        for words, limit, arguments in (
            ("`serve` on six GPUs", 1.0, SERVE),
            ("`sweep` of 10,000 points", 0.6, SWEEP),
            ("`trace --device` of a stored workload", 0.5, TRACE),
        ):
            first = spent(ours(*arguments), store)
            row = {"question": words, "first, wall s": first[0], "limit s": limit}
            row |= medians(rounds, partial(spent, ours(*arguments), store))
            rows.append(row | {"torch, transformers, duckdb loaded": large_imports(arguments, store)})
    return rows


def light(rounds: int, given: argparse.Namespace) -> list[Row]:
    """First questions about a model of the catalogue where torch, transformers and the tables cannot be imported."""
    rows = []
    for words, arguments in (("`serve` on six GPUs", SERVE), ("`serve` on one", _on_one())):

        def once(arguments: Sequence[str] = arguments) -> tuple[float, float, str, str]:
            with own_store() as store:
                return spent(ours(*arguments, before=_WITHOUT), store)

        rows.append({"question": words, "limit s": 1.5, **medians(rounds, once)})
    return rows


def _on_one() -> tuple[str, ...]:
    return tuple("h100-sxm" if word == GPUS else word for word in SERVE)


def size(rounds: int, given: argparse.Namespace) -> list[Row]:
    """The package as a wheel packs it: every file, deflated."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted((ROOT / "src").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(ROOT / "src"))
    return [{"wheel": "llm_perf_opt", "MB": packed.tell() / 1e6, "limit MB": MOST_WHEEL_MB}]


def tracing_s(stderr: str) -> float:
    """What a command said that the traces of all phases took."""
    return sum(float(number) / (1000 if unit == "ms" else 1) for number, unit in _TRACE_TIMES.findall(stderr))


def traced(rounds: int, given: argparse.Namespace) -> list[Row]:
    """First questions that have to trace, and what the time goes to."""
    rows = []
    libraries = "import torch; from transformers.models.{0} import modeling_{0}"
    for model, family, limit in zip(TRACED, ("llama", "llama", "deepseek_v3"), (4.5, 4.5, 8.0), strict=True):
        command = ours("trace", model, "--prompt-tokens", "1000")
        runs = [spent(command, "off") for _ in range(rounds)]
        imports = medians(rounds, partial(spent, [sys.executable, "-c", libraries.format(family)], "off"))
        tracing = statistics.median(map(tracing_s, (stderr for *_, stderr in runs)))
        wall = statistics.median(wall for wall, *_ in runs)
        rows.append(
            {
                "model": model,
                "limit s": limit,
                "wall s": wall,
                "CPU s": statistics.median(cpu for _, cpu, *_ in runs),
                "import of torch and the model's code s": imports["wall s"],
                "tracing s": tracing,
                "rest s": wall - imports["wall s"] - tracing,
            }
        )
    return rows


def calls(rounds: int, given: argparse.Namespace) -> list[Row]:
    """Many calls of `lpo.serve` in one process."""
    with own_store() as store:
        command = [sys.executable, "-m", "benchmarks.instant", "--in-one-process", str(given.calls)]
        *_, stdout, _ = spent(command, store)
    return [json.loads(stdout.splitlines()[-1])]


def in_one_process(count: int) -> Row:
    """Questions that differ in model, prompt, answer, rate and GPU, on models that are stored."""
    import llm_perf_opt as lpo

    def ask(number: int) -> tuple[float, float]:
        began, began_cpu = time.perf_counter(), time.process_time()
        lpo.serve(
            CALLED[number % len(CALLED)],
            ("h100-sxm", "h200-sxm")[number // 2 % 2],
            input=500 + 100 * (number % 37),
            output=100 + 50 * (number % 11),
            rate=f"{1 + number % 7}/s",
            tp=2,
        )
        return time.perf_counter() - began, time.process_time() - began_cpu

    for number in range(4):
        ask(number)
    seconds, resident = [], []
    for number in range(count):
        seconds.append(ask(number))
        if number + 1 in (count // 10, count):
            resident.append(_resident_bytes())
    return {
        "calls": count,
        "limit ms": 5.0,
        "median ms": 1e3 * statistics.median(wall for wall, _ in seconds),
        "median CPU ms": 1e3 * statistics.median(cpu for _, cpu in seconds),
        "p95 ms": 1e3 * sorted(wall for wall, _ in seconds)[int(0.95 * count)],
        "MB after a tenth": resident[0] / 1e6,
        "MB at the end": resident[-1] / 1e6,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def peers(rounds: int, given: argparse.Namespace) -> list[Row]:
    """The same questions to the field's planner and its memory calculator."""
    from llm_perf_opt.models.huggingface.names import find_model

    folder = find_model("meta-llama/Llama-3.1-8B").folder
    fleet = [
        "--model-path",
        "Qwen/Qwen3-32B",
        "--system",
        "h100_sxm",
        "--backend",
        "vllm",
        "--target-request-rate",
        "20",
    ]
    times = ["--isl", "2000", "--osl", "300", "--ttft", "2000", "--tpot", "50"]
    rows = []
    with own_store() as store:
        spent(ours(*_on_one()), store)
        small = ("trace", "meta-llama/Llama-3.1-8B", "--prompt-tokens", "1000", "--device", "h100-sxm")
        spent(ours(*small), store)
        for question, tool, command in (
            ("fleet of h100-sxm for 20 requests/s", "llm-perf-opt, stored", ours(*_on_one())),
            ("", "aiconfigurator", _in(given.aiconfigurator, "aiconfigurator", "cli", "default", *fleet, *times)),
            ("memory of Llama-3.1-8B", "llm-perf-opt, stored", ours(*small)),
            ("", "accelerate estimate-memory", _in(given.accelerate, "python", "-c", _ESTIMATE, str(folder))),
        ):
            row: Row = {"question": question, "tool": tool}
            rows.append(row | _asked(min(rounds, MOST_OF_PEERS), command, store))
    return rows


def _in(folder: Path | None, program: str, *arguments: str) -> list[str] | None:
    return None if folder is None else [str(folder / "bin" / program), *arguments]


def _asked(rounds: int, command: Sequence[str] | None, store: str) -> Row:
    """Times, or why there are none: a peer that fails must not cost the table."""
    if command is None:
        return {"wall s": "not run", "CPU s": "no environment given"}
    try:
        return medians(rounds, lambda: spent(command, store, PEER_LIMIT_S))
    except subprocess.TimeoutExpired:
        return {"wall s": f"more than {PEER_LIMIT_S:.0f}", "CPU s": ""}
    except SystemExit as failure:
        return {"wall s": "failed", "CPU s": str(failure).strip().splitlines()[-1][:120]}


SECTIONS: dict[str, tuple[str, Callable[[int, argparse.Namespace], list[Row]]]] = {
    "later": ("A later question about a traced model", later),
    "light": ("The first question about a model of the catalogue, without torch, transformers and tables", light),
    "size": ("The wheel", size),
    "traced": ("The first question about a model that has to be traced", traced),
    "calls": ("`lpo.serve` again and again", calls),
    "peers": ("Next to other tools", peers),
}


def main() -> None:
    parser = runner.parser(__doc__, docs="write the tables into docs/evidence/performance.md")
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--aiconfigurator", type=Path, metavar="FOLDER", help="virtual environment with aiconfigurator")
    parser.add_argument("--accelerate", type=Path, metavar="FOLDER", help="one with accelerate, torch, transformers")
    parser.add_argument("--in-one-process", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.in_one_process:
        print(json.dumps(in_one_process(given.in_one_process)))
        return
    for section in given.section or SECTIONS:
        title, measure = SECTIONS[section]
        text = markdown(measure(given.rounds, given))
        print(f"{title}\n\n{text}\n", flush=True)
        if given.docs:
            write_page(section, text)


if __name__ == "__main__":
    main()
