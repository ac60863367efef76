"""What went into and came out of the calls of a group, in words."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from llm_perf_opt.callgraph.graph import CallGraph, Observation
from llm_perf_opt.callgraph.records import TensorMeta
from llm_perf_opt.document import TensorGroup

_SHOWN = 12  # distinct sets of tensors told apart; a router makes hundreds of them


class _Side(NamedTuple):
    counts: Sequence[int]
    ends: Sequence[int]
    metas: array[int]


class BoxTensors:
    """Reads the tensors of calls from the columns, or from the totals by module where a trace has no columns."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._texts = [_text(meta) for meta in graph.tensor_metas]
        self._sides: tuple[_Side, _Side] | None = None
        if (calls := graph.calls) is not None:
            self._sides = (
                _Side(calls.input_count, list(accumulate(calls.input_count)), calls.input_metas),
                _Side(calls.output_count, list(accumulate(calls.output_count)), calls.output_metas),
            )

    def inputs(self, rows: Sequence[int], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
        """The distinct inputs, the most frequent first."""
        if self._sides is not None:
            return self._from_rows(rows, self._sides[0])
        return _from_totals(self._graph.input_metadata, paths)

    def outputs(self, rows: Sequence[int], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
        """The distinct outputs, the most frequent first."""
        if self._sides is not None:
            return self._from_rows(rows, self._sides[1])
        return _from_totals(self._graph.output_metadata, paths)

    def _from_rows(self, rows: Sequence[int], side: _Side) -> tuple[TensorGroup, ...]:
        counts, ends, metas = side
        seen: dict[bytes, int] = {}
        example: dict[bytes, array[int]] = {}
        for row in rows:
            tensors = metas[ends[row] - counts[row] : ends[row]]
            key = tensors.tobytes()
            seen[key] = seen.get(key, 0) + 1
            example[key] = tensors
        texts = self._texts
        return _most_frequent({tuple(texts[meta] for meta in example[key]): calls for key, calls in seen.items()})


def _from_totals(observed: Mapping[str, tuple[Observation, ...]], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
    seen: dict[tuple[str, ...], int] = {}
    for path in paths:
        for observation in observed.get(path, ()):
            key = tuple(map(_text, observation.tensors))
            seen[key] = seen.get(key, 0) + observation.calls
    return _most_frequent(seen)


def _most_frequent(seen: Mapping[tuple[str, ...], int]) -> tuple[TensorGroup, ...]:
    ordered = sorted(seen.items(), key=lambda item: -item[1])
    if len(ordered) > _SHOWN:
        others = ordered[_SHOWN - 1 :]
        ordered = [*ordered[: _SHOWN - 1], ((f"{len(others)} other shapes",), sum(calls for _, calls in others))]
    return tuple(TensorGroup(tensors=tensors, calls=calls) for tensors, calls in ordered)


def _text(meta: TensorMeta) -> str:
    return f"{meta.dtype}[{', '.join(map(str, meta.shape))}]"
