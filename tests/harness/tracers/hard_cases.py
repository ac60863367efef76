"""Small models that tracers are known to get wrong, each with the calls it really makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from llm_perf_opt.core.target import Target


@dataclass(frozen=True)
class HardCase:
    """A model, the calls it makes, and the edges between them."""

    build: Callable[[], nn.Module]
    invoke: Callable[[nn.Module], object]
    calls: dict[str, int]
    edges: dict[str, int]
    tied: tuple[str, ...] = field(default=())

    def target(self) -> Target:
        return Target(model="case", phase="prefill", workload={}, build=cache(self.build), invoke=self.invoke)


class Shared(nn.Module):
    """One layer under two names, called under both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Recursive(nn.Module):
    """A module that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        return self.leaf(x) if depth == 0 else self(x, depth - 1)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class DirectForward(nn.Module):
    """Calls `child.forward`, which runs no hook, and prints, as the released model does."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.caller = nn.Identity()

    def helper(self, x: Tensor) -> Tensor:
        return self.caller(x)

    def forward(self, x: Tensor) -> Tensor:
        print("BASE: ", x.shape)
        return self.helper(self.child.forward(x))


class Container(nn.Module):
    """A list of layers, which is never called itself; nested lists, dicts and keywords carry the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Keyword() for _ in range(3))

    def forward(self, inputs: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        (x,) = inputs["x"]
        for layer in self.layers:
            x = layer(hidden={"states": (x,)})
        return {"y": x}


class Keyword(nn.Module):
    def forward(self, *, hidden: dict[str, tuple[Tensor]]) -> Tensor:
        return hidden["states"][0] * 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Forgiving(nn.Module):
    """Catches what its first choice raises, and takes the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first_choice = nn.Linear(5, 5)
        self.second_choice = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.first_choice(x)
        except RuntimeError:
            return self.second_choice(x)


class Experts(nn.Module):
    """Siblings that are given the same tensor: no chain, and one of them is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[0](x) + self.experts[2](x)


def _floats() -> Tensor:
    return torch.ones(2, 4)


CASES = {
    "shared": HardCase(Shared, lambda m: m(_floats()), {"": 1, "first": 2}, {"->first": 2}),
    "recursive": HardCase(Recursive, lambda m: m(_floats()), {"": 3, "leaf": 1}, {"->": 2, "->leaf": 1}),
    "unused": HardCase(Unused, lambda m: m(_floats()), {"": 1, "used": 1}, {"->used": 1}),
    "direct forward": HardCase(
        DirectForward,
        lambda m: m(_floats()),
        {"": 1, "child": 1, "caller": 1},
        {"->child": 1, "->caller": 1},
    ),
    "containers": HardCase(
        Container,
        lambda m: m({"x": [_floats()]}),
        {"": 1, "layers.0": 1, "layers.1": 1, "layers.2": 1},
        {"->layers.0": 1, "->layers.1": 1, "->layers.2": 1},
    ),
    "tied weights": HardCase(
        Tied,
        lambda m: m(torch.tensor([[1, 2]])),
        {"": 1, "embed": 1, "head": 1},
        {"->embed": 1, "->head": 1},
        tied=("embed.weight", "head.weight"),
    ),
    "caught error": HardCase(
        Forgiving,
        lambda m: m(_floats()),
        {"": 1, "first_choice": 1, "second_choice": 1},
        {"->first_choice": 1, "->second_choice": 1},
    ),
    "experts": HardCase(
        Experts,
        lambda m: m(_floats()),
        {"": 1, "experts.0": 1, "experts.2": 1},
        {"->experts.0": 1, "->experts.2": 1},
    ),
    "twice": HardCase(Unused, lambda m: (m(_floats()), m(_floats())), {"": 2, "used": 2}, {"->used": 2}),
}


class Raises(nn.Module):
    """Fails in its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Linear(4, 4)
        self.wrong = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.wrong(self.fine(x))
