"""One function against fresh traces, at random points, both sides of every boundary and a batch of one; its page."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import llm_perf_opt as lpo
from benchmarks.function.subjects import Subject
from benchmarks.pages import cell, table
from llm_perf_opt.api.trace_function import TraceFunction
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds, ops_of
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.memory.live_memory import live_bytes
from llm_perf_opt.costs.memory.need import weight_bytes_by_stage
from llm_perf_opt.costs.parameters import count_distinct_parameters
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.function.search.sampling import Stride

Point = Mapping[str, int]
Figures = dict[str, int | None]
BATCH, CONTEXT = "batch", "context"
SHORT_PROMPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a function says of a point, where a trace says something else."""

    point: Point
    what: str
    text: str
    share: float | None = None  # of a figure: how far off


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """The points of one phase: equal, different, or in no proven cell."""

    phase: str
    exact: int = 0
    outside: int = 0
    differences: list[Difference] = field(default_factory=list)


def make_function(model: str, subject: Subject) -> TraceFunction:
    """The function of a subject over its ranges; a context holds one token of text at least."""
    trace = lpo.trace(model, prompt_tokens=SHORT_PROMPT, **subject.options)
    first = int(trace.graphs[0].workload.get("context_tokens", SHORT_PROMPT)) - SHORT_PROMPT + 1
    low, high = subject.context
    return trace.over(batch=subject.batch, context=(max(low, first), high if high > first else first + 512))


def compared(
    function: TraceFunction, model: str, subject: Subject, count: int, seed: int
) -> tuple[list[PhaseRecord], list[Point]]:
    """Every phase at so many random points and at all boundaries, against one fresh trace of each point."""
    records = [PhaseRecord(phase=one.phase) for one in function.phases]
    points = list(_points(function, count, random.Random(seed)))
    for point in points:
        prompt = point[CONTEXT] - function.media_tokens
        fresh = lpo.trace(model, batch=point[BATCH], prompt_tokens=prompt, **subject.options)
        for phase, record, graph in zip(function.phases, records, fresh.graphs, strict=True):
            _compare(phase, record, graph, point)
    return records, points


def _compare(phase: PhaseFunction, record: PhaseRecord, graph: CallGraph, point: Point) -> None:
    cell = phase.cell_at(point)
    if cell is None:
        record.outside += 1
        return
    made = cell.cell.program.graph_at(point)
    found = list(_differences(made, graph, point))
    if cell.figures is not None:
        columns = phase.figures({name: np.array([value]) for name, value in point.items()})
        found += _unequal({name: int(column[0]) for name, column in columns.items()}, figures_of(graph), point)
    record.differences += found
    record.exact += not found


def _differences(made: CallGraph, fresh: CallGraph, point: Point) -> Iterator[Difference]:
    parting = same_run(made, fresh)
    if parting is not None:
        yield Difference(point=point, what=f"op table ({parting.what})", text=str(parting))
    if made.workload != fresh.workload or made.runtime != fresh.runtime:
        yield Difference(point=point, what="header", text=f"{made.workload} {made.runtime}")
    yield from _unequal(figures_of(made), figures_of(fresh), point)


def _unequal(made: Figures, fresh: Figures, point: Point) -> list[Difference]:
    return [
        Difference(point=point, what=name, text=f"{value} for {fresh[name]}", share=_share(value, fresh[name]))
        for name, value in made.items()
        if value != fresh[name]
    ]


def _share(made: int | None, fresh: int | None) -> float | None:
    return None if made is None or not fresh else abs(made - fresh) / fresh


def figures_of(graph: CallGraph) -> Figures:
    """What the analyses say of one graph."""
    kinds = count_kinds(graph)
    costs = [(cost, count) for kind, count in kinds.items() if (cost := price(kind)) is not None]
    cache = kv_cache([graph])
    assert graph.storages is not None, "weightless traces follow memory"
    return {
        "flops": sum(cost.flops * count for cost, count in costs),
        "vector_flops": sum(cost.vector_flops * count for cost, count in costs),
        "bytes_moved": sum(cost.bytes_moved * count for cost, count in costs),
        "launches": sum(len(kernels_of(kind)) * count for kind, count in kinds.items()),
        "peak_bytes": max(live_bytes(graph.storages, len(ops_of(graph).kind)), default=0),
        "parameters": count_distinct_parameters([graph]),
        "weight_bytes": sum(weight_bytes_by_stage(graph).values()),
        "cache_bytes": None if cache is None else cache.bytes,
    }


