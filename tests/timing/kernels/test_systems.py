"""Which measured system stands for a device."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.timing.kernels.tables import MEASURED_ON, system_named, system_of

DEVICES = load_devices().devices


@pytest.mark.parametrize(("system", "device"), MEASURED_ON.items())
def test_a_measured_device_is_its_own_system(system: str, device: str) -> None:
    found = system_of(DEVICES[device])
    assert found is not None
    assert (found.system, found.compute, found.bandwidth, found.is_own) == (system, 1.0, 1.0, True)
    assert found.difference is None


def test_the_40_gb_a100_differs_in_bandwidth_alone() -> None:
    found = system_named("a100-sxm-40g")
    assert (found.system, found.compute) == ("a100_sxm", 1.0)
    assert abs(found.bandwidth - 1555 / 2039) < 1e-9
    assert not found.is_own
    assert found.has_same_links  # the same NVLink
    assert "0.76 times its memory bandwidth" in str(found.difference)


@pytest.mark.parametrize(
    ("device", "system"),
    [("rtx-5090", "rtx_pro_6000_server"), ("rtx-4090", "l40s"), ("h100-pcie", "h100_sxm"), ("a30", "a100_sxm")],
)
def test_other_gpus_take_the_nearest_architecture(device: str, system: str) -> None:
    found = system_of(DEVICES[device])
    assert found is not None
    assert found.system == system
    assert not found.has_same_links


@pytest.mark.parametrize("device", ["mi300x", "gaudi3", "tpu-v5e", "apple-m4-max-40"])
def test_devices_of_other_vendors_get_nothing(device: str) -> None:
    assert system_of(DEVICES[device]) is None
    with pytest.raises(PerfOptError, match="No measured kernels describe"):
        system_named(device)
