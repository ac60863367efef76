"""Traces in several threads: each graph is that of a serial run, and work beside them sees the plain world."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.measurements.timed.timed_runs import PageRun, TimedRuns
from llm_perf_opt.models.single_module import SingleModuleAdapter
from llm_perf_opt.weightless import Engine, Ghost


class Net(nn.Module):
    """Prints, moves to the GPU, asks for a value, and has layers of a width of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        print("from the model")
        x = x.cuda()
        assert x.device.type == "cuda"
        for layer in self.layers:
            x = torch.relu(layer(self.norm(x)))
        return x * 2 if x.max() > 3 else x


class Deep(nn.Module):
    """Real work, long enough for another thread to come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(20))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def graph_of(width: int) -> CallGraph:
    return lpo.trace(Net(width), (torch.zeros(3, width),)).graphs[0]


def figures(graph: CallGraph) -> tuple[object, ...]:
    return (
        graph.call_counts,
        graph.edges,
        graph.op_call_counts,
        repr(graph.op_kinds),
        None if graph.ops is None else list(graph.ops.kind),
        repr(graph.storages),
    )


@contextmanager
def beside(work: Callable[[], bool]) -> Iterator[list[int]]:
    """Another thread repeats `work` meanwhile; how often it went right, and wrong."""
    counts, is_over = [0, 0], threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            counts[0 if work() else 1] += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


def plain_world() -> bool:
    tensor = torch.zeros(2)
    nn.init.ones_(tensor)
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not tensor.is_cuda
        and not torch.cuda.is_available()
        and float(tensor.sum()) == 2.0
    )


@pytest.mark.parametrize("threads", [2, 8])
def test_graphs_are_those_of_a_serial_run(threads: int) -> None:
    widths = [16, 24, 40]
    serial = {width: figures(graph_of(width)) for width in widths}
    asked = widths * 10
    with beside(plain_world) as counts, ThreadPoolExecutor(threads) as pool:
        graphs = list(pool.map(graph_of, asked))
    assert [figures(graph) == serial[width] for graph, width in zip(graphs, asked, strict=True)] == [True] * 30
    assert counts[0] > 0
    assert counts[1] == 0
    assert plain_world()


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("tracer", ["hooks", "profiler", "torchlens"])
def test_real_tracers_take_turns_too(tracer: str) -> None:
    module, given = Plain(), torch.zeros(2, 4)
    expected = module(given)

    def calls(_: int) -> dict[str, int]:
        return dict(lpo.trace(module, (given,), tracer=tracer).graphs[0].call_counts)

    # TorchLens follows every thread of the process: beside it nothing else may use the module.
    is_lone = tracer == "torchlens"
    with beside(lambda: is_lone or torch.equal(module(given), expected)) as counts, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(calls, range(12))) == [{"": 1, "first": 1, "second": 1}] * 12
    assert counts[1] == 0
    assert "forward" not in vars(module)


def test_what_another_thread_prints_is_not_caught(capsys: pytest.CaptureFixture[str]) -> None:
    def say() -> bool:
        print("from the program")
        return True

    with beside(say) as counts:
        for _ in range(5):
            graph_of(16)
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["from the program"] * counts[0]
    assert sys.stdout is not sys.__stdout__  # pytest's, as before the test


def test_a_module_in_use_elsewhere_is_traced_alone() -> None:
    net = Net(16)
    net.forward = lambda x: x + 1  # type: ignore[method-assign]
    serial = figures(lpo.trace(net, (torch.zeros(3, 16),)).graphs[0])
    with beside(lambda: bool((net(torch.zeros(2)) == 1).all())) as counts:
        assert all(figures(lpo.trace(net, (torch.zeros(3, 16),)).graphs[0]) == serial for _ in range(10))
    assert counts[0] > 0
    assert counts[1] == 0


def test_a_timed_run_of_a_module_in_use_elsewhere_and_traced_elsewhere() -> None:
    net = Deep()
    serial = figures(lpo.trace(net, (torch.ones(2, 8),), tracer="hooks").graphs[0])
    page = PageRun(image=None, run=SingleModuleAdapter(net, (torch.ones(2, 8),)).real_run(Workload(), None))

    def timed(_: int) -> list[str]:
        measured = TimedRuns(RealModels(weights="random", device="cpu"), repeats=2).measure(page)
        return [*measured.passes[1].stages_ns]

    def traced(_: int) -> bool:
        return figures(lpo.trace(net, (torch.ones(2, 8),), tracer="hooks").graphs[0]) == serial

    with beside(lambda: net(torch.ones(2, 8)).shape == (2, 8)) as counts, ThreadPoolExecutor(3) as pool:
        clocks, traces = pool.map(timed, range(20)), pool.map(traced, range(20))
        assert list(clocks) == [["forward"]] * 20
        assert list(traces) == [True] * 20
    assert counts[0] > 0
    assert counts[1] == 0
    assert not any("forward" in vars(module) for module in net.modules())


def test_a_ghost_in_another_thread_asks_an_engine_of_its_own() -> None:
    with Engine() as engine:
        ghost = engine.ghost(2, 3)
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(lambda: ghost + 1).result()
    assert type(result) is Ghost
    assert tuple(result.shape) == (2, 3)


def test_a_trace_within_a_traced_forward_is_refused_and_leaves_nothing() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            graph_of(16)
            return x

    with pytest.raises(PerfOptError, match="open in this thread already"):
        lpo.trace(Inner(), (torch.zeros(2),))
    assert plain_world()
    assert figures(graph_of(16)) == figures(graph_of(16))


def test_a_foreign_fake_mode_is_refused_and_leaves_nothing() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), pytest.raises(PerfOptError, match="FakeTensorMode is on"):
        Engine(device="cuda").__enter__()
    assert plain_world()


def test_a_module_without_shapes_is_refused_and_leaves_nothing() -> None:
    with pytest.raises(Exception, match=r"[Uu]ninitialized|LazyLinear"):
        lpo.trace(nn.LazyLinear(3), (torch.zeros(2, 5),))
    assert plain_world()
