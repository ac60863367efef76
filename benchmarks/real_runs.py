"""Real runs of DeepSeek-OCR on the CPU, random weights: under hooks, TorchLens and the profiler, and what each costs.

    python -m benchmarks.real_runs full_size_hooks        base mode against the facts and ghosts: 8 GB, some minutes
    python -m benchmarks.real_runs full_size_torchlens    metadata alone, against hooks: 9 GB; [--mode gundam]
                                                          [--folder DIR --phase prefill], with the released code in DIR
    python -m benchmarks.real_runs full_width_torchlens   3 decoder layers, float32, against hooks: 6 GB
    python -m benchmarks.real_runs tracer_overhead        the same forward plain and under each tracer, turn by turn

With `--out docs/data/NAME.json` the record is kept. Each leaves with 1 when calls, edges or shapes differ in a way that
neither routing nor a named difference explains.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.pages import FACTS
from benchmarks.runner import leave, recorder, resident_bytes
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import FOLDERS, make_workload
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.profiler_tracer import ProfilerTracer
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import ReplayRouting

T = TypeVar("T")
Record = dict[str, Any]
RECORDED = FACTS / "deepseek_ocr" / "callgraph-base.json"
IMAGE = "1240x1754"  # an A4 page at 150 dots per inch; six crops in the mode gundam
WORKLOAD = DeepSeekOcrWorkload(image=IMAGE, mode="base")
EXPERT = re.compile(r"\.mlp\.experts\.\d+")
EXPERTS, LAYERS, CACHE = 64, 3, "cache"
# Vision features are written into a view of the hidden states; TorchLens then takes the whole for that view.
WRITTEN_THROUGH_A_VIEW = {"model.layers.0", "model.layers.0.input_layernorm"}


def measured(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    spent = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return result, {name: round(seconds, 1) for name, seconds in spent.items()}


# ---- hooks at full size, against the facts and against ghosts


def full_size_hooks(options: argparse.Namespace) -> tuple[Record, bool]:
    tracer, facts = HooksTracer(), json.loads(RECORDED.read_text())
    phases = {}
    for target in DeepSeekOcrAdapter().targets(WORKLOAD):
        real, spent = measured(lambda target=target: tracer.trace(target))
        recorded = facts["prefill" if target.phase == "prefill" else "decode_step"]
        phases[target.phase] = hooks_record(real, recorded, spent["wall_seconds"])
    record = {"threads": options.threads, "peak_rss_bytes": resident_bytes(), "phases": phases}
    return record, any(phase["differences"] for phase in phases.values())


def hooks_record(real: CallGraph, facts: Record, seconds: float) -> Record:
    assert real.calls is not None
    (target,) = [candidate for candidate in DeepSeekOcrAdapter().targets(WORKLOAD) if candidate.phase == real.phase]
    # The same phase without weights, every expert given as many rows as in the real run.
    weightless = WeightlessTracer(routing=ReplayRouting(expert_rows(real)), device="cpu").trace(target)
    return {
        "seconds_with_build": seconds,
        "seconds_of_forward": round(real.calls.ended_ns[0] / 1e9, 1),
        "module_calls": sum(real.call_counts.values()),
        "modules_outside_experts": len(outside(real.call_counts)),
        "differences": [*real.problems(), *from_facts(real, facts), *from_weightless(real, weightless)],
    }


def expert_rows(graph: CallGraph) -> list[list[int]]:
    """Rows per expert, layer by layer, as the real router chose."""
    rows: dict[int, list[int]] = {}
    for path, observed in graph.input_metadata.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", path):
            rows.setdefault(int(match[1]), [0] * EXPERTS)[int(match[2])] = observed[0].tensors[0].shape[0]
    return [rows[layer] for layer in sorted(rows)]


def outside(counts: Any) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not EXPERT.search(name)}


def from_facts(real: CallGraph, facts: Record) -> list[str]:
    """What the released code did otherwise, routed experts apart."""
    counts = (("call_counts", real.call_counts), ("edges", real.edges))
    problems = [f"{name} differ from the facts" for name, ours in counts if outside(ours) != outside(facts[name])]
    for path, observations in outside(facts["io"]).items():
        for side, seen in (("in", real.input_metadata[path]), ("out", real.output_metadata[path])):
            expected = {
                tuple(
                    CACHE if entry == CACHE else (tuple(entry[0]), entry[1].removeprefix("torch."))
                    for entry in row[side]
                )
                for row in observations
            }
            ours = {tuple((meta.shape, meta.dtype) for meta in row.tensors) for row in seen}
            if len(ours) != len(expected) or not all(any(fits(row, wanted) for wanted in expected) for row in ours):
                problems.append(f"{path}: {side} {ours} instead of {expected}")
    return problems


def fits(row: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """A cache is one word in the facts and comes last; here it is its tensors, two per layer that holds some."""
    if CACHE not in wanted:
        return row == wanted
    plain = len(wanted) - 1
    return wanted[-1] == CACHE and row[:plain] == wanted[:plain] and len(row[plain:]) % 2 == 0


def from_weightless(real: CallGraph, weightless: CallGraph) -> list[str]:
    """With the routing replayed nothing may differ, experts included."""

    def shapes(metadata: Any) -> dict[str, set[tuple[Any, ...]]]:
        return {
            path: {(tuple((meta.shape, meta.dtype) for meta in row.tensors), row.calls) for row in observed}
            for path, observed in metadata.items()
        }

    sides = (
        ("call_counts", real.call_counts, weightless.call_counts),
        ("edges", real.edges, weightless.edges),
        ("inputs", shapes(real.input_metadata), shapes(weightless.input_metadata)),
        ("outputs", shapes(real.output_metadata), shapes(weightless.output_metadata)),
        ("runtime", real.runtime, weightless.runtime),
    )
    return [f"{name} differ from weightless" for name, hooked, weightless_side in sides if hooked != weightless_side]


# ---- TorchLens, against hooks on the same weights


def agreement(seen: CallGraph, hooks: CallGraph) -> Record:
    return {
        "module_calls": sum(seen.call_counts.values()),
        "ops": None if seen.coverage is None else seen.coverage.ops,
        "calls_equal": seen.call_counts == hooks.call_counts,
        "edges_equal": seen.edges == hooks.edges,
        "problems": seen.problems(),
    }


def full_size_torchlens(options: argparse.Namespace) -> tuple[Record, bool]:
    """The blueprint, or with `--folder` the released code, which needs the packages that it imports."""
    adapter = DeepSeekOcrAdapter() if options.folder is None else FOLDERS.get("huggingface")(options.folder, True)
    hooks, torchlens = HooksTracer(), TorchLensTracer()
    phases = {}
    for target in adapter.targets(make_workload(adapter, image=IMAGE, mode=options.mode)):
        if options.phase is None or target.phase in options.phase:
            timed = hooks.trace(target)
            assert timed.calls is not None
            before = resident_bytes()
            seen, seconds = measured(lambda target=target: torchlens.trace(target))
            phases[target.phase] = {
                "seconds_of_forward_under_hooks": round(timed.calls.ended_ns[0] / 1e9, 1),
                **seconds,
                "peak_rss_bytes_with_hooks": before,
                "peak_rss_bytes": max(before, resident_bytes()),
                **agreement(seen, timed),
            }
    record = {
        "model": "blueprint" if options.folder is None else "released code",
        "mode": options.mode,
        "threads": options.threads,
        "peak_rss_bytes": max(phase["peak_rss_bytes"] for phase in phases.values()),
        "phases": phases,
    }
    return record, not all(phase["calls_equal"] and phase["edges_equal"] for phase in phases.values())


def full_width_target() -> Target:
    """Three decoder layers, on a page of 512 x 512: a forward of a second or more."""
    released = DeepSeekOcrConfig()
    config = replace(released, decoder=replace(released.decoder, num_hidden_layers=LAYERS))
    workload = DeepSeekOcrWorkload(image="512x512", mode="tiny", dtype="float32", decode_steps=0)
    (target,) = DeepSeekOcrAdapter(config).targets(workload)
    return target


def full_width_torchlens(options: argparse.Namespace) -> tuple[Record, bool]:
    target, tracer = full_width_target(), TorchLensTracer()
    hooks = HooksTracer().trace(target)
    seen, spent = measured(lambda: tracer.trace(target))
    unequal = differing_modules(hooks, seen)
    record = {
        "threads": options.threads,
        "seconds": spent["wall_seconds"],
        "peak_rss_bytes": resident_bytes(),
        **agreement(seen, hooks),
        "modules_with_other_shapes": sorted(unequal),
    }
    return record, not (record["calls_equal"] and record["edges_equal"]) or unequal != WRITTEN_THROUGH_A_VIEW


def differing_modules(hooks: CallGraph, seen: CallGraph) -> set[str]:
    """Modules whose distinct tensors differ, cache tensors apart, which TorchLens finds in some objects only."""

    def distinct(observed: Any) -> set[Any]:
        return {
            frozenset((meta.shape, meta.dtype) for meta in row.tensors if not is_cached(meta.shape)) for row in observed
        }

    def is_cached(shape: tuple[int, ...]) -> bool:
        """Keys or values of one layer: batch, 10 heads, tokens, 128."""
        return len(shape) == 4 and shape[1] == 10 and shape[3] == 128

    sides = ((hooks.input_metadata, seen.input_metadata), (hooks.output_metadata, seen.output_metadata))
    return {
        path for path in hooks.call_counts for first, second in sides if distinct(first[path]) != distinct(second[path])
    }


# ---- what watching costs


def tracer_overhead(options: argparse.Namespace) -> tuple[Record, bool]:
    """Runs alternate, so that whatever else the machine does falls on all of them; ratios are those of a round."""
    target, hooks, profiler = full_width_target(), HooksTracer(), ProfilerTracer()
    calls = sum(hooks.trace(target).call_counts.values())  # builds the model, and warms it up
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: target.run(target.build()),
        "hooks": lambda: hooks.trace(target),
        "profiler": lambda: profiler.trace(target),
    }
    spent = take_turns(target, ways, options.rounds)
    record: Record = {"threads": options.threads, "rounds": options.rounds, "module_calls": calls}
    for row, clock in enumerate(("wall", "cpu")):
        plain = [turn[row] for turn in spent["plain"]]
        record[f"plain_{clock}_seconds_median"] = round(median(plain), 3)
        for name in ("hooks", "profiler"):
            ratios = [turn[row] / alone for turn, alone in zip(spent[name], plain, strict=True)]
            record[f"{name}_{clock}_overhead_percent"] = round(100 * (median(ratios) - 1), 2)
    return record, False


def take_turns(
    target: Target, ways: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each forward itself: reading a trace afterwards is not part of it.

    CPU time is what a busy machine does not change.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    inside: list[tuple[float, float]] = []
    invoke = target.invoke

    def timed(model: object) -> object:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return invoke(model)
        finally:
            inside.append((time.perf_counter() - wall, time.process_time() - cpu))

    object.__setattr__(target, "invoke", timed)
    for _ in range(rounds):
        for name, run in ways.items():
            inside.clear()
            run()
            spent[name].append(inside[0])
    return spent


RUNS = {run.__name__: run for run in (full_size_hooks, full_size_torchlens, full_width_torchlens, tracer_overhead)}


def main() -> int:
    parser = recorder(__doc__)
    parser.set_defaults(threads=None)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--folder", type=Path, help="the released code, which is run under TorchLens")
    parser.add_argument("--mode", default="base")
    parser.add_argument("--phase", action="append", help="prefill, decode; default: both")
    parser.add_argument("--rounds", type=int, default=15, help="of tracer_overhead")
    options = parser.parse_args()
    options.threads = options.threads or (1 if options.run == "tracer_overhead" else 2)
    torch.set_num_threads(options.threads)
    record, differs = RUNS[options.run](options)
    leave(record, options.out)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
