"""The size a trace must carry: 25,000 modules, 100,000 calls, a million ops. Times are CPU seconds, with much room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind, TensorMeta, read_callgraph, write_callgraph
from llm_perf_opt.core.callgraph.queries import count_kinds_by_stage
from tests.core.callgraph.made_graphs import finished
from tests.slowness import timed

pytestmark = pytest.mark.slow

T = TypeVar("T")

LAYERS, EXPERTS, PASSES, OPS_PER_PROJECTION = 61, 100, 4, 14
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Mixture:
    """Runs a made-up mixture of experts through the builder, with memory that is born, passed on and freed."""

    def __init__(self) -> None:
        self.builder = CallGraphBuilder()
        self._tokens = 0
        self._weights: dict[str, int] = {}
        hidden, weight = self.builder.meta((1, 64, 7168), "bfloat16", "cuda"), (7168, 2048)
        self._hidden: list[TensorMeta] = [self.builder.meta((64 + n, 7168), "bfloat16", "cuda") for n in range(100)]
        self._weight = self.builder.meta(weight, "bfloat16", "cuda")
        self._kinds = [
            OpKind(
                name=f"aten.op{n % 20}.default", inputs=(x, self._weight, hidden), outputs=(x,), output_aliases=(-1,)
            )
            for n, x in enumerate(self._hidden)
        ]

    def declare(self) -> None:
        layers = tuple(f"layers.{n}" for n in range(LAYERS))
        self.builder.module("", "Mixture", ("layers",), {"hidden_size": 7168})
        self.builder.module("layers", "ModuleList", layers, {})
        for layer in layers:
            experts = tuple(f"{layer}.experts.{n}" for n in range(EXPERTS))
            self.builder.module(layer, "Layer", (f"{layer}.experts",), {"num_experts": EXPERTS})
            self.builder.module(f"{layer}.experts", "ModuleList", experts, {})
            for expert in experts:
                self.builder.module(expert, "Expert", tuple(f"{expert}.{name}" for name in PROJECTIONS), {})
                for name in PROJECTIONS:
                    self._declare_projection(f"{expert}.{name}")

    def _declare_projection(self, path: str) -> None:
        self.builder.module(path, "Linear", (), {"in_features": 7168, "out_features": 2048, "bias": False})
        self._weights[path] = self._next_token()
        self.builder.parameter(f"{path}.weight", self._weight, self._weights[path], 29_360_128, is_buffer=False)

    def run(self) -> None:
        token = self._next_token()
        self.builder.allocate(token, 917_504, "input")
        for _ in range(PASSES):
            token = self._call("", 0, token, lambda x: self._chain([f"layers.{n}" for n in range(LAYERS)], x))

    def _chain(self, layers: list[str], token: int) -> int:
        for layer in layers:
            token = self._call(layer, 0, token, lambda x, layer=layer: self._experts(layer, x))  # type: ignore[misc]
        return token

    def _experts(self, layer: str, token: int) -> int:
        for n in range(EXPERTS):
            path = f"{layer}.experts.{n}"
            token = self._call(path, n, token, lambda x, path=path, n=n: self._projections(path, n, x))  # type: ignore[misc]
        return token

    def _projections(self, expert: str, n: int, token: int) -> int:
        for name in PROJECTIONS:
            path = f"{expert}.{name}"
            token = self._call(path, n, token, lambda x, path=path: self._ops(self._weights[path], n, x))  # type: ignore[misc]
        return token

    def _ops(self, weight: int, n: int, token: int) -> int:
        first = token
        for step in range(OPS_PER_PROJECTION):
            fresh = self._next_token()
            self.builder.allocate(fresh, 917_504 + n)
            self.builder.op(self._kinds[(n + step) % 100], (token, weight, first), (fresh,))
            if token != first:
                self.builder.free(token)
            token = fresh
        return token

    def _call(self, path: str, n: int, token: int, body: Callable[[int], int]) -> int:
        self.builder.enter(path, [(self._hidden[n], token)])
        output = body(token)
        self.builder.leave([(self._hidden[n], output)])
        return output

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens


def build() -> CallGraph:
    mixture = Mixture()
    mixture.declare()
    mixture.run()
    return finished(mixture.builder, stages=[("first half", tuple(f"layers.{n}" for n in range(30)))])


def test_a_million_ops_are_built_written_loaded_and_asked(tmp_path: Path) -> None:
    graph = timed(20, build)
    assert graph.coverage is not None
    assert graph.calls is not None
    assert (len(graph.module_types), len(graph.calls.path), graph.coverage.ops) == (24_524, 97_848, 1_024_800)
    file = tmp_path / "huge.json"
    timed(20, lambda: write_callgraph(graph, file, overwrite=False))
    assert file.stat().st_size < 80_000_000
    loaded = timed(20, lambda: read_callgraph(file))
    assert timed(20, loaded.problems) == []
    by_stage = timed(5, lambda: count_kinds_by_stage(loaded))
    assert {name: sum(kinds.values()) for name, kinds in by_stage.items()} == {
        "first half": 30 * 100 * 3 * 4 * 14,
        "prefill": 31 * 100 * 3 * 4 * 14,
    }
    assert (loaded.ops, loaded.calls, loaded.storages) == (graph.ops, graph.calls, graph.storages)
    assert (loaded.input_metadata, loaded.parameters) == (graph.input_metadata, graph.parameters)


def test_the_events_of_a_hundred_thousand_calls_are_written_and_read(tmp_path: Path) -> None:
    graph, file = build(), tmp_path / "huge.json"
    timed(20, lambda: write_callgraph(graph, file, overwrite=False))
    without = file.stat().st_size
    timed(20, lambda: write_callgraph(graph, file, overwrite=True, with_events=True))
    assert 90 < (file.stat().st_size - without) / (2 * 97_848) < 130  # bytes per event, as the page on the file says
    loaded = timed(20, lambda: read_callgraph(file))
    assert len(loaded.events) == 2 * 97_848
    assert loaded.events[:3] == (("enter", ""), ("enter", "layers.0"), ("enter", "layers.0.experts.0"))
    assert timed(20, loaded.problems) == []
