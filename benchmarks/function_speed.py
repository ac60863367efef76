"""How fast a function of the workload answers: many points of Llama 70B, next to the bare formulas in numpy.

Both sides run in one process, rounds interleaved, medians of process CPU time on one thread. The bare side is the same
closed forms, term by term, without any check that a sum fits in 64 bits; it is given which figures do not.

    python -m benchmarks.function_speed                       the table
    python -m benchmarks.function_speed --model FOLDER --rounds 9
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.pages import FACTS
from llm_perf_opt.sweeps.function.form import Form
from llm_perf_opt.sweeps.function.phase_function import FunctionCell, PhaseFunction

LLAMA_70B = FACTS / "deployment" / "configs" / "llama31-70b"
NAMES = ("flops", "vector_flops", "bytes_moved", "peak_bytes")
BATCHES, CONTEXTS = (2, 512), (2, 131_072)


def bare(cell: FunctionCell, points: Mapping[str, Any], large: Sequence[str] = ()) -> list[Any]:
    """The four figures as one would write them by hand; those in `large` with Python's integers."""
    assert cell.figures is not None
    total, wide = cell.figures.total, {name: column.astype(object) for name, column in points.items() if large}
    columns = [_value(getattr(total, name), wide if name in large else points) for name in NAMES[:3]]
    peak = _value(cell.figures.peak_bytes[0], points)
    for form in cell.figures.peak_bytes[1:]:
        peak = np.maximum(peak, _value(form, points))
    return [*columns, peak]


def _value(form: Form, points: Mapping[str, Any]) -> Any:
    total: Any = 0
    for monomial, coefficient in form.terms.items():
        term: Any = coefficient
        for atom in monomial:
            term = term * points[str(atom)]
        total = total + term
    return total


def random_points(cell: FunctionCell, count: int) -> dict[str, Any]:
    """Points of one cell, the same at each call."""
    rng = np.random.default_rng(count)
    return {name: rng.integers(low, high + 1, count) for name, (low, high) in cell.region.items()}


def largest_cell(phase: PhaseFunction) -> FunctionCell:
    """The one with the most points."""
    return max(phase.cells, key=lambda cell: np.prod([high - low + 1.0 for low, high in cell.region.values()]))


def compared(phase: PhaseFunction, count: int, rounds: int) -> tuple[float, float, str]:
    """Milliseconds of the function and of the bare formulas, and the numbers that it needed."""
    cell = largest_cell(phase)
    points = random_points(cell, count)
    large = [name for name, column in phase.figures(points, NAMES).items() if column.dtype == object]
    sides = {"function": lambda: phase.figures(points, NAMES), "bare": lambda: bare(cell, points, large)}
    ours, theirs = (1e3 * statistics.median(spent) for spent in runner.in_turns(sides, rounds).values())
    return ours, theirs, f"Python integers for {', '.join(large)}" if large else "64 bits"


def main() -> None:
    """Print one row for each phase and number of points."""
    parser = runner.parser(__doc__)
    parser.add_argument("--model", type=Path, default=LLAMA_70B)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, nargs=2, default=BATCHES)
    parser.add_argument("--context", type=int, nargs=2, default=CONTEXTS)
    given = parser.parse_args()

    import llm_perf_opt as lpo
    from llm_perf_opt.core.hardware import find_device
    from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution

    began = time.process_time()
    function = lpo.trace(given.model, prompt_tokens=64).over(batch=tuple(given.batch), context=tuple(given.context))
    traces = sum(phase.traces for phase in function.phases)
    print(f"{given.model.name}: made in {time.process_time() - began:.0f} s of CPU from {traces} traces")
    print("phase    points     function, ms  bare numpy, ms  ratio  numbers")
    for phase in function.phases:
        for count in (10**5, 10**6):
            ours, theirs, numbers = compared(phase, count, given.rounds)
            print(f"{phase.phase:8} {count:9,}  {ours:12.1f}  {theirs:14.1f}  {ours / theirs:5.2f}  {numbers}")
        for execution in Execution:
            rates = DataSheetRates(find_device("h100-sxm"), execution)
            points = random_points(largest_cell(phase), 10**5)
            began = time.process_time()
            origin = phase.times(random_points(largest_cell(phase), 10), rates).origin
            first = time.process_time() - began
            if origin == "by form":
                (tries,) = runner.in_turns({"times": partial(phase.times, points, rates)}, 3).values()
                spent = 1e3 * statistics.median(tries)
                print(f"{phase.phase:8}   100,000  {spent:12.1f}  times, {execution}, {origin}; {first:.1f} s before")


if __name__ == "__main__":
    main()
