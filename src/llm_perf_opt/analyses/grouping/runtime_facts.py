"""What the tracer was told about the model's loops, held against the structure that was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from llm_perf_opt.analyses.grouping.data_flow import Knowledge
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.units import format_count


def runtime_lines(graph: CallGraph, knowledge: Knowledge, chain_lengths: set[int]) -> list[str]:
    """One line with the facts, and a warning for each that the structure contradicts."""
    told = list(_told(graph))
    if not told:
        return []
    verdicts = [*_depth_verdicts(graph, knowledge, chain_lengths), *_image_verdicts(graph), *_step_verdicts(graph)]
    warnings = [verdict for verdict in verdicts if verdict is not None]
    agreed = ", as found in the structure" if verdicts and not warnings else ""
    return [f"Runtime: {', '.join(told)}{agreed}.", *(f"Warning: {warning}." for warning in warnings)]


Verdict = str | None  # what is wrong, or None for a fact that the structure bears out


def _told(graph: CallGraph) -> Iterator[str]:
    runtime = graph.runtime
    if _is_count(images := runtime.get("images")):
        yield _plural(images, "image")
    if _is_counts(crops := runtime.get("crops_per_image")) and crops:
        yield f"{'+'.join(map(str, crops))} crops"
    if _is_count(depth := runtime.get("decoder_depth")):
        yield f"decoder depth {format_count(depth)}"
    if _is_count(steps := runtime.get("decode_steps")) and steps:
        yield _plural(steps, "decode step")


def _depth_verdicts(graph: CallGraph, knowledge: Knowledge, chain_lengths: set[int]) -> Iterator[Verdict]:
    depth = graph.runtime.get("decoder_depth")
    if not _is_count(depth) or depth < 2 or knowledge is not Knowledge.OPS:
        return
    found = ", ".join(map(str, sorted(length for length in chain_lengths if length > 1))) or "none"
    yield (
        None
        if depth in chain_lengths
        else f"the decoder is said to have {depth} layers in series, and no chain is that long; chains found: {found}"
    )


def _image_verdicts(graph: CallGraph) -> Iterator[Verdict]:
    """Modules of a stage run once for each image as a whole, and once more for its crops together."""
    crops = graph.runtime.get("crops_per_image")
    if not _is_counts(crops) or graph.runtime.get("images") != len(crops):
        return
    expected = sum(1 + (count > 0) for count in crops)
    for stage, paths in graph.stages:
        for path in paths:
            calls = graph.call_counts.get(path, 0)
            wrong = f"{stage} ({path}) ran {_plural(calls, 'time')}; the images and crops make {expected}"
            yield None if calls == expected else wrong


def _step_verdicts(graph: CallGraph) -> Iterator[Verdict]:
    steps = graph.runtime.get("decode_steps")
    calls = sum(graph.root_calls.values())
    if _is_count(steps) and steps and calls:
        wrong = f"{_plural(steps, 'decode step')} should call the model as often; it was called {calls} times"
        yield None if calls == steps else wrong


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_counts(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, (list, tuple)) and all(map(_is_count, value))


def _plural(count: int, noun: str) -> str:
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"
