"""A quick calibration for real: the smallest sizes, on one thread."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.calibration import Calibration, Timing
from llm_perf_opt.core.plugins import CALIBRATORS
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.measurements.calibrate.calibrate import ColdWeights, calibrate, combined, fresh_byte, matmul_probes
from llm_perf_opt.measurements.calibrate.probe import Stopwatch
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.predict import predict
from tests.timing.made_calibrations import calibration, table


@pytest.fixture(scope="module")
def quick() -> Calibration:
    return calibrate(threads=1, smoke=True)


def test_every_table_is_of_its_own_and_the_threads_are_as_before(quick: Calibration) -> None:
    threads = torch.get_num_threads()
    assert quick.threads == 1
    assert len({(table.family, table.dtype) for table in quick.tables}) == len(quick.tables)
    assert torch.get_num_threads() == threads
    assert quick.fresh_byte is not None
    assert 0 <= quick.fresh_byte.median_s < 1e-7  # a difference of two times, which noise may leave near nothing


def test_a_larger_matmul_takes_longer(quick: Calibration) -> None:
    matmuls = quick.table("matmul", "bfloat16")
    assert matmuls is not None
    assert matmuls.times[-1].fastest_s > matmuls.times[0].fastest_s


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_op_of_deepseek_ocr_belongs_to_a_measured_family(quick: Calibration, attention: str) -> None:
    workload = DeepSeekOcrWorkload(image="90x130", attention=attention, decode_steps=2)
    for target in DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny()).targets(workload):
        stages = predict(WeightlessTracer(device="cpu").trace(target), CalibratedRates(quick))
        assert [stage.untimed for stage in stages if stage.untimed] == []
        assert all(0 < stage.wall.low <= stage.wall.expected <= stage.wall.high for stage in stages)


def test_of_three_rounds_the_middle_counts_size_by_size() -> None:
    ticks = {"elements": (1, 2)}
    times: list[dict[int, float]] = [{1: 9.0, 2: 2.0}, {1: 3.0, 2: 9.0}, {1: 1.0, 2: 4.0}]
    rounds = [calibration(table("copy", "float32", ticks, lambda count, of=of: of[count])) for of in times]
    (copies,) = combined(rounds).tables
    assert [time.median_s for time in copies.times] == [3.0, 4.0]
    (copies,) = combined(rounds[:2]).tables
    assert [time.median_s for time in copies.times] == [3.0, 2.0], "of two rounds the faster"


def test_the_stopwatch_tries_as_often_as_it_is_told() -> None:
    calls: list[int] = []
    Stopwatch(fewest=4, most=4).time(lambda: calls.append(1), sweep=False)
    assert len(calls) == 4 + 2  # one to warm up, one to see whether it is short
    calls.clear()
    Stopwatch(fewest=4, most=4).time(lambda: calls.append(1))
    assert len(calls) == 2 * 4 + 2  # after a sweep two in a row


def test_cold_weights_come_from_all_of_the_pool() -> None:
    weights = ColdWeights(100, "float32", "cpu")
    starts = [weights.take(5, 8).storage_offset() for _ in range(4)]
    assert starts == [0, 40, 0, 40]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_small_pool_holds_the_largest_weight_of_any_type(dtype: str) -> None:
    for probe in matmul_probes(dtype, "cpu", pool_bytes=2**20):
        sizes = {"rows": 1, "columns": max(probe.axes["columns"]), "depth": max(probe.axes["depth"])}
        assert probe.prepare(**sizes)().shape == (1, sizes["columns"])


def test_it_is_found_by_name() -> None:
    assert CALIBRATORS.get("torch") is calibrate


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(PerfOptError, match="cpu and cuda"):
        calibrate(device="meta")


def test_fresh_memory_costs_what_writing_to_it_takes_longer_than_writing_to_old() -> None:
    class Clock(Stopwatch):
        def time(self, work: object, *, sweep: bool = True) -> Timing:
            told.append(work)
            return Timing(fastest_s=1.0, median_s=2.0, slowest_s=4.0) if len(told) == 1 else fresh

    told: list[object] = []
    fresh = Timing(fastest_s=5.0, median_s=7.0, slowest_s=12.0)
    assert fresh_byte(Clock(), 100) == Timing(fastest_s=0.03, median_s=0.05, slowest_s=0.1)
