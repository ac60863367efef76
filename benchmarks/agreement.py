"""One model type at full size: the weightless count, two FLOP counters and the byte counter, and what parts them."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.breadth.full_size import full_size_config
from benchmarks.runner import Record
from benchmarks.thirty_models import KIND_OF
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.folder import class_names

COUNTERS = ("torch-counter", "fvcore")
BYTE_COUNTER = "byte-counter"
ADDED = ("elementwise-counted", "rounded-up")  # causes by which a source counts more than the matrix work


def compare(model_type: str) -> Record:
    """Totals by phase of every source, with the causes of each difference; built and run without weights."""
    started = time.process_time()
    chosen = full_size_config(model_type)
    name = chosen.class_name or class_names(model_type)[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / model_type
        chosen.config.architectures = [name]
        chosen.config.save_pretrained(folder)
        adapter = HuggingFaceAdapter(folder, trust_remote_code=False)
        graphs = [WeightlessTracer().trace(target) for target in adapter.targets(Workload())]
        ours = [figures for graph in graphs for figures in counted(graph)]
        theirs = {counter: SOURCES.get(counter)().figures(adapter, Workload()) for counter in COUNTERS}
        watched = SOURCES.get(BYTE_COUNTER)().figures(adapter, Workload())
    return {
        "kind": KIND_OF[model_type],
        "class": name,
        "changed": chosen.why,
        "parameters": sum(t.parameters or 0 for t in ours if t.phase == graphs[0].phase),
        "inputs": str(graphs[0].workload["modalities"]),
        "phases": {
            graph.phase: {
                "counted": sum(t.flops or 0 for t in ours if t.phase == graph.phase),
                "unpriced": [spot.operator for t in ours if t.phase == graph.phase for spot in t.blind_spots],
                **{counter: _told([t for t in told if t.phase == graph.phase]) for counter, told in theirs.items()},
                "bytes": {
                    "counted": sum(t.bytes_moved or 0 for t in ours if t.phase == graph.phase),
                    BYTE_COUNTER: sum(t.bytes_moved or 0 for t in watched if t.phase == graph.phase),
                },
            }
            for graph in graphs
        },
        "seconds": round(time.process_time() - started, 1),
        "status": "ok",
    }


def _told(source_figures: Sequence[SourceFigures]) -> Record:
    """The total of a phase; `left_out` and `added` are FLOPs by cause, `unknown` the ops without any figure."""
    failures = [figures.failure for figures in source_figures if figures.failure is not None]
    left_out: Counter[str] = Counter()
    added: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for spot in (spot for figures in source_figures for spot in figures.blind_spots):
        if spot.flops is None:
            unknown[spot.operator] += spot.calls
        else:
            (added if spot.cause in ADDED else left_out)[spot.cause] += spot.flops
    return {
        "flops": sum(figures.flops or 0 for figures in source_figures),
        "left_out": dict(left_out),
        "added": dict(added),
        "unknown": dict(unknown),
        "failures": failures,
    }
