"""A real run of full-size DeepSeek-OCR on the CPU, random bfloat16 weights, compared with the facts and with ghosts.

    python benchmarks/full_size_hooks.py --out docs/data/full_size_hooks.json

Needs about 8 GB and a few minutes. Base mode: prefill of one 1024 x 1024 view, then one decode step. Prints the record
and leaves with 1 when anything differs that routing does not explain.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrWorkload
from llm_perf_opt.weightless import ReplayRouting

FACTS = Path(__file__).parent.parent / "tests" / "facts" / "deepseek_ocr" / "callgraph-base.json"
EXPERT = re.compile(r"\.mlp\.experts\.\d+")
WORKLOAD = DeepSeekOcrWorkload(image="1240x1754", mode="base")
EXPERTS = 64
CACHE = "cache"
Shapes = dict[str, set[tuple[Any, ...]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tracer, facts = HooksTracer(), json.loads(FACTS.read_text())
    phases = {}
    for target in DeepSeekOcrAdapter().targets(WORKLOAD):
        started = time.perf_counter()
        real = tracer.trace(target)
        seconds = time.perf_counter() - started
        phases[target.phase] = phase_record(
            real, facts["prefill" if target.phase == "prefill" else "decode_step"], seconds
        )
    record = {"threads": options.threads, "peak_rss_bytes": peak_rss_bytes(), "phases": phases}
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)
    return int(any(phase["differences"] for phase in phases.values()))


def phase_record(real: CallGraph, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    assert real.calls is not None
    weightless = weightless_twin(real)
    return {
        "seconds_with_build": round(seconds, 1),
        "seconds_of_forward": round(real.calls.ended_ns[0] / 1e9, 1),
        "module_calls": sum(real.call_counts.values()),
        "modules_outside_experts": len(outside(real.call_counts)),
        "differences": [*real.problems(), *from_facts(real, facts), *from_weightless(real, weightless)],
    }


def weightless_twin(real: CallGraph) -> CallGraph:
    """The same phase without weights, every expert given as many rows as in the real run."""
    (target,) = [one for one in DeepSeekOcrAdapter().targets(WORKLOAD) if one.phase == real.phase]
    return weightless_trace(target, expert_rows(real))


def weightless_trace(target: Target, rows: list[list[int]]) -> CallGraph:
    return WeightlessTracer(routing=ReplayRouting(rows), device="cpu").trace(target)


def expert_rows(graph: CallGraph) -> list[list[int]]:
    """Rows per expert, layer by layer, as the real router chose."""
    rows: dict[int, list[int]] = {}
    for path, observed in graph.input_metadata.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", path):
            rows.setdefault(int(match[1]), [0] * EXPERTS)[int(match[2])] = observed[0].tensors[0].shape[0]
    return [rows[layer] for layer in sorted(rows)]


def outside(counts: Any) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not EXPERT.search(name)}


def from_facts(real: CallGraph, facts: dict[str, Any]) -> list[str]:
    """What the released code did otherwise, routed experts apart."""
    found = []
    for name, ours in (("call_counts", real.call_counts), ("edges", real.edges)):
        if outside(ours) != outside(facts[name]):
            found.append(f"{name} differ from the facts")
    for path, observations in facts["io"].items():
        if EXPERT.search(path):
            continue
        for side, seen in (("in", real.input_metadata[path]), ("out", real.output_metadata[path])):
            expected = {fact_shapes(observation[side]) for observation in observations}
            ours = {tuple((meta.shape, meta.dtype) for meta in row.tensors) for row in seen}
            if len(ours) != len(expected) or not all(any(fits(row, wanted) for wanted in expected) for row in ours):
                found.append(f"{path}: {side} {ours} instead of {expected}")
    return found


def fact_shapes(tensors: list[Any]) -> tuple[Any, ...]:
    return tuple(CACHE if one == CACHE else (tuple(one[0]), one[1].removeprefix("torch.")) for one in tensors)


def fits(row: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """A cache is one word in the facts and comes last; here it is its tensors, two per layer that holds some."""
    if CACHE not in wanted:
        return row == wanted
    plain = len(wanted) - 1
    return wanted[-1] == CACHE and row[:plain] == wanted[:plain] and len(row[plain:]) % 2 == 0


def from_weightless(real: CallGraph, weightless: CallGraph) -> list[str]:
    """With the routing replayed nothing may differ, experts included."""
    sides = (
        ("call_counts", real.call_counts, weightless.call_counts),
        ("edges", real.edges, weightless.edges),
        ("inputs", shapes(real.input_metadata), shapes(weightless.input_metadata)),
        ("outputs", shapes(real.output_metadata), shapes(weightless.output_metadata)),
        ("runtime", real.runtime, weightless.runtime),
    )
    return [f"{name} differ from weightless" for name, one, other in sides if one != other]


def shapes(metadata: Any) -> Shapes:
    return {
        path: {(tuple((meta.shape, meta.dtype) for meta in row.tensors), row.calls) for row in observed}
        for path, observed in metadata.items()
    }


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
