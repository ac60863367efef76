"""One rank of vLLM's groups in a world where no other rank exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import vllm.distributed.parallel_state as groups
from vllm.config import VllmConfig, set_current_vllm_config

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.fake_world import FakeWorld

_COMMUNICATOR = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
_AXES = {"tp": "tp", "ep": "ep", "pp": "pp", "dp": "dp"}
_NEEDS_OTHERS = ("use_message_queue_broadcaster", "use_all2all")  # shared memory, and kernels between devices


class VllmWorld(FakeWorld):
    """The ranks of a plan with vLLM's own groups in them, made when the world is first opened.

    Its collectives are plain calls of `torch.distributed`: what the engine records, group and axis included.
    """

    def __init__(self, plan: ParallelPlan, config: VllmConfig) -> None:
        super().__init__(plan)
        self._config = config
        self._has_groups = False

    def _open(self) -> None:
        super()._open()
        if not self._has_groups:
            self._has_groups = True
            with set_current_vllm_config(self._config), _fake_groups():
                self._make_groups()

    def _make_groups(self) -> None:
        parallel = self._config.parallel_config
        groups._WORLD = groups.init_world_group(list(range(self.plan.replica_ranks)), self.rank, "fake")
        groups.initialize_model_parallel(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, backend="fake")


def forget_groups() -> None:
    """Leave vLLM as if it had known no group; the world itself is put aside by `FakeWorld`."""
    for name in ("_WORLD", "_TP", "_ETP", "_ENGRAM_DP", "_PP", "_DP", "_EP", "_EPLB", "_PCP", "_DCP"):
        if getattr(groups, name, None) is not None:
            setattr(groups, name, None)


@contextmanager
def _fake_groups() -> Iterator[None]:
    """Groups of torch's fake backend, each named after its axis, that communicate by `torch.distributed` alone."""
    from vllm.platforms import current_platform

    new_group, init = dist.new_group, groups.GroupCoordinator.__init__
    platform = type(current_platform)
    communicator = platform.get_device_communicator_cls
    axis = ""

    def fake_group(ranks: Any = None, timeout: Any = None, backend: Any = None, **options: Any) -> Any:
        return new_group(ranks, backend="fake", group_desc=f"mesh_{axis}" if axis else None)

    def plain(self: Any, *args: Any, **options: Any) -> None:
        nonlocal axis
        axis = _AXES.get(str(options.get("group_name")), "")
        init(self, *args, **{**options, **{name: False for name in _NEEDS_OTHERS if name in options}})
        self.use_custom_op_call = False
        self.device = torch.device("cpu")

    try:
        setattr(dist, "new_group", fake_group)  # noqa: B010 - its type is the type of torch's own
        groups.GroupCoordinator.__init__ = plain
        platform.get_device_communicator_cls = classmethod(lambda cls: _COMMUNICATOR)
        yield
    finally:
        dist.new_group, groups.GroupCoordinator.__init__ = new_group, init
        platform.get_device_communicator_cls = communicator
