"""Make vLLM's environment from nothing and replay a small traffic for every attention kind and every counted model.

    python scripts/vllm_end_to_end.py [--folder FOLDER | --python PYTHON] [--only TEXT]

Without an option the environment is made in a temporary folder, which takes 3.5 GB, and removed at the end. `--folder`
makes it there and leaves it; `--python` takes one that is there. Each case is asked as `llm-perf-opt serve --traffic`
asks it: trace, step times, vLLM's own configuration, cache manager and scheduler. Fails with every case that did not
run. Takes about ten minutes of one core after the environment is made.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.api.capacity import CapacityAnswer, capacity
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.environment import VLLM
from llm_perf_opt.serving.engine_process.make_environment import make

KINDS = ("dense", "sliding window", "sinks", "latent", "sparse latent", "linear", "hybrid", "encoder")
REQUESTS, OUTPUT = 6, 8
TEXT = f"3 at once prompt=600 output={OUTPUT} requests={REQUESTS}"
PAGES = f"3 at once pages=640x640 output={OUTPUT} requests={REQUESTS}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on devices. `family` is its name on the accuracy pages, where they count it."""

    model: str
    devices: str
    kinds: tuple[str, ...]
    family: str | None = None
    traffic: str = TEXT
    asked: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(model="meta-llama/Llama-3.1-8B", devices="h100-sxm", kinds=("dense",), family="llama-3.1-8b"),
    Case(
        model="meta-llama/Llama-3.1-70B",
        devices="4x h100-sxm",
        kinds=("dense",),
        family="llama-3.1-70b",
        asked={"tp": 4},
    ),
    Case(model="Qwen/Qwen3-32B", devices="2x h100-sxm", kinds=("dense",), family="qwen3-32b", asked={"tp": 2}),
    Case(
        model="Qwen/Qwen3-30B-A3B",
        devices="2x rtx-pro-6000-bw-server",
        kinds=("dense",),
        family="qwen3-30b-a3b",
        asked={"tp": 1, "attention_dp": 2},
    ),
    Case(  # four key heads on eight ranks
        model="Qwen/Qwen3-235B-A22B",
        devices="8x h100-sxm",
        kinds=("dense",),
        family="qwen3-235b-a22b",
        asked={"tp": 8, "ep": 1},
    ),
    Case(
        model="MiniMaxAI/MiniMax-M2.5",
        devices="8x h200-sxm",
        kinds=("dense",),
        family="minimax-m2.5",
        asked={"tp": 8, "ep": 8},
    ),
    Case(model="google/gemma-3-12b-it", devices="h100-sxm", kinds=("sliding window",)),
    Case(model="openai/gpt-oss-20b", devices="h100-sxm", kinds=("sliding window", "sinks")),
    Case(
        model="openai/gpt-oss-120b",
        devices="2x h100-sxm",
        kinds=("sliding window", "sinks"),
        family="gpt-oss-120b",
        asked={"tp": 2, "ep": 1},
    ),
    Case(
        model="deepseek-ai/DeepSeek-R1",
        devices="8x h200-sxm",
        kinds=("latent",),
        family="deepseek-r1",
        asked={"tp": 8, "ep": 8},
    ),
    Case(
        model="moonshotai/Kimi-K2.5",
        devices="8x h200-sxm",
        kinds=("latent",),
        family="kimi-k2.5",
        asked={"tp": 8, "ep": 8},
    ),
    Case(
        model="deepseek-ai/DeepSeek-V3.2",
        devices="8x h200-sxm",
        kinds=("sparse latent",),
        asked={"tp": 8, "ep": 1},
    ),
    Case(
        model="zai-org/GLM-5",
        devices="8x b200-sxm",
        kinds=("sparse latent",),
        family="glm-5",
        asked={"tp": 8, "ep": 1, "weights": "fp8"},
    ),
    Case(model="state-spaces/mamba2-2.7b", devices="h100-sxm", kinds=("linear",)),
    Case(model="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", devices="h100-sxm", kinds=("hybrid",), asked={"tp": 1}),
    Case(model="Qwen/Qwen3-Next-80B-A3B-Instruct", devices="4x h100-sxm", kinds=("hybrid",), asked={"tp": 4, "ep": 1}),
    Case(
        model="Qwen/Qwen3.5-397B-A17B",
        devices="8x h200-sxm",
        kinds=("hybrid",),
        family="qwen3.5-397b-a17b",
        asked={"tp": 8, "ep": 1},
    ),
    Case(model="deepseek-ocr", devices="h100-sxm", kinds=("encoder",), family="deepseek-ocr", traffic=PAGES),
)


def problem(answer: CapacityAnswer) -> str | None:
    """What is wrong with an answer: every request is answered with all its tokens, by vLLM itself; None: nothing."""
    outcome = answer.best.outcome
    if outcome.output_tokens != REQUESTS * OUTPUT:
        return f"{outcome.output_tokens} of {REQUESTS * OUTPUT} tokens were generated"
    if not answer.engine.get("cache_blocks"):
        return "vLLM tells no blocks of its cache"
    return None


def tried(case: Case, ask: Callable[..., CapacityAnswer] = capacity) -> str | None:
    """Why a case did not run; None: it did."""
    try:
        return problem(ask(case.model, case.devices, case.traffic, **case.asked))
    except PerfOptError as error:
        return f"{error.what} {error.why}"


@contextmanager
def environment(folder: Path | None, python: Path | None) -> Iterator[Path]:
    """The Python of an environment: the given one, or of one that is made, in a folder that is kept or in a scratch."""
    if python is not None:
        yield python
        return
    if folder is not None:
        make(folder)
        yield folder / "bin" / "python"
        return
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "vllm"
        make(made)
        yield made / "bin" / "python"


def run(cases: Sequence[Case], ask: Callable[..., CapacityAnswer] = capacity) -> dict[str, str]:
    """Every case, one after another, with a line for each. Model -> why it did not run."""
    failed = {}
    for case in cases:
        began = time.monotonic()
        why = tried(case, ask)
        if why is not None:
            failed[case.model] = why
        said = "ok" if why is None else f"FAILED: {why}"
        print(f"{case.model} on {case.devices} ({', '.join(case.kinds)}): {time.monotonic() - began:.0f} s, {said}")
        sys.stdout.flush()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--folder", type=Path, help="make the environment there, and leave it")
    where.add_argument("--python", type=Path, help="the Python of an environment that is there")
    parser.add_argument("--only", default="", help="models with this text in their names")
    given = parser.parse_args()
    cases = [case for case in CASES if given.only.lower() in case.model.lower()]
    began = time.monotonic()
    with environment(given.folder, given.python) as python:
        print(f"Environment: {python}, {time.monotonic() - began:.0f} s")
        os.environ[VLLM.variable] = str(python)
        failed = run(cases)
    print(f"{len(cases) - len(failed)} of {len(cases)} cases ran, {time.monotonic() - began:.0f} s in all.")
    for model, why in failed.items():
        print(f"Did not run: {model}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
