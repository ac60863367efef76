"""A process group of many ranks in which one rank exists: torch's fake group, opened and put aside as often as needed.

`torch.distributed` knows one world per process, in global tables. A model split between ranks holds groups of the
world in which it was built, so that world must be the same in every phase. Between phases it is put aside, and the
process looks as if it had never known one. A world that somebody else has opened is left alone: ours is refused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import puts_back
from llm_perf_opt.core.parallel_plan import ParallelPlan

_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")


class FakeWorld:
    """One rank of a plan. Enter it around building and running the model; several entries may be nested.

    `told` are integers that the model's code expects from another rank, by the shape of the tensor that receives them.
    `replicated` are the parameters that were not spread, once that is known.
    """

    def __init__(self, plan: ParallelPlan) -> None:
        self.plan = plan
        self.rank = (plan.rank or 0) % plan.replica_ranks
        if plan.fsdp > 1:
            importlib.import_module("torch.distributed.fsdp")  # the engine adapts it to ghosts where it is loaded
        self.announced: dict[tuple[CollectiveKind, tuple[int, ...]], Sequence[int]] = {}
        self.replicated: tuple[str, ...] | None = None
        self.expert_ranks = 1
        self._aside: dict[str, dict[Any, Any]] | None = None
        self._default: Any = None
        self._group_count = 0
        self._depth = 0

    def integers(self, kind: CollectiveKind, shape: tuple[int, ...]) -> Sequence[int] | None:
        """What another rank would send into a tensor of this shape; None: not known."""
        return self.announced.get((kind, shape))

    @puts_back
    def __enter__(self) -> FakeWorld:
        if self._depth == 0:
            _refuse_another_world()
            with ExitStack() as undo:
                undo.callback(_forget_world)
                self._open()
                undo.pop_all()
        self._depth += 1
        return self

    @puts_back
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._aside = {name: dict(getattr(c10d._world, name)) for name in _TABLES}
            self._default, self._group_count = c10d._world.default_pg, c10d._world.group_count
            _forget_world()

    def _open(self) -> None:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        # Meshes of two ranks compare equal, so a layout cached for one would carry its groups into the other.
        _clear_sharding_prop_cache()
        if self._aside is None:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            hook = sys.excepthook
            dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.plan.replica_ranks)
            sys.excepthook = hook  # torch puts its own there for good, which names a rank in every traceback
            return
        for name, table in self._aside.items():
            getattr(c10d._world, name).update(table)
        for group, name in self._aside["pg_names"].items():
            torch._C._distributed_c10d._register_process_group(name, group)
        c10d._update_default_pg(self._default)
        c10d._world.group_count = self._group_count


def _refuse_another_world() -> None:
    if dist.is_initialized():
        raise PerfOptError(
            "torch.distributed is initialised in this process already.",
            why="a parallel plan is traced in a fake process group, and torch allows one default group per process",
            fix="trace before init_process_group, after destroy_process_group, or in another process",
        )


def _forget_world() -> None:
    """Leave torch as if no process group had ever been made."""
    c10d._update_default_pg(None)
    for name in _TABLES:
        getattr(c10d._world, name).clear()
    torch._C._distributed_c10d._unregister_all_process_groups()
    c10d._world.group_count = 0
