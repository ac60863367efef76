"""TorchLens on DeepSeek-OCR at full width with 3 decoder layers, compared with hooks on the same weights.

    python benchmarks/full_width_torchlens.py --out docs/data/full_width_torchlens.json

Needs about 6 GB. Leaves with 1 when calls or edges differ, or shapes in a module whose difference has no name.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.tracer_overhead import full_width_target
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer

# Vision features are written into a view of the hidden states; TorchLens then takes the whole for that view.
WRITTEN_THROUGH_A_VIEW = {"model.layers.0", "model.layers.0.input_layernorm"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = full_width_target()
    hooks = HooksTracer().trace(target)
    tracer = TorchLensTracer()
    started = time.perf_counter()
    seen = tracer.trace(target)
    seconds = time.perf_counter() - started
    unequal = differing_modules(hooks, seen)
    record = {
        "threads": options.threads,
        "seconds": round(seconds, 1),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "module_calls": sum(seen.call_counts.values()),
        "ops": seen.coverage.ops if seen.coverage is not None else None,
        "calls_equal": seen.call_counts == hooks.call_counts,
        "edges_equal": seen.edges == hooks.edges,
        "problems": seen.problems(),
        "modules_with_other_shapes": sorted(unequal),
    }
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)
    return int(not (record["calls_equal"] and record["edges_equal"]) or unequal != WRITTEN_THROUGH_A_VIEW)


def differing_modules(hooks: CallGraph, seen: CallGraph) -> set[str]:
    """Modules whose distinct tensors differ, cache tensors apart, which TorchLens finds in some objects only."""
    return {
        path
        for path in hooks.call_counts
        for one, other in (
            (hooks.input_metadata[path], seen.input_metadata[path]),
            (hooks.output_metadata[path], seen.output_metadata[path]),
        )
        if distinct(one) != distinct(other)
    }


def distinct(observed: Any) -> set[Any]:
    return {
        frozenset((meta.shape, meta.dtype) for meta in row.tensors if not is_cached(meta.shape)) for row in observed
    }


def is_cached(shape: tuple[int, ...]) -> bool:
    """Keys or values of one layer: batch, 10 heads, tokens, 128."""
    return len(shape) == 4 and shape[1] == 10 and shape[3] == 128


if __name__ == "__main__":
    sys.exit(main())
