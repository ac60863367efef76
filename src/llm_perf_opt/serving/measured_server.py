"""What was measured of a server: times of its requests stand beside a replay, and its steps correct the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import naming_file, read_bytes
from llm_perf_opt.core.report import Note
from llm_perf_opt.measurements.measurement import MEASURED_FILE, MeasuredRun
from llm_perf_opt.measurements.read import read_measured
from llm_perf_opt.measurements.serving_results import MeasuredStep, is_step_log, read_steps
from llm_perf_opt.serving.capacity.measured_beside import StepFactors, corrected, step_factors
from llm_perf_opt.serving.capacity.steady_state import MeanRequest
from llm_perf_opt.serving.served_model import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredServer:
    """Runs and steps of one server; both may be empty. `factors` are those of the last table that was corrected."""

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
        return replace(replica, table=corrected(replica.table, self.factors[-1]))

    def notes(self) -> Iterator[Note]:
        """What was corrected."""
        for one in self.factors[-1:]:
            yield from one.notes()


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
