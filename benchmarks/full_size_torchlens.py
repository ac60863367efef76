"""TorchLens on DeepSeek-OCR at full size: all layers, random bfloat16 weights, metadata alone.

    python benchmarks/full_size_torchlens.py --out docs/data/full_size_torchlens.json
    python benchmarks/full_size_torchlens.py --mode gundam
    python benchmarks/full_size_torchlens.py --folder DIR --phase prefill

By default it runs the blueprint; with `--folder` the released code in DIR, which needs the packages that it imports.
Needs about 9 GB. Hooks run first on the same weights; it leaves with 1 when calls or edges are not the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from llm_perf_opt.core.plugins import FOLDERS, make_workload
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter

T = TypeVar("T")
IMAGE = "1240x1754"  # an A4 page at 150 dots per inch; six crops in the mode gundam


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--folder", type=Path, help="the released code, which is run")
    parser.add_argument("--mode", default="base")
    parser.add_argument("--phase", action="append", help="prefill, decode; default: both")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    adapter = DeepSeekOcrAdapter() if options.folder is None else FOLDERS.get("huggingface")(options.folder, True)
    targets = adapter.targets(make_workload(adapter, image=IMAGE, mode=options.mode))
    hooks, torchlens = HooksTracer(), TorchLensTracer()
    phases = {
        target.phase: phase_record(target, hooks, torchlens)
        for target in targets
        if options.phase is None or target.phase in options.phase
    }
    record = {
        "model": "blueprint" if options.folder is None else "released code",
        "mode": options.mode,
        "threads": options.threads,
        "peak_rss_bytes": max(phase["peak_rss_bytes"] for phase in phases.values()),
        "phases": phases,
    }
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)
    return int(not all(phase["calls_equal"] and phase["edges_equal"] for phase in phases.values()))


def phase_record(target: Target, hooks: HooksTracer, torchlens: TorchLensTracer) -> dict[str, Any]:
    timed, _ = measured(lambda: hooks.trace(target))
    assert timed.calls is not None
    peak_without = peak_rss_bytes()
    seen, seconds = measured(lambda: torchlens.trace(target))
    return {
        "module_calls": sum(seen.call_counts.values()),
        "ops": None if seen.coverage is None else seen.coverage.ops,
        "seconds_of_forward_under_hooks": round(timed.calls.ended_ns[0] / 1e9, 1),
        **seconds,
        "peak_rss_bytes_with_hooks": peak_without,
        "peak_rss_bytes": max(peak_without, peak_rss_bytes()),
        "calls_equal": seen.call_counts == timed.call_counts,
        "edges_equal": seen.edges == timed.edges,
        "problems": seen.problems(),
    }


def measured(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, {
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
