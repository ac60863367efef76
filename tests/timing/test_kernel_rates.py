"""Times from tables of measured kernels: single rows added up by hand, and what happens where no table speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.ops.kernel_shape import MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing import kernel_rates
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.kernel_rates import KernelTableRates, require_tables, table_rates
from llm_perf_opt.timing.kernels.tables import list_tables, newest, read_rows
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S, TimeOrigin
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.stage_work import stage_works
from llm_perf_opt.timing.step.request_time import request_fit
from tests.timing.kernels.measured_tables import needs_tables
from tests.timing.made_decode import made_decode
from tests.timing.test_fusions import published, traced

pytestmark = needs_tables

H100 = find_device("h100-sxm")
ROWS = 16


def rates_of(execution: Execution = Execution.FUSED, engine: str | None = "vllm") -> KernelTableRates:
    found = table_rates(DataSheetRates(H100, execution), engine)
    assert found is not None
    return found


def matmul(columns: int, depth: int, rows: int = ROWS, weight_format: str = "bfloat16") -> Kernel:
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype="bfloat16",
        flops=2 * rows * columns * depth,
        skippable_flops=0,
        bytes_moved=2 * (rows * depth + columns * depth + rows * columns),
        rows=rows,
        weights=columns * depth,
        shape=MatmulShape(rows=rows, columns=columns, depth=depth, weight_format=weight_format),
    )


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CallGraph]:
    config = published("llama-3.1-8b", num_hidden_layers=2)
    return traced(tmp_path_factory.mktemp("dense"), config, batch=ROWS, prompt_tokens=1024)


def test_a_matmul_of_the_grid_takes_the_time_of_its_row() -> None:
    """The row itself, read from the file: 16 rows, 6144 columns, depth 4096, the projections of Llama-3.1-8B."""
    table = newest("h100_sxm", "gemm", "vllm")
    assert table is not None
    found = read_rows(table, ("m",), where="gemm_dtype = 'bfloat16' and m = 16 and n = 6144 and k = 4096")
    (measured,) = found["seconds"].tolist()
    (time,) = rates_of().duration(matmul(6144, 4096)) or ()
    assert time.origin == TimeOrigin.MEASURED
    assert time.band.expected == pytest.approx(measured, rel=0.12), "but for rows above the monotone envelope"
    assert time.band.low <= (time.band.expected or 0.0) <= time.band.high
    assert time.band.low >= 1e-9


def test_a_step_is_the_sum_of_its_kernels(dense: dict[str, CallGraph]) -> None:
    (stage,) = predict(dense["decode"], rates_of())
    by_hand = sum((time.band.expected or 0.0) * piece.count for piece in stage.pieces for time in piece.times)
    assert stage.device_time.expected == pytest.approx(max(by_hand, stage.lower_bound_s or 0.0))
    assert stage.lower_bound_s is not None
    assert stage.lower_bound_s <= stage.wall.low <= (stage.wall.expected or 0.0) <= stage.wall.high
    assert sum(stage.by_origin.values()) == pytest.approx(1.0)
    assert {TimeOrigin.MEASURED, TimeOrigin.ROOFLINE} <= set(stage.by_origin)
    fit = request_fit().tpot
    assert stage.device_time.high == pytest.approx(by_hand * fit.high), "served steps differ by more than kernels do"
    assert stage.device_time.low == pytest.approx(max(by_hand * fit.low, stage.lower_bound_s))


def test_kernels_that_read_from_caches_do_not_make_a_step_faster_than_memory(dense: dict[str, CallGraph]) -> None:
    """Kernels of a nanosecond: the bytes at the best bandwidth of the tables are expected, by the roofline."""
    rates = rates_of()
    work = stage_works(dense["decode"])
    shapes = {piece.shape for stage in rates.pieces(dense["decode"], work).values() for piece, _ in stage.pieces}
    instant = kernel_rates.KernelTime(TimeOrigin.MEASURED, Band(1e-9, 1e-9, 1e-9))
    rates._known.update(dict.fromkeys((shape for shape in shapes if shape is not None), instant))
    (stage,) = predict(dense["decode"], rates)
    assert stage.lower_bound is not None
    assert 0.7 < rates.best_bandwidth_share < 1.0
    assert stage.wall.expected is not None
    assert stage.wall.expected >= stage.lower_bound.bandwidth_s / rates.best_bandwidth_share
    assert stage.wall.low >= stage.lower_bound.seconds
    assert stage.by_origin[TimeOrigin.ROOFLINE] > 0.9
    (usual,) = predict(dense["decode"], rates_of())
    assert usual.by_origin[TimeOrigin.ROOFLINE] < 0.5


@pytest.mark.parametrize("device", ["l40s", "l4", "h100-sxm"])
def test_no_table_makes_an_expected_time_equal_to_the_lower_bound(dense: dict[str, CallGraph], device: str) -> None:
    found = table_rates(DataSheetRates(find_device(device), Execution.FUSED), "trtllm")
    assert found is not None
    (stage,) = predict(dense["decode"], found)
    assert stage.lower_bound is not None
    assert stage.wall.expected is not None
    assert stage.wall.expected >= stage.lower_bound.bandwidth_s / found.best_bandwidth_share
    assert stage.lower_bound.seconds <= stage.wall.low < stage.wall.expected < stage.wall.high


def test_prefill_stays_above_its_bound_in_both_executions(dense: dict[str, CallGraph]) -> None:
    for execution in Execution:
        (stage,) = predict(dense["prefill"], rates_of(execution, None))
        assert stage.lower_bound_s is not None
        assert stage.lower_bound_s <= stage.wall.low <= (stage.wall.expected or 0.0) <= stage.wall.high


def test_what_no_table_describes_takes_the_roofline() -> None:
    odd = matmul(64, 64, weight_format="float64")
    (time,) = rates_of().duration(odd) or ()
    (below,) = DataSheetRates(H100, Execution.FUSED).duration(odd) or ()
    assert (time.origin, time.source) == (TimeOrigin.ROOFLINE, below.source)
    assert time.band.low == pytest.approx(below.band.low + LAUNCH_GAP_S)
    assert time.band.high == pytest.approx(below.band.high + LAUNCH_GAP_S)
    assert time.band.expected == pytest.approx(below.band.middle + LAUNCH_GAP_S)


def test_an_all_reduce_within_a_node_is_read_from_its_table_and_between_nodes_is_not() -> None:
    def time_of(cluster: str, ranks: int) -> tuple[str | None, float | None]:
        found = table_rates(DataSheetRates(H100, Execution.FUSED, cluster=parse_cluster(cluster)), "vllm")
        assert found is not None
        group = GroupRanks(ranks, 0, ranks - 1, 1)
        collective = Collective(kind=CollectiveKind.ALL_REDUCE, payload_bytes=2**20, group=group)
        kernel = Kernel(
            kind=KernelKind.COMMUNICATION,
            dtype="bfloat16",
            flops=0,
            skippable_flops=0,
            bytes_moved=2**20,
            collective=collective,
        )
        (time,) = found.duration(kernel) or ()
        return time.origin, time.band.expected

    origin, seconds = time_of("8x h100-sxm", 8)
    assert origin in (TimeOrigin.MEASURED, TimeOrigin.INTERPOLATED)
    assert seconds is not None
    assert 2**20 / 450e9 < seconds < 1e-4, "no faster than the links, no slower than the host would be"
    assert time_of("2x8 h100-sxm", 16)[0] == TimeOrigin.ROOFLINE


def test_other_vendors_and_missing_packages_leave_the_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    amd = DataSheetRates(find_device("mi300x"), Execution.FUSED)
    assert table_rates(amd) is None
    with pytest.raises(PerfOptError, match="No measured kernels describe"):
        require_tables(amd.device)
    monkeypatch.setattr(kernel_rates, "missing_packages", lambda: ("duckdb",))
    assert table_rates(DataSheetRates(H100)) is None


def test_a_device_without_tables_is_scaled_and_says_so() -> None:
    found = table_rates(DataSheetRates(find_device("a100-sxm-40g"), Execution.FUSED))
    assert found is not None
    (time,) = found.duration(matmul(4096, 4096)) or ()
    assert time.origin == TimeOrigin.SCALED
    assert any("a100-sxm-80g" in note.text for note in found.notes())


def test_every_system_with_tables_is_a_known_device() -> None:
    from llm_perf_opt.timing.kernels.tables import MEASURED_ON

    assert {table.system for table in list_tables()} == set(MEASURED_ON)


def test_a_made_run_without_shapes_that_tables_list_is_timed(tmp_path: Path) -> None:
    (stage,) = predict(made_decode(), rates_of(Execution.EAGER, None))
    assert stage.wall.expected is not None
    assert not stage.untimed
