"""Every forward is reported with its arguments, also one that is called directly, and the wrapping is taken off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.harness.module_calls import class_name, watch_forwards, watch_modules


class Direct(nn.Module):
    """Calls its child's forward without the hooks in between."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(2, 2)

    def forward(self, rows: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.child.forward(rows) * scale


def test_arguments_and_outputs_are_handed_over() -> None:
    model, seen = Direct(), []

    def before(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((path, type(module).__name__, len(args), kwargs))

    def after(path: str, output: Any) -> None:
        seen.append((path, tuple(output.shape)))

    with watch_forwards(model, before, after):
        model(torch.zeros(3, 2), scale=2.0)
    assert seen == [
        ("", "Direct", 1, {"scale": 2.0}),
        ("child", "Linear", 1, {}),
        ("child", (3, 2)),
        ("", (3, 2)),
    ]
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_an_error_closes_every_call_and_names_the_innermost_module() -> None:
    model, left = Direct(), []
    with (
        pytest.raises(RuntimeError) as caught,
        watch_modules(model, lambda path, tensors: None, left.append) as stop,
    ):
        model(torch.zeros(3, 5))
    assert left == [[], []]
    assert stop.of(caught.value) == "child"
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.fixture
def sharded() -> Iterator[nn.Module]:
    """Two layers whose weights one of two ranks holds half of, in a world in which the other rank does not exist."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with FakeWorld(ParallelPlan(fsdp=2)), torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
        yield model


class Gathers(TorchDispatchMode):
    """Notes every gathering of weights among the calls."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "allgather" in str(func):
            self._seen.append("gather")
        return func(*args, **(kwargs or {}))


def test_weights_are_gathered_inside_the_call_of_the_module_they_belong_to(sharded: nn.Module) -> None:
    seen: list[str] = []
    with watch_modules(sharded, lambda path, _: seen.append(f"> {path}"), lambda _: seen.append("<")), Gathers(seen):
        sharded(torch.zeros(3, 2))
    assert seen == ["> ", "> 0", "gather", "<", "> 1", "gather", "<", "<"]
    assert all(not {"forward", "_compiled_call_impl"} & module.__dict__.keys() for module in sharded.modules())
    assert [class_name(module) for module in sharded.modules()] == ["Sequential", "Linear", "Linear"]


def test_a_sharded_module_called_by_its_forward_or_failing_in_a_hook_is_reported_once(sharded: nn.Module) -> None:
    calls: list[str] = []
    with watch_modules(sharded, lambda path, _: calls.append(path), lambda _: calls.append("left")):
        sharded(torch.zeros(3, 2))
        calls.clear()
        sharded[0].register_forward_pre_hook(_refuse)
        with pytest.raises(KeyError):
            sharded[0](torch.zeros(3, 2))
        assert calls == ["0", "left"]
        sharded[0].forward(torch.zeros(3, 2))
        assert calls == ["0", "left", "0", "left"]
    assert all(not {"forward", "_compiled_call_impl"} & module.__dict__.keys() for module in sharded.modules())


def _refuse(module: nn.Module, args: Any) -> None:
    raise KeyError("in a hook")
