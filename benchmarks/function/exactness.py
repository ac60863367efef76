"""One function against fresh traces, at random points, both sides of every boundary and a batch of one; its page."""

from __future__ import annotations

import json
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

# The models whose functions are compared with fresh traces, one of each kind at least, and their workloads.

CONFIGURATIONS = Path(__file__).parents[2] / "tests/facts/deployment/configs"
EAGER_EXPERTS = {"experts_implementation": "eager"}  # a Python loop over the experts
_DEPTHS = frozenset(
    ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "depth", "encoder_layers", "decoder_layers")
)
OCR_MODES = ("tiny", "small", "base", "large")
OCR_GRIDS = tuple((columns, rows) for columns in (1, 2, 3) for rows in (1, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and the ranges over which its function is made.

    `source` is a folder of `CONFIGURATIONS`, or a model type whose default configuration is taken, or a registered
    model. `changes` are fields of its configuration that are set; `depth` those that make it shallower.
    """

    name: str
    kind: str
    source: str
    is_default: bool = False
    is_registered: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    depth: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: tuple[int, int] = (1, 16)
    context: tuple[int, int] = (1, 8192)
    layers: int | None = None  # at most, of each stack; None: as released

    @property
    def is_reduced(self) -> bool:
        """Whether it has fewer layers than were released."""
        return bool(self.depth) or self.layers is not None

    def model(self, folder: Path) -> str:
        """The name or folder to trace; a configuration is written to `folder`."""
        if self.is_registered:
            return self.source
        path = folder / self.name
        path.mkdir(parents=True, exist_ok=True)
        fields = _default_fields(self.source) if self.is_default else _read(self.source)
        for name, value in {**self.changes, **self.depth}.items():
            part, _, leaf = name.rpartition(".")
            (fields[part] if part else fields)[leaf] = value
        if self.layers is not None:
            fields = _shallow(fields, self.layers)
        (path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        return str(path)


def _read(source: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGURATIONS / source / "config.json").read_text(encoding="utf-8"))
    return fields


def _default_fields(model_type: str) -> dict[str, Any]:
    from benchmarks.breadth.full_size import full_size_config

    fields: dict[str, Any] = json.loads(full_size_config(model_type).config.to_json_string(use_diff=False))
    return fields


def _shallow(fields: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same configuration with stacks of at most this many layers."""
    stacks = {name: value for name, value in fields.items() if name in _DEPTHS and isinstance(value, int)}
    deep = set(stacks.values())
    return {
        name: min(value, layers)
        if name in stacks
        else _shallow(value, layers)
        if isinstance(value, dict)
        else value[:layers]
        if isinstance(value, list) and len(value) in deep
        else value
        for name, value in fields.items()
    }


def _released(kind: str, *sources: str, **given: Any) -> Iterator[Subject]:
    for source in sources:
        yield Subject(name=source, kind=kind, source=source, **given)


def _default(kind: str, *model_types: str, **given: Any) -> Iterator[Subject]:
    for model_type in model_types:
        yield Subject(name=model_type, kind=kind, source=model_type, is_default=True, **given)


def _in_a_loop(name: str, **given: Any) -> Subject:
    return Subject(name=f"{name}, experts in a loop", kind="MoE, experts in a loop", changes=EAGER_EXPERTS, **given)


def _hugging_face() -> Iterator[Subject]:
    yield from _default("dense", "gpt2", context=(1, 1000))
    yield from _released("dense", "bert-large", context=(1, 512))
    yield from _released("GQA", "llama32-1b", "llama31-8b", "llama31-70b", "qwen3-8b")
    yield from _default("GQA", "phi3")
    yield from _released("sliding window", "mistral-7b-v0.1", "gemma3-27b-text")
    yield from _default("sliding window", "gemma2")
    yield from _released("chunked attention", "llama4-scout", context=(1, 16384))
    yield from _released("MLA", "kimi-k2", depth={"num_hidden_layers": 6})
    yield from _released("MLA", "deepseek-v3", depth={"num_hidden_layers": 6})
    yield from _released("MoE", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")
    yield from _released("MoE", "glm-4.5", depth={"num_hidden_layers": 8})
    yield from _default("MoE", "olmoe")
    yield _in_a_loop("mixtral-8x7b", source="mixtral-8x7b", depth={"num_hidden_layers": 4})
    yield _in_a_loop("qwen3-30b-a3b", source="qwen3-30b-a3b", depth={"num_hidden_layers": 2})
    yield _in_a_loop("olmoe", source="olmoe", is_default=True, depth={"num_hidden_layers": 2})
    yield from _released("hybrid", "jamba-v0.1", depth={"num_hidden_layers": 8}, context=(1, 512))
    yield from _released("hybrid", "qwen3-next", depth={"num_hidden_layers": 8}, context=(1, 4096))
    yield from _default("hybrid", "bamba", context=(1, 4096))
    yield from _released("state space", "mamba2-2.7b", depth={"num_hidden_layers": 16}, context=(1, 4096))
    yield from _default("state space", "mamba", depth={"num_hidden_layers": 4}, context=(1, 512))
    image = {"image": "448x448"}
    yield from _released("VLM", "qwen3-vl-8b", "qwen25-vl-7b", options=image)
    yield from _released("VLM", "mistral-small-3.2-24b", options=image)
    yield from _released("VLM", "gemma3-27b", options={"image": "896x896"}, depth={"text_config.num_hidden_layers": 12})
    yield from _released("encoder-decoder", "t5-3b", "flan-t5-xl", context=(1, 4096))
    yield from _default("encoder-decoder", "bart", context=(1, 1000))
    yield from _released("audio", "whisper-large-v3", context=(1, 440))
    yield from _default("audio", "qwen2_audio")


def _deepseek_ocr() -> Iterator[Subject]:
    whole = {"source": "deepseek-ocr", "kind": "OCR", "is_registered": True}
    for mode in OCR_MODES:
        yield Subject(name=f"deepseek-ocr, {mode}", options={"mode": mode}, **whole)
    for columns, rows in OCR_GRIDS:
        options = {"mode": "gundam", "crops": (columns, rows)}
        yield Subject(name=f"deepseek-ocr, gundam {columns}x{rows}", options=options, **whole)


SUBJECTS = {subject.name: subject for subject in (*_hugging_face(), *_deepseek_ocr())}


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
    """Every phase at this many random points and at all boundaries, against one fresh trace of each point."""
    records = [PhaseRecord(phase=phase.phase) for phase in function.phases]
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
    differing = list(_differences(made, graph, point))
    if cell.figures is not None:
        columns = phase.figures({name: np.array([value]) for name, value in point.items()})
        differing += _unequal({name: int(column[0]) for name, column in columns.items()}, figures_of(graph), point)
    record.differences += differing
    record.exact += not differing


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
    """The points next to a boundary along the length: the first and the last batch of the cell, one on each side."""
    regions = [proven.region for proven in (*phase.cells, *phase.open_regions)]
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
        "cells": [_region_json(part.region, part.cell.stride) for part in phase.cells],
        "priced_by_point": [str(part.no_figures) for part in phase.cells if part.no_figures is not None],
        "open": [
            {"region": _region_json(part.region, part.stride), "why": str(part.why)} for part in phase.open_regions
        ],
        "exact": record.exact,
        "outside": record.outside,
        "differences": [
            {
                "point": dict(difference.point),
                "what": difference.what,
                "text": difference.text[:300],
                "share": difference.share,
            }
            for difference in record.differences
        ],
    }


def _region_json(region: Region, stride: Stride | None) -> dict[str, Any]:
    only = {} if stride is None else {"only": str(stride)}
    return {**{name: list(ends) for name, ends in region.items()}, **only}


Record = Mapping[str, Any]
UNPROVEN = "not proven"

INTRODUCTION = """# How exact is a function of a trace?

A function ([sweep](../start/sweep.md)) is made from a few traces and answers any batch and context in its ranges. It is
compared here with a fresh trace of each point: every op with its shapes and arguments, every block of memory with its
bytes and lifetime, FLOPs, vector FLOPs, bytes moved, launches, peak memory, parameters, weights and cache. *Exact*
means equal to the last integer. Points are random, with both sides of every boundary between cells; *outside* is a
point in no proven cell, which is traced. At most 40 traces are made for a phase; a decode with 0 traces was found and
checked at the points of its prefill.

```text
python scripts/function_table.py --points 50 --write docs/evidence/function-exactness.md
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
    notes = "Models marked * have fewer layers than released. CPU seconds are the sum of all phases of a model."
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
        worst = max(phase["differences"], key=lambda difference: difference["share"] or 0)
        return f"{worst['what']} at {worst['point']}: {worst['text']}"
    texts = [f"open at {opened['region']['context']}: {opened['why']}" for opened in phase["open"]]
    texts += [f"figures are priced point by point: {text}" for text in phase["priced_by_point"]]
    return "; ".join(dict.fromkeys(texts[:2]))
