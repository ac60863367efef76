"""Loops of Python code: what runs once for each sequence, step of a scan or expert, against traces of other lengths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from benchmarks.function.exactness import compared, make_function
from benchmarks.function.subjects import Subject
from llm_perf_opt.analyses.function.figures.looped_figures import looped_figures
from llm_perf_opt.analyses.function.figures.needs import costs_of
from llm_perf_opt.analyses.function.fitting import Fitter
from llm_perf_opt.analyses.function.form import Form
from llm_perf_opt.analyses.function.program.alignment import same_run
from llm_perf_opt.analyses.function.program.loops import Repeats, find_loops
from llm_perf_opt.analyses.function.program.program import NoRule, Program
from llm_perf_opt.analyses.function.program.sizing import program_of
from llm_perf_opt.core.callgraph import CallGraph

SAMPLES = ((2, 5), (3, 7), (5, 7), (6, 11), (7, 5), (5, 13))
WIDTH = 8


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
    """Each step copies all that was there before it: no two blocks have the same memory."""

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :1]
        for step in range(1, x.shape[1]):
            seen = torch.cat([seen, x[:, step : step + 1]], dim=1)
        return seen


def graph_of(model: nn.Module, batch: int, context: int) -> CallGraph:
    return lpo.trace(model, (torch.zeros(batch, context, WIDTH),)).graphs[0]


def fitted(model: nn.Module, samples: Sequence[tuple[int, int]] = SAMPLES) -> Program:
    points = [{"batch": batch, "context": context} for batch, context in samples]
    graphs = [graph_of(model, **point) for point in points]
    return program_of(graphs, Fitter(points=points, variables=("batch", "context")))


@pytest.mark.parametrize("model", [PerSequence(), Scan()], ids=["sequences", "scan"])
@pytest.mark.parametrize(("batch", "context"), [(2, 2), (4, 9), (9, 4), (23, 17), (3, 40)])
def test_a_loop_runs_as_often_as_the_workload_says(
    model: nn.Module, batch: int, context: int, one_thread: None
) -> None:
    program, traced = fitted(model), graph_of(model, batch, context)
    assert len(program.loops) == 1
    assert same_run(program.graph_at({"batch": batch, "context": context}), traced) is None


@pytest.mark.parametrize("model", [PerSequence(), Scan()], ids=["sequences", "scan"])
def test_its_figures_are_those_of_a_trace(model: nn.Module, one_thread: None) -> None:
    forms = looped_figures(fitted(model), {"batch": (2, 500), "context": (2, 900)})
    for batch, context in ((2, 2), (3, 3), (4, 9), (31, 5), (5, 37), (60, 61)):
        found = costs_of(graph_of(model, batch, context))
        assert {name: forms.at(name, {"batch": batch, "context": context}) for name in found} == found


def test_a_scan_costs_what_a_hand_count_says(one_thread: None) -> None:
    forms = looped_figures(fitted(Scan()), {"batch": (2, 64), "context": (2, 4096)})
    assert forms.total.flops.at({"batch": 3, "context": 4096}) == 2 * 3 * 4096 * WIDTH * WIDTH
    # At the end: what was given, all outputs in a list, their stack and its product; all but the list are one size.
    one = 3 * 4096 * WIDTH * 4
    assert forms.at("peak_bytes", {"batch": 3, "context": 4096}) in range(3 * one, 4 * one + one // 64)


def test_memory_that_is_another_in_each_block_is_no_rule(one_thread: None) -> None:
    with pytest.raises(NoRule):
        fitted(Growing())


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
