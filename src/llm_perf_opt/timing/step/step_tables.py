"""The table of an engine's step times on one rank: the forwards of a traced decoder at the points of a grid.

A step mixes sequences that decode with chunks of prompts, and launches each kernel once for all of them. So what
depends on the number of tokens alone is timed once, with the launch of attention in it; the time inside attention is
timed for sequences that decode, and for a chunk by itself. Groups of ranks with attention of their own
(`attention_dp`) step together, so a table is for the whole replica: sequences and tokens of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.store import stored_record
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.engine_time import EngineTimer, ForwardTime, RankForward, TimesForwards, WorkKind
from llm_perf_opt.timing.step.request_time import request_fit
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface, UntimedKernels

CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))  # batch sizes that vLLM captures by default
KIND = "step times"  # entries of the cache
_SHORTEST_CACHE, _SHORTEST_CHUNK = 16, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """How far a table reaches; beyond, times grow in proportion."""

    tokens: int = 16384  # of one step
    sequences: int = 1024
    context: int = 131072


def step_table(
    blocks: EngineBlocks,
    timer: TimesForwards,
    plan: ParallelPlan,
    *,
    reach: StepRange | None = None,
    padded_to: Sequence[int] = CAPTURED,
    known: dict[ParallelPlan, StepTable] | None = None,
) -> StepTable:
    """The step of a replica under `plan`; a kernel that no table knows is an error: a sum without it is too small.

    Twice the tensor ranks are never more than twice as fast. Measured kernels say otherwise now and then, by up to 2.3
    times: by their errors, or where a kernel was badly chosen for the larger shape. `known` keeps tables of the same
    blocks and timer from one question to the next, the cache from one process to the next.
    """
    known = {} if known is None else known
    reach = reach or StepRange()
    if plan in known:
        return known[plan]
    if isinstance(timer, EngineTimer):
        question = {"timer": timer.identity, "of": list(map(repr, (blocks, plan, reach, tuple(padded_to))))}
        about = f"a decoder of {blocks.layers} layers, {blocks.hidden} wide, {plan.describe()}"
        known[plan] = stored_record(
            KIND, question, about, StepTable, lambda: _table(blocks, timer, plan, reach, padded_to, known)
        )
    else:
        known[plan] = _table(blocks, timer, plan, reach, padded_to, known)
    return known[plan]


def _table(
    blocks: EngineBlocks,
    timer: TimesForwards,
    plan: ParallelPlan,
    reach: StepRange,
    padded_to: Sequence[int],
    known: dict[ParallelPlan, StepTable],
) -> StepTable:
    grid = _Grid(blocks, timer, plan)
    tokens = grid.curve(_points(1, reach.tokens), _without_attention, without_head=True)
    fit = request_fit()
    table = StepTable(
        tokens=tokens,
        head=grid.curve(_points(1, reach.sequences), _head_alone),
        decoding=grid.surface(
            _points(1, reach.sequences, steps=2),
            _points(_SHORTEST_CACHE, reach.context, steps=2),
            lambda sequences, keys: Forward(sequences=sequences, queries=1, keys=keys),
            (WorkKind.ATTENTION, WorkKind.STATES),
        ),
        prompts=grid.surface(
            _points(_SHORTEST_CHUNK, reach.tokens, steps=2),
            _points(_SHORTEST_CHUNK, reach.context, steps=2),
            lambda new, keys: Forward(sequences=1, queries=new, keys=max(new, keys)),
        ),
        states=None if blocks.states is None else grid.states(reach),
        padded_to=tuple(padded_to),
        groups=plan.attention_dp,
        low=fit.tpot.low,
        high=fit.tpot.high,
        origin=_origins(grid.seen) + (f" ({timer.tables})" if isinstance(timer, EngineTimer) and timer.tables else ""),
    )
    if plan.tp % 2:
        return table
    half = replace(plan, tp=plan.tp // 2, ep=max(1, plan.ep // 2))
    fewer = step_table(blocks, timer, half, reach=reach, padded_to=padded_to, known=known)
    return table.at_least(fewer.corrected(decoding=0.5, prompts=0.5))


class _Grid:
    """Times of forwards at the points of a grid, and the forwards that gave them."""

    def __init__(self, blocks: EngineBlocks, timer: TimesForwards, plan: ParallelPlan) -> None:
        self._blocks, self._timer, self._plan = blocks, timer, plan
        self.seen: list[ForwardTime] = []

    def curve(self, at: Sequence[int], part: Callable[[ForwardTime], float], *, without_head: bool = False) -> Curve:
        """A part of the step of this many tokens, each of a sequence of its own with nothing cached."""
        matmuls = tuple(
            matmul for matmul in self._blocks.matmuls if (matmul.part is DecoderPart.HEAD) is not without_head
        )
        blocks = replace(self._blocks, matmuls=matmuls)
        if not without_head:  # the head alone: nothing else runs for the last token of a sequence only
            blocks = replace(
                blocks, attentions=(), experts=(), norms=(), states=None, layers=0, reduced=0, layer_norms=0
            )
        times = self._times(blocks, [Forward(sequences=tokens, queries=1, keys=1) for tokens in at])
        self.seen += times
        seconds = rising(np.array([part(time) for time in times]))
        return Curve(at=tuple(map(float, at)), seconds=tuple(seconds.tolist()))

    def surface(
        self,
        across: Sequence[int],
        along: Sequence[int],
        forward: Callable[[int, int], Forward],
        kinds: Sequence[WorkKind] = (WorkKind.ATTENTION,),
    ) -> Surface:
        """The time inside attention, or in other kinds of work that depend on sequences."""
        forwards = [forward(row, column) for row in across for column in along]
        times = self._times(self._blocks, forwards, is_by_sequence=True)
        seconds = np.array([sum(time.by_kind.get(kind, 0.0) for kind in kinds) for time in times])
        rows = rising(seconds.reshape(len(across), len(along)))
        return Surface(
            across=tuple(map(float, across)), along=tuple(map(float, along)), seconds=tuple(map(tuple, rows.tolist()))
        )

    def states(self, reach: StepRange) -> Surface:
        """The time in the states of recurrent layers, of which a step launches one kernel for all its prompts."""
        return self.surface(
            _points(1, reach.sequences, steps=1),
            _points(_SHORTEST_CHUNK, reach.tokens, steps=2),
            lambda prompts, new: Forward(sequences=prompts, queries=new, keys=new),
            (WorkKind.STATES,),
        )

    def _times(
        self, blocks: EngineBlocks, forwards: Sequence[Forward], *, is_by_sequence: bool = False
    ) -> list[ForwardTime]:
        distinct = dict.fromkeys(forwards)  # a chunk has itself before it at least, this many questions are the same
        times = self._timer.times(
            [
                RankForward(blocks=blocks, forward=forward, plan=self._plan, is_by_sequence=is_by_sequence)
                for forward in distinct
            ]
        )
        if unknown := max(time.unknown for time in times):
            raise UntimedKernels(
                f"No measured table has {unknown:,} of the kernels of a step.",
                why="a step without them would look faster than it is",
                fix="choose another device or engine, or time one run: llm-perf-opt trace MODEL --device ID",
            )
        time_of = dict(zip(distinct, times, strict=True))
        return [time_of[forward] for forward in forwards]


def rising(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times that never fall along an axis; times of measured kernels do, by their errors.

    Between the longest of all smaller steps and the shortest of all larger ones, which could have been padded to: the
    middle of both, so that errors stay as likely to either side. Times that rise already stay as they are.
    """
    longest = shortest = seconds
    for axis in range(seconds.ndim):
        longest = np.maximum.accumulate(longest, axis=axis)
        shortest = np.flip(np.minimum.accumulate(np.flip(shortest, axis), axis=axis), axis)
    middle: NDArray[np.float64] = np.sqrt(longest * shortest)
    return middle


def _without_attention(time: ForwardTime) -> float:
    return time.seconds - sum(time.by_kind.get(kind, 0.0) for kind in (WorkKind.ATTENTION, WorkKind.STATES))


def _head_alone(time: ForwardTime) -> float:
    """The matmul, its adapters and, where ranks share it, the collective that gathers the logits."""
    return sum(time.by_kind.get(kind, 0.0) for kind in (WorkKind.MATMULS, WorkKind.LORA, WorkKind.LINKS))


def _points(first: int, last: int, steps: int = 4) -> list[int]:
    """Powers of two from `first` to `last`, with this many points to each doubling."""
    points, number = [first], float(first)
    while points[-1] < last:
        number *= 2 ** (1 / steps)
        if (rounded := min(last, round(number))) > points[-1]:
            points.append(rounded)
    return points


def _origins(seen: Sequence[ForwardTime]) -> str:
    """Which share of the time without attention came from where, at the middle of the grid."""
    middle = seen[len(seen) // 2]
    total_s = sum(middle.by_origin.values()) or 1.0
    return ", ".join(f"{origin}: {share / total_s:.0%}" for origin, share in sorted(middle.by_origin.items()))
