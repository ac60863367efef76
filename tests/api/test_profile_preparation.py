"""What a run needs is compared with what is free where it is needed: by hand-worked sums, on a CPU and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.api.profile_preparation import require_memory, require_recorded_on
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.harness import environment

GIB = 2**30
PHASES = (SimpleNamespace(weight_bytes=6 * GIB, buffer_bytes=0), SimpleNamespace(weight_bytes=6 * GIB, buffer_bytes=0))
NEED: Any = SimpleNamespace(phases=PHASES, total_bytes=9 * GIB)  # 6 GiB of weights and 3 GiB at the peak


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    found: dict[str, int | None] = {"host": None, "device": None}
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: found["host"])
    monkeypatch.setattr(environment, "free_device_bytes", lambda device: found["device"])
    return found


def refusal(device: str, *, has_weights: bool = False) -> str | None:
    try:
        require_memory(NEED, device, has_weights=has_weights)
    except PerfOptError as error:
        return error.what
    return None


@pytest.mark.parametrize(("host", "is_refused"), [(9 * GIB, False), (9 * GIB - 1, True), (None, False)])
def test_on_a_cpu_everything_is_in_host_memory(free: dict[str, int | None], host: int | None, is_refused: bool) -> None:
    free["host"] = host
    assert (refusal("cpu") is not None) == is_refused


def test_on_a_gpu_the_device_holds_the_run_and_the_host_the_weights(free: dict[str, int | None]) -> None:
    free.update(host=6 * GIB, device=9 * GIB)
    assert refusal("cuda") is None
    free.update(host=6 * GIB - 1)
    assert refusal("cuda") == "The first page needs 6.00 GiB of host memory, and 6.00 GiB are free."
    free.update(host=6 * GIB, device=8 * GIB)
    assert refusal("cuda") == "The first page needs 9.00 GiB of cuda device memory, and 8.00 GiB are free."


def test_weights_that_are_there_already_are_not_needed_again(free: dict[str, int | None]) -> None:
    free["host"] = 3 * GIB
    assert refusal("cpu") is not None
    assert refusal("cpu", has_weights=True) is None


def test_an_unknown_need_refuses_nothing(free: dict[str, int | None]) -> None:
    free["host"] = 0
    require_memory(None, "cpu", has_weights=False)
    require_memory(SimpleNamespace(phases=PHASES, total_bytes=None), "cpu", has_weights=False)  # type: ignore[arg-type]  # as far as it is read


@pytest.mark.parametrize(
    ("named", "reported", "ran_on"),
    [
        ("rtx-5090", "NVIDIA GeForce RTX 5090", None),
        ("rtx-5090", "NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("h100-sxm", "NVIDIA A100-SXM4-80GB", "a100-sxm-80g"),
        ("rtx-5090", "a GPU of next year", None),  # in no table: it may be one and the same
        ("rtx-5090", None, None),
    ],
)
def test_a_join_needs_the_device_that_ran(named: str, reported: str | None, ran_on: str | None) -> None:
    device = find_device(named)
    if ran_on is None:
        require_recorded_on(device, reported, on_host=False)
        return
    with pytest.raises(UsageError) as caught:
        require_recorded_on(device, reported, on_host=False)
    assert find_device(ran_on).name in caught.value.what and device.name in caught.value.what
    assert ran_on in caught.value.fix and f"--device {named}" in caught.value.fix


def test_a_run_on_the_processor_is_joined_with_no_accelerator() -> None:
    with pytest.raises(UsageError, match="The recording is made on the processor"):
        require_recorded_on(find_device("rtx-5090"), "a processor", on_host=True)
    require_recorded_on(None, "a processor", on_host=True)
    own = replace(find_device("rtx-5090"), id="this-machine", threads=2)
    require_recorded_on(own, "a processor", on_host=True)
