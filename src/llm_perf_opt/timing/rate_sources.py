"""Where the times of a prediction come from: a device or a calibration that was named, as a source of rates.

Eager PyTorch on a GPU without tables of measured kernels: recordings where they speak, else the data sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.hardware.links import Hardware, cluster_of, device_of, find_hardware, require_room
from llm_perf_opt.core.hardware.priors import eager_rates
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution, RatesAbove
from llm_perf_opt.timing.eager_time import SOURCE, eager_time
from llm_perf_opt.timing.kernels.times import TimeOrigin
from llm_perf_opt.timing.rates import Piece, RateSource, RateTime, StagePieces
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
                f"Kernel times come from recordings of eager PyTorch on {rates.device}; "
                "docs/evidence/eager-kernels.md lists "
                "them. Work that they do not describe is timed by the roofline."
            )

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """The kernels of each stage as written."""
        return self.below.pieces(graph, works)

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The device time of one launch; what was not recorded is expected between low and high."""
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


Machine = Hardware | Calibration  # what times are predicted for
DATA_SHEET, TABLES = "data-sheet", "tables"
ENGINES = ("vllm", "sglang", "trtllm")
DEFAULT_KERNEL_ENGINE = ENGINES[0]  # its measured kernels time a step; replays run it as well


def find_machine(
    device: str | Hardware | None = None,
    *,
    calibration: str | Path | Calibration | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    weights: str | None = None,
    cache: str | None = None,
    graphs: Sequence[CallGraph] = (),
    rates: str | None = None,
    engine: str | None = None,
) -> Machine:
    """The device or the calibration that times come from, and not both. A wrong one is refused before any work.

    With the `graphs` of a plan a cluster must have a device for each of its ranks.

    A calibration brings its own machine, and was measured launching op by op on dense weights: it takes nothing else.
    """
    refuse_rates(execution, rates, engine)
    if (device is None) == (calibration is None):
        raise UsageError(
            "A prediction needs --device or --calibration, and not both.",
            why="its times come from the figures of a device, or from measurements of one machine",
            fix="llm-perf-opt devices list shows the devices, llm-perf-opt devices calibrate measures this machine",
        )
    if device is not None:
        hardware = find_hardware(device, devices_file)
        require_room(graphs, hardware)
        return hardware
    given = {
        "--devices": devices_file is not None,
        "--execution": execution != Execution.EAGER,
        "--weights": weights is not None,
        "--cache": cache is not None,
        "--rates": rates is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise UsageError(
            f"A calibration has no use for {option}.",
            why="its times were measured on one machine, op by op, on weights that were not quantised",
            fix=f"leave {option} out, or give --device in place of --calibration",
        )
    assert calibration is not None
    return calibration if isinstance(calibration, Calibration) else read_calibration(Path(calibration))


def torch_device_of(machine: Machine) -> str | None:
    """The device that traced code should see; None: the tracer's own default."""
    return machine.kind if isinstance(machine, Calibration) else device_of(machine).torch_device


def source_of(
    machine: Machine,
    execution: str,
    rates: str | None = DATA_SHEET,
    engine: str | None = None,
    runs: Iterable[Sequence[CallGraph]] = (),
) -> RateSource:
    """Where the times of a machine come from. `rates` None: measured tables where they are installed and come near.

    Of `runs`, the phases of each rank, an engine's steps are known as a whole.
    """
    if isinstance(machine, Calibration):
        return CalibratedRates(machine)
    below = DataSheetRates(device_of(machine), Execution(execution), cluster=cluster_of(machine))
    if rates == DATA_SHEET:
        return below
    from llm_perf_opt.timing.kernel_rates import require_tables, table_rates
    from llm_perf_opt.timing.kernels.tables import system_of

    by_tables = table_rates(below, engine or DEFAULT_KERNEL_ENGINE if below.is_engine else None)
    if by_tables is None and (rates == TABLES or engine is not None):
        require_tables(below.device)
    if by_tables is None and system_of(below.device) is None:
        return recorded_rates(below) or below
    if by_tables is None or not by_tables.is_engine:
        return below if by_tables is None else by_tables
    from llm_perf_opt.timing.step.step_rates import StepRates

    steps = StepRates(by_tables.below, by_tables.tables)
    steps.meet(graph for graphs in runs for graph in graphs)
    return steps


def refuse_rates(execution: str, rates: str | None, engine: str | None) -> None:
    """Refuse a source of rates that is not known, and an engine where none runs the kernels or no table times them."""
    if rates not in (None, DATA_SHEET, TABLES):
        raise UsageError(
            f"{rates!r} is no source of rates.", why=f"there are {DATA_SHEET} and {TABLES}", fix="pick one"
        )
    if engine is None:
        return
    if engine not in ENGINES:
        raise UsageError(
            f"{engine!r} is no engine with measured kernels.", why=f"known are {', '.join(ENGINES)}", fix="pick one"
        )
    if execution != Execution.FUSED or rates == DATA_SHEET:
        raise UsageError(
            "--engine names an engine with measured kernels.",
            why="eager PyTorch runs its own kernels, and a data sheet has no times of an engine",
            fix="add --execution fused and leave --rates out, or leave --engine out",
        )
