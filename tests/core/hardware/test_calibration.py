from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import device_text, read_devices
from llm_perf_opt.core.hardware.calibration import (
    Calibration,
    Timing,
    measured_device,
    read_calibration,
    write_calibration,
)
from tests.timing.made_calibrations import calibration, matmul_seconds, table, timing


def made() -> Calibration:
    """1 TFLOP/s less what reading the weight costs; copies at 8 GB/s; 5 us for the smallest sum, give or take 2."""
    ticks = {"rows": (1, 1000), "columns": (1000,), "depth": (1000,)}
    return calibration(
        table("matmul", "bfloat16", ticks, matmul_seconds),
        table("copy", "bfloat16", {"elements": (10, 1000)}, lambda count: 4 * count / 8e9, spread=0.5),
        table("arithmetic", "float32", {"elements": (16, 1024)}, lambda count: 5e-6, spread=0.4),
        fresh_byte_s=3e-10,
    )


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    write_calibration(made(), tmp_path / "machine.json")
    assert read_calibration(tmp_path / "machine.json") == made()


def test_a_calibration_without_fresh_memory_survives_too(tmp_path: Path) -> None:
    write_calibration(replace(made(), fresh_byte=None), tmp_path / "machine.json")
    assert read_calibration(tmp_path / "machine.json").fresh_byte is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": 99}, "99"),
        ({"tables": [{"family": "copy"}]}, r"malformed at tables\[0\]"),
        ({"threads": "many"}, "expected a whole number, found the text 'many'"),
        ({"tables": 3}, "expected a list, found 3"),
        ({"clok": "wall"}, r"expected a known key \(did you mean 'clock'\?\), found the text 'clok'"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_reason(tmp_path: Path, change: dict[str, object], why: str) -> None:
    file = tmp_path / "machine.json"
    write_calibration(made(), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(PerfOptError, match=why):
        read_calibration(file)


@pytest.mark.parametrize("content", ["", "[]", "{", "\ud800"])
def test_no_content_at_all_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "machine.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(PerfOptError, match="calibration file"):
        read_calibration(file)


def test_a_table_with_holes_or_impossible_times_is_refused() -> None:
    whole = made().tables[0]
    with pytest.raises(ValueError, match="do not fill"):
        replace(whole, times=whole.times[:-1])
    with pytest.raises(ValueError, match="ascend"):
        replace(whole, ticks=((1000, 1), (1000,), (1000,)))
    with pytest.raises(ValueError, match="in order"):
        replace(whole, times=(timing(1.0), Timing(median_s=1.0, fastest_s=2.0, slowest_s=3.0)))
    with pytest.raises(ValueError, match="growth"):
        replace(whole, growth=(1,))


def test_the_device_of_a_calibration_has_the_best_rates_that_were_measured() -> None:
    device = measured_device(made())
    assert device.peak("bfloat16") == pytest.approx(2e9 / (2e-3 + 2e-4), rel=1e-6)
    assert device.bandwidth_bytes_per_s == 8 * 10**9
    overheads = (device.launch_overhead_fastest_ns, device.launch_overhead_ns, device.launch_overhead_slowest_ns)
    assert overheads == (3000, 5000, 7000)
    assert device.threads == 2
    assert device.memory_bytes == 2**34
    assert device.is_measured
    assert device.id == "a-machine-tm-9000-2-threads"


def test_the_device_of_a_calibration_can_be_read_from_its_file() -> None:
    device = measured_device(made())
    assert read_devices(device_text(device), "measured.toml")[device.id] == device


def test_threads_of_the_host_do_not_bind_the_figures_of_a_gpu() -> None:
    assert measured_device(replace(made(), kind="cuda")).threads is None


def test_without_matmuls_there_is_no_device() -> None:
    with pytest.raises(PerfOptError, match="no matrix rate"):
        measured_device(calibration())
