"""Predicted times of ops against those that torch's profiler saw in a real run."""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from llm_perf_opt.analyses.time.predict import StageTime
from llm_perf_opt.analyses.time.rates import OpRun
from llm_perf_opt.core.target import Target

Shapes = tuple[tuple[int, ...], ...]
SHOWN = 8


def largest_misses(model: torch.nn.Module, target: Target, stages: list[StageTime]) -> dict[str, list[str]]:
    """Per stage, one line for each op whose predicted total differs most from the profiled one."""
    profiled = profiled_seconds(model, target)
    return {stage.name: _lines(stage, profiled) for stage in stages}


def profiled_seconds(model: torch.nn.Module, target: Target) -> dict[tuple[str, Shapes], float]:
    """Op and shapes of its tensors -> the median time of one, what it calls included."""
    given = target.start(model)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        target.run(model, given)
    samples: dict[tuple[str, Shapes], list[float]] = defaultdict(list)
    for event in recorded.events() or ():
        shapes = tuple(tuple(shape) for shape in event.input_shapes or () if shape)
        samples[event.name.replace("::", "."), shapes].append(event.cpu_time_total / 1e6)
    return {key: statistics.median(times) for key, times in samples.items()}


def _lines(stage: StageTime, profiled: dict[tuple[str, Shapes], float]) -> list[str]:
    found = []
    for piece in stage.pieces:
        if not isinstance(piece.what, OpRun):
            continue
        op = piece.what
        packet = ".".join(op.kind.name.split(".")[:2])
        shapes = tuple(meta.shape for meta in op.kind.inputs if meta.shape)
        seen = profiled.get((packet, shapes))
        predicted_s = piece.each.expected
        if seen is not None and predicted_s is not None:
            difference = (predicted_s - seen) * piece.count
            found.append((abs(difference), difference, piece.count, predicted_s, seen, packet, shapes[:4]))
    found.sort(reverse=True)
    return [
        f"{difference * 1e3:+9.2f} ms: {count} x {packet} {shapes}: predicted {each * 1e6:.1f} us, "
        f"profiled {seen * 1e6:.1f} us"
        for _, difference, count, each, seen, packet, shapes in found[:SHOWN]
    ]
