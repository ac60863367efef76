"""A world of ranks that leaves nothing behind."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.fake_world import FakeWorld


def test_a_thousand_ranks_exist_while_the_world_is_open_and_none_afterwards() -> None:
    hook = sys.excepthook
    with FakeWorld(ParallelPlan(tp=8, fsdp=128, rank=9)):
        assert (dist.get_world_size(), dist.get_rank()) == (1024, 9)
    assert not dist.is_initialized()
    assert sys.excepthook is hook


def test_groups_made_in_one_entry_serve_in_the_next() -> None:
    world = FakeWorld(ParallelPlan(tp=4, fsdp=2))
    with world:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("fsdp", "tp"))
    with world, world:
        assert dist.get_process_group_ranks(mesh.get_group("tp")) == [0, 1, 2, 3]
        assert dist.get_process_group_ranks(mesh.get_group("fsdp")) == [0, 4]
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(2), 4, mesh.get_group("tp").group_name)
        assert torch.ops._c10d_functional.wait_tensor(gathered).shape == (8,)
    assert not dist.is_initialized()


def test_two_worlds_take_turns() -> None:
    one, two = FakeWorld(ParallelPlan(tp=2)), FakeWorld(ParallelPlan(tp=4))
    for world, size in ((one, 2), (two, 4), (one, 2)):
        with world:
            assert dist.get_world_size() == size


def test_an_error_inside_leaves_nothing_open() -> None:
    world = FakeWorld(ParallelPlan(tp=2))
    with pytest.raises(KeyError), world:
        raise KeyError("of the model")
    assert not dist.is_initialized()
    with world:
        assert dist.get_world_size() == 2


def test_a_world_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    try:
        with pytest.raises(PerfOptError, match="initialised in this process already"), FakeWorld(ParallelPlan(tp=2)):
            pass
        assert dist.get_world_size() == 3
    finally:
        dist.destroy_process_group()


def test_a_replica_is_a_world_of_its_own() -> None:
    with FakeWorld(ParallelPlan(tp=2, dp=4, rank=5)):
        assert (dist.get_world_size(), dist.get_rank()) == (2, 1)


def test_what_other_ranks_would_say_is_looked_up_by_kind_and_shape() -> None:
    world = FakeWorld(ParallelPlan(pp=2))
    world.announced[CollectiveKind.BROADCAST, (3,)] = (1, 1, 32_000)
    assert world.integers(CollectiveKind.BROADCAST, (3,)) == (1, 1, 32_000)
    assert world.integers(CollectiveKind.BROADCAST, (2,)) is None
