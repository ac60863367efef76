"""A measured server next to its replay, and the factors by which measured steps correct a step table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import naming_file, read_bytes
from llm_perf_opt.core.report import Cell, Column, Kind, Note, Table
from llm_perf_opt.core.units import format_ratio
from llm_perf_opt.measurements.measurement import MEASURED_FILE, MeasuredRun, Quantity
from llm_perf_opt.measurements.read import read_measured
from llm_perf_opt.measurements.serving_results import MeasuredStep, is_step_log, read_steps
from llm_perf_opt.serving.capacity.replay_report import Banded
from llm_perf_opt.serving.capacity.steady_state import MeanRequest
from llm_perf_opt.serving.served_model import Replica
from llm_perf_opt.timing.step.step_table import Curve, StepTable

MEASURED = "Measured and replayed, median of the requests"
_FEWEST = 3  # steps, for a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFactors:
    """Measured over table, the median of steps that only decode and of steps with prompts; None: too few of them.

    `by_batch` are factors of steps that decode this many sequences, where enough were measured. `spread` is the middle
    half of the ratios of both kinds after the correction, over their median.
    """

    decode: float | None
    prompts: float | None
    decode_steps: int
    prompt_steps: int
    spread: float | None
    by_batch: tuple[tuple[float, float], ...] = ()

    def notes(self) -> Iterator[Note]:
        """What was corrected, as a sentence."""
        parts = [
            f"{name} x {factor:.3g} ({steps:,} steps)"
            for name, factor, steps in (
                ("decode", self.decode, self.decode_steps),
                ("prompts", self.prompts, self.prompt_steps),
            )
            if factor is not None
        ]
        if len(self.by_batch) > 1:
            (few, first), (many, last) = self.by_batch[0], self.by_batch[-1]
            parts[0] += f", from x {first:.3g} in batches of {few:.0f} to x {last:.3g} in batches of {many:.0f}"
        spread = "" if self.spread is None else f"; half of the steps are within {format_ratio(self.spread)} of that"
        yield Note(f"Step times are corrected by measured steps: {', '.join(parts)}{spread}.")

    def of_decode(self, sequences: float) -> float:
        """The factor of a step of that batch: between measured batches by logarithms, beyond as at the last."""
        if not self.by_batch:
            return self.decode if self.decode is not None else self.of_prompts
        batches, factors = zip(*self.by_batch, strict=True)
        return Curve(at=batches, seconds=factors)(min(sequences, batches[-1]))

    @property
    def of_prompts(self) -> float:
        """The factor of prompts; where no prompt was measured, the factor of decode steps."""
        factor = self.prompts if self.prompts is not None else self.decode
        assert factor is not None
        return factor

    @property
    def most_decoding(self) -> float:
        """The largest batch with a factor of its own."""
        return self.by_batch[-1][0] if self.by_batch else 1.0


def step_factors(steps: Sequence[MeasuredStep], table: StepTable, context_tokens: float) -> StepFactors:
    """The factors by which measured steps differ from the table's, with `context_tokens` cached for each sequence."""
    decode: dict[int, list[float]] = defaultdict(list)  # by the number of sequences
    prompts: list[float] = []
    for step in steps:
        expected = _expected(step, table, context_tokens)
        if expected > 0 and step.only_decodes:
            decode[step.decoding].append(step.seconds / expected)
        elif expected > 0 and step.prompts:
            prompts.append(step.seconds / expected)
    every = [ratio for ratios in decode.values() for ratio in ratios]
    medians = [statistics.median(ratios) if len(ratios) >= _FEWEST else None for ratios in (every, prompts)]
    if medians == [None, None]:
        raise UsageError(
            "These steps correct nothing.",
            why=f"fewer than {_FEWEST} of them only decode, and fewer than {_FEWEST} read prompts",
            fix="give a log with more steps",
        )
    factors = StepFactors(
        decode=medians[0],
        prompts=medians[1],
        decode_steps=len(every),
        prompt_steps=len(prompts),
        spread=None,
        by_batch=tuple(_by_batch(decode)),
    )
    rest = [ratio / factors.of_decode(batch) for batch, ratios in decode.items() for ratio in ratios if factors.decode]
    rest += [ratio / factors.prompts for ratio in prompts if factors.prompts]
    low, _, high = statistics.quantiles(rest, n=4)
    return replace(factors, spread=(high - low) / 2)


