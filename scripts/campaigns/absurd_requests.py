"""Absurd requests on the command line: answered or refused within 10 s and 1 GiB above an idle process.

Each runs in a fork of this process, in which torch is loaded. Seconds are those of the processor, so that a busy
machine is no finding; what takes twelve times as long on the clock is ended.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from llm_perf_opt.core.work_limits import process_memory_bytes
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.rows import Row
from scripts.campaigns.verbs import CONFIG, Ended, run_here

NAME = "absurd_requests"
MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
PATIENCE_S = 120.0
QUICK = 4
_PEAK = "VmHWM:"
_BIG = 10**9
_MODELS = {"tiny": {}, "deep": {"num_hidden_layers": 10**6}, "wide": {"hidden_size": 10**12}}
_RUSH = 'rate = "1000000000/s"\nprompt = 9\noutput = 9\nfor = "9d"\n'
_SIZES = {
    "decode steps": f"--decode-steps {_BIG}",
    "prompt tokens": f"--prompt-tokens {_BIG}",
    "batch": f"--batch {_BIG}",
    "all of them": f"--batch {_BIG} --prompt-tokens {_BIG} --decode-steps {_BIG}",
}
_VERBS = {
    "trace": "trace {}",
    "cost": "cost {}",
    "report": "report {}",
    "predict": "predict {} --device h100-sxm",
    "export": "export {} --part model --check export",
    "hooks": "trace {} --tracer hooks",
}
_OTHERS = {
    "a long context for a large batch": "trace tiny --batch 64 --prompt-tokens 1024000",
    "the same within 2 GiB": "trace tiny --batch 64 --prompt-tokens 1024000 --max-memory 2",
    "sweep to a million tokens": "sweep tiny --batch 1..64 --context 1k..1000k",
    "sweep to a batch of 10^9": f"sweep tiny --batch 1..{_BIG} --context 16..64",
    "sweep to 2^40 tokens": "sweep tiny --batch 1 --context 1..1048576m",
    "sweep of a million rows": "sweep tiny --batch 1..100000 --context 1..100000 --points 1000",
    "sweep with 10^9 traces": f"sweep tiny --batch 1..4 --context 16..64 --traces {_BIG}",
    "sweep of no range": "sweep tiny --batch 9..1 --context 1..2",
    "crops, trace": "trace deepseek-ocr --crops 99x99",
    "crops, pages": "pages deepseek-ocr --grids 99x99",
    "an image of 10^10 pixels": "trace deepseek-ocr --image 100000x100000",
    "a thousand grids": "pages deepseek-ocr --grids " + ",".join(["9x9"] * 1000),
    "plan for 10^6 devices": "plan tiny --devices 1000000xh100-sxm --global-batch 2 --prompt-tokens 4",
    "plan for 10^9 sequences": f"plan tiny --devices 2xh100-sxm --global-batch {_BIG} --prompt-tokens 4",
    "plan with 10^9 plans": f"plan tiny --devices 8xh100-sxm --global-batch 2 --prompt-tokens 4 --max-plans {_BIG}",
    "plan for traffic of 10^9 a second": "plan tiny --devices 2xh100-sxm --traffic rush.toml",
    "a cluster of 10^12": "devices cluster 1000000000000xh100-sxm",
    "profile of 10^9 tokens": f"profile model=tiny workload.max_new_tokens={_BIG}",
    "profile of a long prompt": f"profile model=tiny workload.prompt_tokens={_BIG}",
    "profile of 10^6 layers": "profile model=deep",
    "profile repeated 10^9 times": f"profile model=wide run.repeats={_BIG}",
    "a name of a million letters": "trace " + "x" * 100_000,
    "a word of a million letters": "models --search " + "y" * 100_000,
    "no seconds": "trace tiny --max-seconds 0",
    "no ops": "trace tiny --max-ops 1",
    "no memory": "trace tiny --max-memory 0.001",
}


def requests() -> dict[str, str]:
    """Name -> words."""
    found = {
        f"10^9 {what}, {verb}": f"{words.format('tiny')} {options}"
        for verb, words in _VERBS.items()
        for what, options in _SIZES.items()
    }
    found |= {f"{model}, {verb}": words.format(model) for verb, words in _VERBS.items() for model in ("deep", "wide")}
    return {**found, **_OTHERS}


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row."""
    del seed  # every request is tried
    chosen = list(requests().items())[:: len(requests()) // QUICK] if quick else list(requests().items())
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        for model, fields in _MODELS.items():
            (place / model).mkdir()
            (place / model / "config.json").write_text(json.dumps({**CONFIG, **fields}), "utf-8")
        (place / "rush.toml").write_text(_RUSH, "utf-8")
        with quiet():
            run_here("trace tiny --prompt-tokens 4", place)
        tried = {name: _tried(words, place) for name, words in chosen}
    findings = [f"{name}: {found}" for name, one in tried.items() for found in one.findings]
    slowest, largest = (
        max(tried, key=lambda name: getattr(tried[name], field)) for field in ("seconds", "above_bytes")
    )
    what = (
        f"answered or refused within {MOST_SECONDS:.0f} s and {MOST_BYTES >> 30} GiB; "
        f"the longest {tried[slowest].seconds:.1f} s ({slowest}), "
        f"the largest {tried[largest].above_bytes / 2**30:.2f} GiB ({largest})"
    )
    return [Row(campaign=NAME, what=what, tried=len(chosen), findings=findings)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one request took, and what went wrong with it."""

    findings: list[str]
    seconds: float = 0.0
    above_bytes: int = 0


def _tried(words: str, place: Path) -> Tried:
    """One request, in a child."""
    file = place / "found.json"
    file.unlink(missing_ok=True)
    if (pid := os.fork()) == 0:
        try:
            file.write_text(json.dumps(asdict(_inside(words, place))), "utf-8")
        finally:
            os._exit(0)
    began = time.monotonic()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > PATIENCE_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Tried(findings=[f"not over after {PATIENCE_S:.0f} s"], seconds=PATIENCE_S)
        time.sleep(0.02)
    if not file.is_file():
        return Tried(findings=["the process ended without a word"])
    return Tried(**json.loads(file.read_text("utf-8")))


def _inside(words: str, place: Path) -> Tried:
    with quiet():
        _forget_peak()
        idle, began = process_memory_bytes() or 0, time.process_time()
        ended = run_here(words, place)
        seconds, above_bytes = time.process_time() - began, _peak_bytes() - idle
    return Tried(findings=[*judged(ended, seconds, above_bytes)], seconds=seconds, above_bytes=above_bytes)


def judged(ended: Ended, seconds: float, above_bytes: int) -> Iterator[str]:
    """Whether it was answered, or refused with a reason, and within the bounds."""
    if ended.is_traceback or ended.code not in (0, 1, 2):
        yield f"exit code {ended.code}: {ended.err.strip()[-200:]!r}"
    elif ended.code and "rror" not in ended.err:
        yield f"refused without a reason: {ended.err[-200:]!r}"
    if seconds > MOST_SECONDS:
        yield f"took {seconds:.1f} s"
    if above_bytes > MOST_BYTES:
        yield f"took {above_bytes / 2**30:.2f} GiB"


def _forget_peak() -> None:
    """The kernel begins anew with the largest memory that this process held."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text("ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PEAK))
