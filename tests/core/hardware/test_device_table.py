"""The package's devices are the facts, figure by figure, and each is found by its id and by its reported names."""

from __future__ import annotations

import json
import logging
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device, device_text, find_device, load_devices, read_devices
from llm_perf_opt.core.hardware import device as device_module
from llm_perf_opt.core.hardware.device import AMBIGUOUS_NAMES, PEAK_NAMES

FOLDER = Path(__file__).parents[2] / "facts"
FACTS = json.loads((FOLDER / "hardware.json").read_text("utf-8"))["devices"]
REPORTED_BYTES = {
    record["device"]: record.get("reported_bytes") or record["reported_mib"] * 2**20
    for record in json.loads((FOLDER / "device_memory.json").read_text("utf-8"))["records"]
}
DEVICES = load_devices().devices
RENAMED = {
    "mem_bw_gbs": "bandwidth_gb_per_s",
    "l2_mb": "l2_mib",
    "llc_mb": "last_cache_mib",
    "sm_or_cu_count": "compute_units",
    "interconnect.nvlink_gbs_bidir": "nvlink_gb_per_s_both_ways",
    "interconnect.pcie": "pcie",
    "interconnect.other": "interconnect",
}


def base_units(value: float | None, scale: int) -> int | None:
    """What the decimal figure in the facts is in base units, without rounding."""
    return None if value is None else int(Fraction(str(value)) * scale)


def unverified_figures(fact: dict[str, Any]) -> set[str]:
    """The facts' list with its abbreviations written out: `peaks.*`, `peaks.* except fp4`, a remark in brackets."""
    known = [name for name, value in fact["peak_tflops_dense"].items() if value is not None]
    figures: set[str] = set()
    for text in fact["unverified_fields"]:
        name, _, remark = text.partition(" ")
        if name.endswith(".*"):
            figures |= {f"peak_tflops_dense.{peak}" for peak in known if f"except {peak}" not in remark}
        else:
            figures.add(RENAMED.get(name, name))
    return figures


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["id"])
def test_every_figure_is_the_one_in_the_facts(fact: dict[str, Any]) -> None:
    device = DEVICES[fact["id"]]
    assert (device.name, device.vendor, device.arch) == (fact["name"], fact["vendor"], fact["arch"])
    peaks = {name: base_units(value, 10**12) for name, value in fact["peak_tflops_dense"].items() if value is not None}
    assert {name: rate for name, rate in device.peak_flops_per_s.items() if not name.endswith("acc16")} == peaks
    assert device.bandwidth_bytes_per_s == base_units(fact["mem_bw_gbs"], 10**9)
    assert (device.nominal_memory_bytes or device.memory_bytes) == base_units(fact["memory_gb"], 10**9)
    assert device.l2_bytes == base_units(fact["l2_mb"], 2**20)
    assert device.last_cache_bytes == base_units(fact["llc_mb"], 2**20)
    link = fact["interconnect"]
    further = {
        "form_factor": fact["form_factor"],
        "release_year": fact["release_year"],
        "memory_type": fact["memory_type"],
        "compute_units": fact["sm_or_cu_count"],
        "boost_mhz": fact["boost_mhz"],
        "compute_capability": fact["compute_capability"],
        "nvlink_gb_per_s_both_ways": link["nvlink_gbs_bidir"],
        "pcie": link["pcie"],
        "pcie_gb_per_s": link["pcie_gbs_per_dir"],
        "interconnect": link["other"],
        "tdp_w": fact["tdp_w"],
    }
    assert dict(device.facts) == {name: value for name, value in further.items() if value is not None}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["id"])
def test_every_device_says_where_its_figures_come_from_and_which_do_not(fact: dict[str, Any]) -> None:
    device = DEVICES[fact["id"]]
    assert (device.sources, device.cross_checks) == (tuple(fact["source"]), tuple(fact["cross_check"]))
    assert device.disagreements == tuple(fact["disagreements"])
    assert fact["notes"] is None or fact["notes"] in (device.notes or "")
    nominal = set() if device.id in REPORTED_BYTES else {"memory_gb"}
    assert set(device.unverified) == unverified_figures(fact) | nominal


@pytest.mark.parametrize("identifier", REPORTED_BYTES)
def test_the_memory_is_what_the_driver_reports_and_says_who_read_it(identifier: str) -> None:
    device = DEVICES[identifier]
    assert device.memory_bytes == REPORTED_BYTES[identifier]
    assert device.nominal_memory_bytes is not None
    assert device.memory_reported_source
    assert "memory_gb" not in device.unverified


def test_an_h100_holds_five_gib_more_than_its_nominal_eighty_gigabytes() -> None:
    """81,559 MiB are 79.6 GiB; 80 * 10^9 bytes are 74.5."""
    h100 = DEVICES["h100-sxm"]
    assert h100.memory_bytes == 81_559 * 2**20
    assert round(h100.memory_bytes / 2**30, 1) == 79.6
    assert h100.nominal_memory_bytes == 80 * 10**9


def test_memory_that_nobody_read_from_a_driver_is_nominal_and_unverified() -> None:
    t4 = DEVICES["t4"]
    assert (t4.memory_bytes, t4.nominal_memory_bytes) == (16 * 10**9, None)
    assert "memory_gb" in t4.unverified


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact["achievable"]], ids=lambda fact: fact["id"])
def test_the_best_measured_matmul_is_kept_with_its_source(fact: dict[str, Any]) -> None:
    device, measured = DEVICES[fact["id"]], fact["achievable"]
    assert device.achieved_flops_per_s["bf16"] == base_units(measured["mamf_bf16_tflops"], 10**12)
    assert device.achieved_source == measured["source"]
    for name, rate in device.achieved_flops_per_s.items():
        assert rate < device.peak_flops_per_s[name]