def _by_batch(decode: Mapping[int, Sequence[float]]) -> Iterator[tuple[float, float]]:
    """One factor for each doubling of the batch, where enough steps had such a batch."""
    together: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for batch, ratios in decode.items():
        together[(batch - 1).bit_length()] += [(batch, ratio) for ratio in ratios]
    for _, pairs in sorted(together.items()):
        if len(pairs) >= _FEWEST:
            yield statistics.median(batch for batch, _ in pairs), statistics.median(ratio for _, ratio in pairs)


def _expected(step: MeasuredStep, table: StepTable, context_tokens: float) -> float:
    chunks = [(step.prompt_tokens // step.prompts, 0)] * step.prompts if step.prompts else []
    return table.host_s + table.seconds(step.decoding, round(step.decoding * context_tokens), chunks)


def corrected(table: StepTable, factors: StepFactors) -> StepTable:
    """The table with both stages corrected. Where one was not measured, the factor of the other holds for both.

    A step no larger than the largest captured batch counts as a decode step, or, where no graph is captured, one no
    larger than the largest measured batch. The tokens of a larger step are taken as tokens of prompts.
    """
    largest = table.padded_to[-1] if table.padded_to else factors.most_decoding

    def of_tokens(tokens: float) -> float:
        return factors.of_decode(tokens) if tokens <= largest else factors.of_prompts

    knots = tuple(at for at, _ in factors.by_batch)
    border = (largest, largest + 1.0)  # one point on each side, so that the two factors do not mix
    rows = zip(table.decoding.across, table.decoding.seconds, strict=True)
    decoding = (tuple(second * factors.of_decode(at) for second in row) for at, row in rows)
    return replace(
        table,
        tokens=_times(table.tokens, of_tokens, (*knots, *border)),
        head=_times(table.head, factors.of_decode, knots),
        decoding=replace(table.decoding, seconds=tuple(decoding)),
        prompts=table.prompts.slower(factors.of_prompts),
        states=None if table.states is None else table.states.slower(factors.of_prompts),
        host_s=table.host_s * factors.of_decode(1.0),
        origin=f"{table.origin}; corrected by measured steps",
    )


def _times(curve: Curve, factor: Callable[[float], float], more: Sequence[float]) -> Curve:
    """The curve times a factor of its own at every point, and at `more` of them."""
    points = {at: curve(at) * factor(at) for at in (*curve.at, *more)}
    return Curve(at=tuple(sorted(points)), seconds=tuple(points[at] for at in sorted(points)))


def measured_table(runs: Sequence[MeasuredRun], banded: Banded) -> Table:
    """Measured medians next to the medians of the replay, with their low and high estimates."""
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
    return Table(title=MEASURED, columns=columns, rows=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredServer:
    """Runs and steps of one server; both may be empty. `factors` belong to the step tables corrected so far."""

    runs: tuple[MeasuredRun, ...] = ()
    steps: tuple[MeasuredStep, ...] = ()
    factors: list[StepFactors] = field(default_factory=list)

    def corrected(self, replica: Replica, mean: MeanRequest, plans: int) -> Replica:
        """The replica with its step table corrected; as it is where no steps were measured."""
        if not self.steps:
            return replica
        if plans > 1:
            raise UsageError(
                "Measured steps are of one plan.",
                why=f"{plans} plans are considered, and their steps differ by more than a factor",
                fix="name the plan that was measured: one cluster in --devices, and --tp",
            )
        self.factors.append(step_factors(self.steps, replica.table, mean.mean_context))
        table = corrected(replica.table, self.factors[-1])
        return replace(replica, steady=replace(replica.steady, table=table))

    def notes(self) -> Iterator[Note]:
        """What was corrected in the last step table."""
        for factor in self.factors[-1:]:
            yield from factor.notes()


def read_server(given: str | Path | Sequence[str | Path] | None) -> MeasuredServer:
    """Files of a load generator, of vLLM's metrics, and of its log of iterations, in any order."""
    files = [] if given is None else [given] if isinstance(given, str | Path) else list(given)
    runs: list[MeasuredRun] = []
    steps: list[MeasuredStep] = []
    for file in files:
        if Path(file).is_file() and is_step_log(raw := read_bytes(Path(file), MEASURED_FILE)):
            with naming_file(file):
                steps += read_steps(raw)
        else:
            runs += read_measured(file).runs
    return MeasuredServer(runs=tuple(runs), steps=tuple(steps))
