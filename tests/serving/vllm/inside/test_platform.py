"""The package that exists in memory only: vLLM finds its entry point as it finds any other."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import pytest

from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.serving.vllm.inside import platform

GROUP = "vllm.platform_plugins"


def test_the_entry_point_is_there_once_a_device_is_believed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(platform, "_seen", {})
    assert not entry_points(group=GROUP)
    device = SeenDevice(name="a", memory_bytes=1, capability=(9, 0), compute_units=1)
    platform.believe_in(device)
    platform.believe_in(device)
    (found,) = entry_points(group=GROUP)
    assert found.load()() == "llm_perf_opt.serving.vllm.inside.platform.SeenPlatform"
    with pytest.raises(AssertionError, match="one per process"):
        platform.believe_in(SeenDevice(name="b", memory_bytes=1, capability=(9, 0), compute_units=1))
