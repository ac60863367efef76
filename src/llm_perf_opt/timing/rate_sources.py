"""Where the times of a prediction come from: a device or a calibration that was named, as a source of rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.hardware.named_hardware import Hardware, cluster_of, device_of, find_hardware, require_room
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.rates import RateSource

Machine = Hardware | Calibration  # whose times are predicted
DATA_SHEET, TABLES = "data-sheet", "tables"
ENGINES = ("vllm", "sglang", "trtllm")
DEFAULT_KERNEL_ENGINE = ENGINES[0]  # whose measured kernels time a step; replays run it as well


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
    from llm_perf_opt.timing.kernels.systems import system_of
    from llm_perf_opt.timing.recorded_rates import recorded_rates

    found = table_rates(below, engine or DEFAULT_KERNEL_ENGINE if below.is_engine else None)
    if found is None and (rates == TABLES or engine is not None):
        require_tables(below.device)
    if found is None and system_of(below.device) is None:
        return recorded_rates(below) or below
    if found is None or not found.is_engine:
        return below if found is None else found
    from llm_perf_opt.timing.step.step_rates import StepRates

    steps = StepRates(found.below, found.tables)
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
            "--engine says whose measured kernels run.",
            why="eager PyTorch runs its own, and a data sheet knows no engine",
            fix="add --execution fused and leave --rates out, or leave --engine out",
        )
