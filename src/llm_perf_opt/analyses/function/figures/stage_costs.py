"""What a program costs at points, by stage, without the call graphs of the points.

The ops of a block differ from those of another, and the ops at a point from those at another, in their sizes alone. An
op with sizes that were seen before is not priced again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from llm_perf_opt.analyses.function.form import Point
from llm_perf_opt.analyses.function.program.program import Program
from llm_perf_opt.analyses.function.program.sized import Numbers, SizedKind
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.table import kernels_of, price

SUMS = ("flops", "vector_flops", "bytes_moved", "launches", "ops", "unpriced_ops")
_Cost = tuple[int, int, int, int, int, int]  # of one run, in the order of `SUMS`


class ProgramCosts:
    """The costs of a program; ops of the names in `without` are left out."""

    def __init__(self, program: Program, without: Collection[str] = ()) -> None:
        self._program, self._without = program, without
        self._counts: dict[tuple[int, ...], list[tuple[str, SizedKind, int]]] = {}
        self._leaves: dict[SizedKind, tuple[Any, ...]] = {}
        self._costs: dict[tuple[OpKind, tuple[Any, ...]], _Cost] = {}

    def at(self, point: Point) -> Mapping[tuple[str, str], int | None]:
        """(Stage, figure) -> what the code costs as written, as an analysis of the point's graph would say."""
        number, totals = Numbers(point), dict[str, list[int]]()
        for stage, kind, count in self._rows(tuple(loop.count.at(point) for loop in self._program.loops)):
            total = totals.setdefault(stage, [0] * len(SUMS))
            for place, one in enumerate(self._cost(kind, number)):
                total[place] += one * count
        return {
            (stage, name): value for stage, total in totals.items() for name, value in zip(SUMS, total, strict=True)
        }

    def _rows(self, counts: tuple[int, ...]) -> list[tuple[str, SizedKind, int]]:
        """The stage of an op, the op, and how often it runs there."""
        if counts not in self._counts:
            kinds = self._program.shape(counts).kinds
            rows = ((stage, kinds[kind], count) for (stage, kind), count in self._program.stage_counts(counts).items())
            self._counts[counts] = [row for row in rows if row[1].kind.name not in self._without]
        return self._counts[counts]

    def _cost(self, kind: SizedKind, number: Numbers) -> _Cost:
        if kind not in self._leaves:
            self._leaves[kind] = kind.leaves()
        # What differs between ops of one kind at a sample, in other blocks and at other points, are the leaves.
        key = kind.kind, number.leaves(self._leaves[kind])
        found = self._costs.get(key)
        if found is None:
            op = number.kind(kind)
            cost, launches = price(op), len(kernels_of(op))
            found = (
                (0, 0, 0, launches, 1, 1)
                if cost is None
                else (cost.flops, cost.vector_flops, cost.bytes_moved, launches, 1, 0)
            )
            self._costs[key] = found
        return found
