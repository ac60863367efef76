"""A measured server beside its replay, and what measured steps correct in a step table: one factor for each stage."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.capacity.tables import Banded
from llm_perf_opt.analyses.measured.measurement import MeasuredRun, Quantity
from llm_perf_opt.analyses.measured.step_log import MeasuredStep
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Cell, Column, Kind, Note, Table
from llm_perf_opt.core.serving.step_table import Curve, StepTable, Surface
from llm_perf_opt.core.units import format_ratio

BESIDE = "Measured beside replayed, median of the requests"
_FEWEST = 3  # steps, for a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFactors:
    """Measured over table, the median of steps that only decode and of steps with prompts; None: too few of them.

    `spread` is the middle half of the ratios of both kinds after the correction, over their median.
    """

    decode: float | None
    prompts: float | None
    decode_steps: int
    prompt_steps: int
    spread: float | None

    def notes(self) -> Iterator[Note]:
        """What was corrected, in words."""
        parts = [
            f"{name} x {factor:.3g} ({steps:,} steps)"
            for name, factor, steps in (
                ("decode", self.decode, self.decode_steps),
                ("prompts", self.prompts, self.prompt_steps),
            )
            if factor is not None
        ]
        spread = "" if self.spread is None else f"; half of the steps lie within {format_ratio(self.spread)} of that"
        yield Note(f"Step times are corrected by measured steps: {', '.join(parts)}{spread}.")


def step_factors(steps: Sequence[MeasuredStep], table: StepTable, context_tokens: float) -> StepFactors:
    """The factors by which measured steps differ from the table's, with `context_tokens` cached for each sequence."""
    decode, prompts = [], []
    for step in steps:
        expected = _expected(step, table, context_tokens)
        if expected > 0 and step.only_decodes:
            decode.append(step.seconds / expected)
        elif expected > 0 and step.prompts:
            prompts.append(step.seconds / expected)
    medians = [statistics.median(ratios) if len(ratios) >= _FEWEST else None for ratios in (decode, prompts)]
    if medians == [None, None]:
        raise UsageError(
            "These steps correct nothing.",
            why=f"fewer than {_FEWEST} of them decode alone, and fewer than {_FEWEST} read prompts",
            fix="give a log with more steps",
        )
    rest = [
        ratio / middle
        for ratios, middle in zip((decode, prompts), medians, strict=True)
        if middle is not None
        for ratio in ratios
    ]
    low, _, high = statistics.quantiles(rest, n=4)
    return StepFactors(
        decode=medians[0],
        prompts=medians[1],
        decode_steps=len(decode),
        prompt_steps=len(prompts),
        spread=(high - low) / 2,
    )


def _expected(step: MeasuredStep, table: StepTable, context_tokens: float) -> float:
    chunks = [(step.prompt_tokens // step.prompts, 0)] * step.prompts if step.prompts else []
    return table.host_s + table.seconds(step.decoding, round(step.decoding * context_tokens), chunks)


def corrected(table: StepTable, factors: StepFactors) -> StepTable:
    """The table with both stages corrected. Where one was not measured, the factor of the other holds for both.

    Steps as large as captured batches are steps of decoding; from there on tokens are those of prompts.
    """
    decode = factors.decode if factors.decode is not None else factors.prompts
    prompts = factors.prompts if factors.prompts is not None else factors.decode
    assert decode is not None and prompts is not None
    largest = table.padded_to[-1] if table.padded_to else 1

    def curve(one: Curve) -> Curve:
        """With a point on either side of the border, so that nothing between the two is a mixture of both."""
        points = {at: one(at) * (decode if at <= largest else prompts) for at in (*one.at, largest, largest + 1.0)}
        return Curve(at=tuple(sorted(points)), seconds=tuple(points[at] for at in sorted(points)))

    def surface(one: Surface, by: float) -> Surface:
        return replace(one, seconds=tuple(tuple(second * by for second in row) for row in one.seconds))

    return replace(
        table,
        tokens=curve(table.tokens),
        head=replace(table.head, seconds=tuple(second * decode for second in table.head.seconds)),
        decoding=surface(table.decoding, decode),
        prompts=surface(table.prompts, prompts),
        host_s=table.host_s * decode,
        origin=f"{table.origin}; corrected by measured steps",
    )


def beside_table(runs: Sequence[MeasuredRun], banded: Banded) -> Table:
    """Medians that were measured, and the same of the replay with its band."""
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for name, quantity in (("TTFT", Quantity.TTFT), ("TPOT", Quantity.TPOT)):
            measured, times = run.time_of(quantity), banded.expected.times().get(name)
            if measured is None or times is None:
                continue
            low, high = (edge.times()[name].median_s for edge in (banded.low, banded.high))
            is_inside = "yes" if low <= measured.seconds <= high else "no"
            ratio = times.median_s / measured.seconds
            rows.append((run.file, name, measured.seconds, times.median_s, low, high, ratio, is_inside))
    columns = (
        Column("measured in"),
        Column("time"),
        *(Column(name, Kind.SECONDS) for name in ("measured", "replayed", "low", "high")),
        Column("replayed / measured", Kind.RATIO),
        Column("inside the band"),
    )
    return Table(title=BESIDE, columns=columns, rows=tuple(rows))
