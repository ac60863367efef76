"""Eager PyTorch on a GPU without tables of measured kernels: recordings where they speak, else the data sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware.priors import eager_rates
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution, RatesAbove
from llm_perf_opt.timing.eager_time import SOURCE, eager_time
from llm_perf_opt.timing.kernels.times import TimeOrigin
from llm_perf_opt.timing.rates import Piece, Pieces, RateTime
from llm_perf_opt.timing.stage_work import StageWork


@dataclass(frozen=True, slots=True)
class RecordedRates(RatesAbove):
    """A data sheet under the recordings of a GPU of the same vendor; they are of eager PyTorch alone."""

    @property
    def name(self) -> str:
        """The origin of its times."""
        return SOURCE

    def notes(self) -> Iterator[Note]:
        """Who launches the kernels, and what was recorded."""
        yield from self.below.notes()
        if (rates := eager_rates(self.device)) is not None:
            yield Note(
                f"Kernel times are from recordings of eager PyTorch on {rates.device}; docs/eager-kernels.md says "
                "which. Work that they do not describe is timed by the roofline."
            )

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, Pieces]:
        """The kernels of each stage as written."""
        return self.below.pieces(graph, works)

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The device time of one launch; what was not recorded is expected in the middle of its ends."""
        if isinstance(piece, Kernel) and (recorded := eager_time(piece, self.device)) is not None:
            return (recorded,)
        below = self.below.duration(piece)
        if below is None:
            return None
        return tuple(
            replace(time, band=time.band.expected_in_the_middle(), origin=str(TimeOrigin.ROOFLINE)) for time in below
        )


def recorded_rates(below: DataSheetRates) -> RecordedRates | None:
    """Recordings above a data sheet; None: an engine runs the kernels, or no GPU of the vendor was recorded."""
    if below.execution is not Execution.EAGER or eager_rates(below.device) is None:
        return None
    return RecordedRates(below)