def _points(function: TraceFunction, count: int, rng: random.Random) -> Iterator[Point]:
    """A batch of one among the random points, and both sides of every boundary."""
    domain = function.phases[0].domain
    (fewest, most), (shortest, longest) = domain[BATCH], domain[CONTEXT]
    wanted = [(fewest, _spread(rng, shortest, longest)) for _ in range(max(count // 8, 1))]
    wanted += [(_spread(rng, fewest, most), _spread(rng, shortest, longest)) for _ in range(count - len(wanted))]
    for phase in function.phases:
        wanted += _sides(phase)
    for batch, length in dict.fromkeys(wanted):
        yield {BATCH: batch, CONTEXT: length}


def _sides(phase: PhaseFunction) -> Iterator[tuple[int, int]]:
    """The points beside a boundary along the length: the first and the last batch of the cell, one on each side."""
    regions = [one.region for one in (*phase.cells, *phase.open_regions)]
    for batches in sorted({region[BATCH] for region in regions}):
        beside = sorted({region[CONTEXT] for region in regions if region[BATCH] == batches})
        for (_, end), (start, _) in pairwise(beside):
            yield from ((batches[1], end), (batches[0], end), (batches[0], start), (batches[1], start))


def _spread(rng: random.Random, low: int, high: int) -> int:
    """Short lengths as often as long ones."""
    return min(high, max(low, round(exp(rng.uniform(log(low), log(high + 1))))))


def record_of(subject: Subject, count: int, seed: int) -> dict[str, Any]:
    """The whole comparison of a subject, as JSON."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        model = subject.model(Path(folder))
        function = make_function(model, subject)
        made_s = time.process_time() - began
        records, points = compared(function, model, subject, count, seed)
    return {
        "status": "ok",
        "kind": subject.kind,
        "is_reduced": subject.is_reduced,
        "cpu_s": round(made_s, 1),
        "points": len(points),
        "phases": [_phase_json(p, r) for p, r in zip(function.phases, records, strict=True)],
    }


def _phase_json(phase: PhaseFunction, record: PhaseRecord) -> dict[str, Any]:
    return {
        "phase": phase.phase,
        "traces": phase.traces,
        "cells": [_region_json(one.region, one.cell.stride) for one in phase.cells],
        "priced_by_point": [str(one.no_figures) for one in phase.cells if one.no_figures is not None],
        "open": [{"region": _region_json(one.region, one.stride), "why": str(one.why)} for one in phase.open_regions],
        "exact": record.exact,
        "outside": record.outside,
        "differences": [
            {"point": dict(one.point), "what": one.what, "text": one.text[:300], "share": one.share}
            for one in record.differences
        ],
    }


def _region_json(region: Region, stride: Stride | None) -> dict[str, Any]:
    only = {} if stride is None else {"only": str(stride)}
    return {**{name: list(ends) for name, ends in region.items()}, **only}


Record = Mapping[str, Any]
UNPROVEN = "not proven"

INTRODUCTION = """# How exact is a function of a trace?

A function ([sweep](sweep.md)) is made from a few traces and then answers any batch and context in its ranges. This page
compares it with a fresh trace of each point: every op with its shapes and arguments, every block of memory with its
bytes and lifetime, the header, and FLOPs, vector FLOPs, bytes moved, launches, peak memory, parameters, weights and
cache. *Exact* means equal to the last integer. Points are random (small ones as often as large ones), a batch of one
among them, with both sides of every boundary between cells. A point in no proven cell is traced, not computed: it is
counted as *outside*.

One trace of a point gives all its phases. So the traces of a phase are those that no earlier phase had asked for: a
decode with 0 traces was found and checked at the points of its prefill. At most 40 are made for a phase. A region that
is open when they are spent stays open: its points are traced when they are asked for.

```text
python scripts/function_table.py --points 50 --write docs/function-exactness.md
```
"""


def is_missed(record: Record) -> bool:
    """Whether a proven cell said something else than a trace, or nothing could be compared."""
    return record["status"] != "ok" or any(phase["differences"] for phase in record["phases"])


def page(
    versions: Mapping[str, str], setting: Mapping[str, int], records: Mapping[str, Record], order: Sequence[str]
) -> str:
    """The whole page as Markdown."""
    shown = [(name, records[name]) for name in order if name in records]
    ran = [record for _, record in shown if record["status"] == "ok"]
    compared = sum(record["points"] * len(record["phases"]) for record in ran)
    exact = sum(phase["exact"] for record in ran for phase in record["phases"])
    outside = sum(phase["outside"] for record in ran for phase in record["phases"])
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    summary = (
        f"With {installed}, {setting['points']} random points for each of {len(shown)} models: of {compared:,} points "
        f"of a phase {exact:,} are exact, {outside:,} lie outside the proven cells, and "
        f"{compared - exact - outside:,} differ."
    )
    rows = [cells for name, record in shown for cells in _rows(name, record)]
    titles = (
        "model", "kind", "phase", "cells along the context", "traces", "CPU s", "points", "exact", "outside",
        "worst difference, or why a region is open",
    )  # fmt: skip
    notes = "Models marked * have fewer layers than released. CPU seconds are those of all phases of a model together."
    return "\n".join((INTRODUCTION, summary, "", table(titles, rows, "l", wide=True), "", notes, ""))


def _rows(name: str, record: Record) -> Iterator[tuple[str, ...]]:
    if record["status"] != "ok":
        yield name, str(record.get("kind", "")), *[""] * 7, cell(f"{record['status']}: {record['message']}", 300, "")
        return
    shown = name + (" *" if record["is_reduced"] else "")
    for phase in record["phases"]:
        counts = (phase["traces"], record["cpu_s"], record["points"], phase["exact"], phase["outside"])
        yield shown, record["kind"], phase["phase"], _cells(phase), *map(str, counts), cell(_worst(phase), 300, "")


def _cells(phase: Record) -> str:
    """The ranges along the context, of a batch of one and of more."""
    by_batch: dict[str, list[str]] = {}
    for region in phase["cells"]:
        (fewest, most), (low, high) = region["batch"], region["context"]
        batches = str(fewest) if fewest == most else f"{fewest}-{most}"
        lengths = str(low) if low == high else f"{low:,}-{high:,}"
        only = f" ({region['only']})" if "only" in region else ""
        by_batch.setdefault(batches, []).append(lengths + only)
    return "; ".join(f"batch {batches}: {', '.join(lengths)}" for batches, lengths in by_batch.items()) or UNPROVEN


def _worst(phase: Record) -> str:
    if phase["differences"]:
        worst = max(phase["differences"], key=lambda one: one["share"] or 0)
        return f"{worst['what']} at {worst['point']}: {worst['text']}"
    texts = [f"open at {one['region']['context']}: {one['why']}" for one in phase["open"]]
    texts += [f"figures are priced point by point: {text}" for text in phase["priced_by_point"]]
    return "; ".join(dict.fromkeys(texts[:2]))
