"""Loops of Python code: what runs once for each sequence, step of a scan or expert, against traces of other lengths."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from benchmarks.function.exactness import Subject, compared, make_function
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.sweeps.function.figures.needs import costs_of, stage_costs_of
from llm_perf_opt.sweeps.function.figures.rebuilding import ProgramCosts, looped_figures
from llm_perf_opt.sweeps.function.fitting import Fitter
from llm_perf_opt.sweeps.function.form import Form
from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.function.program.loops import Repeats, find_loops
from llm_perf_opt.sweeps.function.program.program import NoRule, Program
from llm_perf_opt.sweeps.function.program.sizing import program_of

SAMPLES = ((2, 5), (3, 7), (5, 7), (6, 11), (7, 5), (5, 13))
WIDTH, CHUNK = 8, 4


class PerSequence(nn.Module):
    """One call of a layer for each sequence, and a list of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(x[row]).relu() for row in range(x.shape[0])]) + 1


class Scan(nn.Module):
    """A state that one step hands to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state, seen = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = torch.tanh(self.layer(x[:, step]) + state)
            seen.append(state * 2)
        return torch.stack(seen, dim=1) * 3


class Growing(nn.Module):
    """Each step copies all that was there before it: each block has more memory than the one before."""

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :1]
        for step in range(1, x.shape[1]):
            seen = torch.cat([seen, x[:, step : step + 1]], dim=1)
        return seen


class TypedScan(nn.Module):
    """A state that is whole numbers before the first step, and none after it."""

    def forward(self, x: Tensor) -> Tensor:
        state, seen = torch.zeros_like(x[:, 0], dtype=torch.int32), []
        for step in range(x.shape[1]):
            state = state * 2 + x[:, step]
            seen.append(state.tanh())
        return torch.stack(seen, dim=1)


class ChunkedScan(nn.Module):
    """A step for each chunk of four tokens; the state of one step is freed at the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % CHUNK))
        chunks = padded.reshape(x.shape[0], -1, CHUNK * WIDTH)
        state = torch.zeros_like(x[:, 0])
        for number in range(chunks.shape[1]):
            state = state * 3 + self.layer(chunks[:, number])
        return state


class TwoLoops(nn.Module):
    """Views of a tensor for each sequence, a list made of them, and a loop over that list with a number in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = [row.transpose(0, 1) for row in x.unbind(0)]
        flat = torch.cat(rows) + 1
        wide = [self.layer(row) for row in x]
        return torch.stack([row.relu() for row in wide]).sum() + flat.sum() + torch.cat(flat.split(WIDTH)).sum()


class Irregular(nn.Module):
    """Every third step does more."""

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for step in range(x.shape[1]):
            state = torch.tanh(state + x[:, step])
            if step % 3 == 0:
                state = state.exp()
        return state


def graph_of(model: nn.Module, batch: int, context: int) -> CallGraph:
    return lpo.trace(model, (torch.zeros(batch, context, WIDTH),)).graphs[0]


def fitted(model: nn.Module) -> Program:
    points = [{"batch": batch, "context": context} for batch, context in SAMPLES]
    graphs = [graph_of(model, **point) for point in points]
    return program_of(graphs, Fitter(points=points, variables=("batch", "context"), chunks=(CHUNK,)))


LOOPED: Mapping[str, tuple[nn.Module, int]] = {  # and how many loops it has
    "sequences": (PerSequence(), 1),
    "scan": (Scan(), 1),
    "first step of another type": (TypedScan(), 1),
    "chunks": (ChunkedScan(), 1),
    "views and lists": (TwoLoops(), 3),
    "growing": (Growing(), 1),
}
POINTS = ((2, 5), (4, 9), (9, 5), (17, 13), (3, 30))


@pytest.mark.parametrize("name", LOOPED)
def test_a_loop_runs_as_often_as_the_workload_says(name: str, one_thread: None) -> None:
    model, loops = LOOPED[name]
    program = fitted(model)
    assert len(program.loops) == loops
    for batch, context in POINTS:
        traced = graph_of(model, batch, context)
        assert same_run(program.graph_at({"batch": batch, "context": context}), traced) is None


@pytest.mark.parametrize("name", ["sequences", "scan", "first step of another type", "chunks"])
def test_its_figures_are_those_of_a_trace(name: str, one_thread: None) -> None:
    model, _ = LOOPED[name]
    forms = looped_figures(fitted(model), {"batch": (2, 500), "context": (5, 901)})
    for batch, context in ((2, 5), (4, 9), (31, 5), (5, 37), (40, 41)):
        found = costs_of(graph_of(model, batch, context))
        assert {name: forms.at(name, {"batch": batch, "context": context}) for name in found} == found


@pytest.mark.parametrize("name", LOOPED)
def test_costs_without_a_graph_are_those_of_the_graph(name: str, one_thread: None) -> None:
    program = fitted(LOOPED[name][0])
    costs = ProgramCosts(program)
    for batch, context in ((4, 9), (9, 21), (4, 9)):
        point = {"batch": batch, "context": context}
        assert costs.at(point) == stage_costs_of(program.graph_at(point))


def test_a_scan_costs_what_a_hand_count_says(one_thread: None) -> None:
    forms = looped_figures(fitted(Scan()), {"batch": (2, 64), "context": (2, 4096)})
    assert forms.total.flops.at({"batch": 3, "context": 4096}) == 2 * 3 * 4096 * WIDTH * WIDTH
    # At the end: what was given, all outputs in a list, their stack and its matmul; all but the list are one size.
    one = 3 * 4096 * WIDTH * 4
    assert forms.at("peak_bytes", {"batch": 3, "context": 4096}) in range(3 * one, 4 * one + one // 64)


def test_a_loop_whose_blocks_are_not_alike_is_no_rule(one_thread: None) -> None:
    with pytest.raises(NoRule):
        fitted(Irregular())


def test_what_happens_once_is_no_loop(one_thread: None) -> None:
    graph = graph_of(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5))), 5, 3)
    assert find_loops(graph, [Repeats(count=Form.atom("batch"), times=5)]) == ()


def test_pages_of_a_batch_and_experts_with_rows(one_thread: None) -> None:
    subject = Subject(
        name="tiny",
        kind="OCR",
        source="deepseek-ocr-tiny",
        is_registered=True,
        options={"mode": "gundam", "crops": (2, 1)},
        batch=(1, 9),
        context=(90, 400),
    )
    function = make_function("deepseek-ocr-tiny", subject)
    records, points = compared(function, "deepseek-ocr-tiny", subject, 4, seed=1)
    for phase, record in zip(function.phases, records, strict=True):
        assert not phase.open_regions
        assert record.differences == []
        assert record.exact == len(points)