def test_the_table_holds_the_55_devices_of_the_facts_and_no_other() -> None:
    assert list(DEVICES) == [fact["id"] for fact in FACTS]
    assert len(DEVICES) == 55


def test_geforce_cards_have_the_rate_of_float32_accumulation_and_the_advertised_one_beside_it() -> None:
    """The facts tell the advertised rates in their notes: 142.3, 330.3 and 660.6, 419 and 838 TFLOP/s."""
    advertised = {name: DEVICES[name].peak_flops_per_s for name in ("rtx-3090", "rtx-4090", "rtx-5090")}
    assert advertised["rtx-3090"]["fp16_acc16"] == 142_300_000_000_000
    assert advertised["rtx-4090"]["fp16_acc16"] == 330_300_000_000_000
    assert advertised["rtx-5090"]["fp8_acc16"] == 838_000_000_000_000
    for peaks in advertised.values():
        assert peaks["fp16_acc16"] / peaks["fp16"] == pytest.approx(2, rel=0.001)
        assert peaks["bf16"] == peaks["fp16"]


def test_no_peak_has_a_name_the_record_does_not_know() -> None:
    assert {name for device in DEVICES.values() for name in device.peak_flops_per_s} <= set(PEAK_NAMES)


@pytest.mark.parametrize(
    ("reported", "identifier"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200-96g"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090d"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-bw-ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-bw-server"),
        ("NVIDIA GB10", "gb10-dgx-spark"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("GAUDI2", "gaudi2"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("Ascend910B3", "ascend-910b"),
    ],
)
def test_a_device_is_found_by_the_name_its_driver_reports(reported: str, identifier: str) -> None:
    assert find_device(reported).id == identifier
    assert find_device(f" {reported.upper()} ").id == identifier


def test_every_device_is_found_by_its_id_and_no_two_share_a_reported_name() -> None:
    for identifier, device in DEVICES.items():
        assert find_device(identifier) is device
        for name in device.reported_names:
            assert find_device(name) is device


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA H100", ["h100-pcie", "h100-sxm", "h100-nvl"]),
        ("h100-sxmm", ["h100-sxm"]),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_those_near_it(name: str, near: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(name)
    told = caught.value.why.rpartition("similar names are: ")[2].split(", ")
    assert told[: len(near)] == near
    assert "llm-perf-opt devices template" in caught.value.fix
    assert "\n" not in caught.value.fix  # the form itself is printed by that command alone


@pytest.mark.parametrize(
    ("short", "meant"),
    [
        ("h200", "h200-sxm"),
        ("b200", "b200-sxm"),
        ("a100-40g-sxm", "a100-sxm-40g"),
        ("RTX 4090", "rtx-4090"),
        ("4090d", "rtx-4090d"),
        ("mi300", "mi300x"),
        ("h20", "h20-96g"),
    ],
)
def test_a_short_form_that_one_device_alone_has_means_it(
    short: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    device_module._tell_once.cache_clear()
    with caplog.at_level(logging.INFO):
        assert find_device(short) is DEVICES[meant]
        assert find_device(short) is DEVICES[meant]
    assert [record.getMessage() for record in caplog.records] == [
        f"{short} is taken as {meant}, the only known device of that name"
    ]


@pytest.mark.parametrize(
    ("short", "candidates"),
    [
        ("h100", "h100-pcie, h100-sxm, h100-nvl"),
        ("A100", "a100-pcie-40g, a100-sxm-40g, a100-pcie-80g, a100-sxm-80g"),
        ("a100-40g", "a100-pcie-40g, a100-sxm-40g"),
        ("m3-max", "apple-m3-max-40"),
    ],
)
def test_a_short_form_of_several_devices_is_refused_with_all_of_them(short: str, candidates: str) -> None:
    with pytest.raises(UsageError, match="more than one device") as caught:
        find_device(short)
    assert candidates in f"{caught.value.why} {caught.value.fix}"


def test_half_a_number_is_no_short_form() -> None:
    """`gb2` is no gb200: what is cut within a number is too likely a slip."""
    for name in ("gb2", "h10", "a8"):
        with pytest.raises(UsageError, match="There is no device named"):
            find_device(name)


@pytest.mark.parametrize("name", AMBIGUOUS_NAMES)
def test_a_name_that_several_devices_report_is_refused(name: str) -> None:
    candidates, _ = AMBIGUOUS_NAMES[name]
    with pytest.raises(UsageError, match="more than one device") as caught:
        find_device(name)
    assert all(candidate in caught.value.fix and candidate in DEVICES for candidate in candidates)


def test_a_dtype_without_a_peak_is_refused() -> None:
    t4 = DEVICES["t4"]
    assert t4.peak("float16") == 65_000_000_000_000
    with pytest.raises(PerfOptError, match="bfloat16 on NVIDIA T4"):
        t4.peak("bfloat16")


def test_work_in_float64_runs_on_the_matrix_engines_where_they_do_it() -> None:
    assert DEVICES["h100-sxm"].peak("float64") == 67 * 10**12
    assert DEVICES["l4"].peak("float64") == 470 * 10**9


def test_the_largest_cache_counts() -> None:
    assert DEVICES["mi300x"].cache_bytes == 256 * 2**20
    assert DEVICES["rtx-5090"].cache_bytes == 96 * 2**20
    assert DEVICES["tpu-v4"].cache_bytes is None


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.id)
def test_a_device_that_is_written_reads_back_equal(device: Device) -> None:
    assert read_devices(device_text(device), "text") == {device.id: device}
