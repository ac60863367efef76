"""One time model, several sources of rates: what any of them has to give, and where each time comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.lower_bound import LowerBound
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.prediction_report import prediction_report
from llm_perf_opt.timing.rates import Band, Piece, RateSource, RateTime, StagePieces
from llm_perf_opt.timing.stage_work import StageWork
from tests.timing.made_calibrations import calibration, table
from tests.timing.made_decode import EXPERTS, LAYERS, made_decode

MATMUL_S = 7e-6
MATMULS = LAYERS * EXPERTS
MACHINE = calibration(
    table("narrow_matmul", "bfloat16", {"rows": (1, 64), "columns": (8, 64), "depth": (8, 64)}, lambda m, n, k: 1e-6),
    table("silu", "bfloat16", {"elements": (16, 64)}, lambda count: 1e-7, spread=0.5),
    table("copy", "bfloat16", {"elements": (16, 1024)}, lambda count: 1e-7),
    table("gather", "bfloat16", {"elements": (16, 64), "width": (8,)}, lambda count, width: 1e-7),
)


@dataclass(frozen=True)
class MeasuredKernels:
    """A table of one measured kernel, and below it the rates of a data sheet for everything else."""

    below: DataSheetRates

    name = "kernel table"

    @property
    def title(self) -> str:
        return self.below.title

    @property
    def device(self) -> Device:
        return self.below.device

    @property
    def is_engine(self) -> bool:
        return False

    @property
    def engine(self) -> str | None:
        return None

    @property
    def cluster(self) -> Cluster | None:
        return self.below.cluster

    def notes(self) -> Iterator[Note]:
        yield from self.below.notes()

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        return self.below.pieces(graph, works)

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        self.below.meet(graphs)

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        if isinstance(piece, Kernel) and piece.kind is KernelKind.MATMUL:
            return (RateTime(source=self.name, rate="gemm", band=Band(MATMUL_S, MATMUL_S, MATMUL_S)),)
        return self.below.duration(piece)

    def launch_time(self) -> Band:
        return self.below.launch_time()

    def least_s(self, lower_bound: LowerBound) -> float:
        return self.below.least_s(lower_bound)

    def likely_s(self, lower_bound: LowerBound) -> float:
        return self.below.likely_s(lower_bound)

    def of_stage(self, kernels: Band) -> Band:
        return self.below.of_stage(kernels)


H100 = find_device("h100-sxm")
SOURCES: list[RateSource] = [
    DataSheetRates(H100),
    DataSheetRates(H100, Execution.FUSED),
    CalibratedRates(MACHINE),
    MeasuredKernels(DataSheetRates(H100)),
]
NAMES = ["eager", "fused", "calibrated", "measured kernels"]


@pytest.mark.parametrize("rates", SOURCES, ids=NAMES)
def test_the_times_by_rate_add_up_to_the_stage(rates: RateSource) -> None:
    (stage,) = predict(made_decode(), rates)
    bands = stage.by_rate.values()
    assert sum(band.high for band in bands) == pytest.approx(stage.device_time.high)
    assert stage.wall.low <= stage.wall.high
    assert stage.untimed == {}


@pytest.mark.parametrize("rates", SOURCES, ids=NAMES)
def test_any_source_fills_the_report(rates: RateSource) -> None:
    report = prediction_report([made_decode()], rates)
    assert rates.title in report.title
    assert report.tables[0].rows[0][0] == "decode"
    names = {column.name.removeprefix("data sheet ") for column in report.tables[0].columns}
    assert {"low", "high"} <= names


def test_every_time_knows_its_source_and_its_rate() -> None:
    (stage,) = predict(made_decode(), MeasuredKernels(DataSheetRates(H100)))
    by_rate = stage.by_rate
    assert set(by_rate) == {("kernel table", "gemm"), ("data sheet", "vector")}
    assert by_rate["kernel table", "gemm"].high == pytest.approx(MATMULS * MATMUL_S)


def test_a_time_is_expected_only_where_every_part_of_it_is() -> None:
    """A data sheet gives ends alone, so a sum with one of its times has no expected value."""
    (measured,) = predict(made_decode(), CalibratedRates(MACHINE))
    (mixed,) = predict(made_decode(), MeasuredKernels(DataSheetRates(H100)))
    assert measured.wall.expected is not None and mixed.wall.expected is None
    assert measured.wall.low < measured.wall.expected < measured.wall.high
    assert Band(1, 3, 2) + Band(1, 1, 1) == Band(2, 4, 3)
    assert Band(1, 3, 2) + Band(1, 1) == Band(2, 4)


def test_without_a_data_sheet_there_is_no_lower_bound_and_no_count_of_launches() -> None:
    (stage,) = predict(made_decode(), CalibratedRates(MACHINE))
    assert (stage.lower_bound, stage.lower_bound_s, stage.bound_by, stage.launches) == (None, None, None, None)
