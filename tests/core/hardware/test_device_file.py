"""A person's own file of devices: it adds, it replaces, and its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, device_template, device_text, find_device, load_devices, read_devices

MINE = Device(
    id="my-card",
    name='A "quoted" \\ name',
    vendor="me",
    arch="none",
    peak_flops_per_s={"bf16": 12_345_678_900_000, "fp32": 1_000_000_000},
    bandwidth_bytes_per_s=123_456_789_012,
    memory_bytes=8_500_000_000,
    last_cache_bytes=33 * 2**20,
    launch_overhead_ns=4_250,
    launch_overhead_fastest_ns=4_001,
    launch_overhead_slowest_ns=9_000,
    is_measured=True,
    threads=3,
    reported_names=("My Card",),
    sources=("measured",),
    notes="line\nbreak",
)


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_device_survives_its_file(tmp_path: Path) -> None:
    file = write(tmp_path, device_text(MINE) + '\n[calibration.my-card]\nanything = "else"\n')
    assert find_device("my card", file) == find_device("my-card", file) == MINE


def test_the_file_adds_to_the_table_and_replaces_what_it_repeats(tmp_path: Path) -> None:
    text = device_text(MINE).replace("my-card", "rtx-5090").replace("My Card", "NVIDIA GeForce RTX 4090")
    table = load_devices(write(tmp_path, text))
    assert len(table.devices) == len(load_devices().devices)
    assert table.find("rtx-5090").vendor == "me"
    assert table.find("NVIDIA GeForce RTX 4090").id == "rtx-5090"
    assert table.find("rtx-4090").vendor == "NVIDIA"


def test_the_template_reads_as_it_stands() -> None:
    (device,) = read_devices(device_template("abc", 'x" y'), "template").values()
    assert (device.id, device.reported_names) == ("abc", ('x" y',))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("bandwidth_gb_per_s", "bandwith_gb_per_s"),
            "expected the key 'bandwidth_gb_per_s' (not 'bandwith_gb_per_s')",
        ),
        (("memory_gb = 8.5", "memory_gb = 0"), "my-card'].memory_gb.\n  why: expected a number above zero"),
        (
            ("memory_gb = 8.5", 'memory_gb = "8"'),
            "expected a number above zero (leave out what is not known), found the text '8'",
        ),
        (("memory_gb = 8.5", "memory_gb = nan"), "found NaN"),
        (("memory_gb = 8.5", "memory_gb = 1e9999"), "found 1E+9999"),
        (("memory_gb = 8.5\n", ""), "expected the key 'memory_gb'"),
        (("memory_gb = 8.5", "memory_gb = 8.5\nmemory_reported_mib = 8"), "8 MiB are 0.0 GB, not 8.5"),
        (("memory_gb = 8.5", "memory_gb = 8.5\nmemory_reported_mb = 8100"), "did you mean 'memory_reported_mib'"),
        (("bf16 = 12.3456789", "bf17 = 12"), "there is no rate 'bf17'"),
        (('vendor = "me"', "vendor = 3"), "my-card'].vendor.\n  why: expected text, found 3"),
        (('sources = [\n    "measured",\n]\n', ""), "it names no sources"),
        (("launch_overhead_us = 4.25", "launch_overhead_us = 4"), "overheads are not in order"),
        (("launch_overhead_us = 4.25\n", ""), "'launch_overhead_us' is missing"),
        (("threads = 3", "threads = 0"), "my-card'].threads.\n  why: expected a number above zero"),
        (("is_measured = true", "tdp_w = true_"), "is not valid TOML"),
        (
            ("is_measured = true", 'tdp_w = "300"'),
            "my-card'].tdp_w.\n  why: expected a whole number or null, found the text '300'",
        ),
        (("[devices.my-card]", "[device.my-card]"), "describes no devices"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = device_text(MINE)
    assert change[0] in text
    with pytest.raises(UsageError) as caught:
        load_devices(write(tmp_path, text.replace(*change)))
    assert message in f"{caught.value}"
    assert "devices template" in caught.value.fix


def test_the_reported_memory_wins_over_the_nominal_one_and_both_are_kept(tmp_path: Path) -> None:
    """8,192 MiB are 8,589,934,592 bytes, a little more than the nominal 8.5 * 10^9."""
    text = device_text(MINE).replace("memory_gb = 8.5", "memory_gb = 8.5\nmemory_reported_mib = 8192")
    device = find_device("my-card", write(tmp_path, text))
    assert (device.memory_bytes, device.nominal_memory_bytes) == (8_589_934_592, 8_500_000_000)
    assert device.unverified == ()
    assert read_devices(device_text(device), "text") == {"my-card": device}


def test_a_data_sheet_alone_leaves_the_memory_unverified_and_a_measurement_does_not(tmp_path: Path) -> None:
    text = device_text(MINE)
    assert find_device("my-card", write(tmp_path, text)).unverified == ()
    bare = find_device("my-card", write(tmp_path, text.replace("is_measured = true\n", "")))
    assert (bare.memory_bytes, bare.unverified) == (8_500_000_000, ("memory_gb",))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no device file"):
        load_devices(tmp_path / "absent.toml")
