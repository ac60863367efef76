"""The figures of a function as data of a page: every form as terms with whole coefficients, cell by cell.

Forms of what a format changes are fitted anew for each format, on the graphs of the proven program in that format.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.sweeps.function.figures.needs import RESIDENT, ExpertForms, NeedForms, costs_of, need_forms
from llm_perf_opt.sweeps.function.figures.rebuilding import Rebuilt
from llm_perf_opt.sweeps.function.form import Form, Point, Step
from llm_perf_opt.sweeps.function.phase_function import FIGURES, PEAK, FunctionCell, PhaseFunction
from llm_perf_opt.sweeps.function.program.alignment import Parting
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule
from llm_perf_opt.sweeps.run_function import RunFunction
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.traced_run import TracedRun

log = logging.getLogger(__name__)

_EXACT_IN_JAVASCRIPT = 2**53 - 1
_BYTES_MOVED = "bytes_moved"
_NEEDS = ("weight_bytes", "parameters", RESIDENT, "cache_bytes")

Data = dict[str, Any]  # of plain values, as JSON has them


@dataclass(frozen=True, eq=False)
class _RebuiltIn(Rebuilt):
    """The graphs of a cell in another format. A cache is found in all phases together."""

    wanted: Deployment = field(default_factory=Deployment)
    phases: tuple[PhaseFunction, ...] = ()
    phase: str = ""

    def graph(self, point: Point) -> CallGraph:
        """The graph of a point, stored as is wanted."""
        key = tuple(point[name] for name in self.region)
        if key not in self._graphs:
            graphs = [self._stored(phase, point) for phase in self.phases if self._counts(phase)]
            # The cache first: keys and values are found by the types that were traced.
            with_cache = redeployed(graphs, Deployment(cache=self.wanted.cache))
            changed = redeployed(with_cache, Deployment(weights=self.wanted.weights))
            self._graphs[key] = next(graph for graph in changed if graph.phase == self.phase)
        return self._graphs[key]

    def _counts(self, phase: PhaseFunction) -> bool:
        return self.wanted.cache is not None or phase.phase == self.phase

    def _stored(self, phase: PhaseFunction, point: Point) -> CallGraph:
        """The graph as it was traced; which tensors are keys and values is seen in what modules saw."""
        cell = phase.cell_at(point)
        if cell is None:
            raise NoRule(Parting(what=NO_RULE, op=None, text=f"the {phase.phase} is not proven at {dict(point)}"))
        return cell.rebuilt.graph(point) if self.wanted.cache is None else cell.cell.program.graph_at(point)


def function_data(function: RunFunction[TracedRun], formats: Mapping[str, Deployment]) -> list[Data]:
    """Every phase with its proven cells; figures as stored, and by the name of a format what it changes."""
    return [_phase(phase, function.phases, formats) for phase in function.phases]


def _phase(phase: PhaseFunction, phases: tuple[PhaseFunction, ...], formats: Mapping[str, Deployment]) -> Data:
    log.info("The %s as formulas: %d formats, %d cells", phase.phase, len(formats), len(phase.cells))
    return {
        "phase": phase.phase,
        "domain": _region(phase.domain),
        "traces": phase.traces,
        "open": len(phase.open_regions),
        "cells": [_cell(cell, phase.phase, phases, formats) for cell in phase.cells],
    }


def _cell(cell: FunctionCell, phase: str, phases: tuple[PhaseFunction, ...], formats: Mapping[str, Deployment]) -> Data:
    stride = cell.cell.stride
    return {
        "region": _region(cell.region),
        "stride": None if stride is None else [stride.variable, stride.chunk, stride.is_multiple],
        "checked": len({tuple(sorted(point.items())) for point in cell.cell.checked}),
        "figures": {name: _figure(cell, name) for name in FIGURES if name not in (_BYTES_MOVED, PEAK)},
        "in": {name: _in_format(cell, phase, phases, wanted) for name, wanted in formats.items()},
    }


def _figure(cell: FunctionCell, name: str) -> list[Data] | None:
    """The forms of which a figure is the largest; None: no form gives it."""
    if cell.figures is None or (name == PEAK and not cell.figures.peak_bytes):
        return None
    forms = cell.figures.peak_bytes if name == PEAK else (getattr(cell.figures.total, name),)
    return [_form(form) for form in forms]


def _in_format(cell: FunctionCell, phase: str, phases: tuple[PhaseFunction, ...], wanted: Deployment) -> Data:
    """What a format changes; as the trace is stored the forms are known already."""
    own = cell.rebuilt
    if wanted == Deployment():
        moved = _figure(cell, _BYTES_MOVED)
        return {**_needs(cell.needs), _BYTES_MOVED: moved[0] if moved else None, PEAK: _figure(cell, PEAK)}
    rebuilt = _RebuiltIn(own.program, own.region, own.sampled, wanted, phases, phase)
    try:
        costs = rebuilt.fit(lambda graph: {name: costs_of(graph)[name] for name in (_BYTES_MOVED, PEAK)}).forms
        needs, peak = _needs(need_forms(rebuilt)), costs.get(PEAK)
    except NoRule:  # of another phase, in which the cache is found too, somewhere in this cell
        return {**dict.fromkeys((*_NEEDS, _BYTES_MOVED, PEAK, "necessary")), "policy": cell.needs.policy}
    # Weights in another format leave the activations and the cache as they are.
    is_as_stored = wanted.cache is None
    return {
        **needs,
        "cache_bytes": _needs(cell.needs)["cache_bytes"] if is_as_stored else None,
        _BYTES_MOVED: _known(costs.get(_BYTES_MOVED)),
        PEAK: _figure(cell, PEAK) if is_as_stored else None if peak is None else [_form(peak)],
    }


def _needs(needs: NeedForms) -> Data:
    known: Data = {name: None if name in needs.by_point else _known(getattr(needs, name)) for name in _NEEDS}
    return {**known, "policy": needs.policy, "necessary": _necessary(needs)}


def _necessary(needs: NeedForms) -> list[Data] | None:
    """Necessary work by stage; None: no form gives it."""
    if not needs.necessary:
        return None
    return [
        {
            "stage": name,
            "flops": {dtype: _form(form) for dtype, form in stage.flops_by_dtype.items()},
            "bytes": _known(stage.bytes),
            "forwards": _form(stage.forwards),
            **_experts(stage.experts),
        }
        for name, stage in needs.necessary.items()
    ]


def _experts(blocks: tuple[ExpertForms, ...]) -> Data:
    """Distinct blocks, and for each layer which of them it is: layers are added up in their order."""
    distinct = list(dict.fromkeys(blocks))
    return {
        "experts": [
            {
                "experts": block.experts,
                "chosen": block.chosen,
                "bytes_each": block.bytes_each,
                "ranks": block.ranks,
                "ranks_alike": block.ranks_alike,
                "tokens": _form(block.tokens),
            }
            for block in distinct
        ],
        "layers": [distinct.index(block) for block in blocks],
    }


def _region(region: Mapping[str, tuple[int, int]]) -> Data:
    return {name: list(ends) for name, ends in region.items()}


def _known(form: Form | None) -> Data | None:
    return None if form is None else _form(form)


def _form(form: Form) -> Data:
    """`terms` are coefficients with their factors: variables by name, steps by their place in `steps`."""
    steps: list[Step] = []
    terms = [[whole(coefficient), list(_factors(term, steps))] for term, coefficient in form.terms.items()]
    return {"terms": terms, **({"steps": [_step(step) for step in steps]} if steps else {})}


def _factors(term: tuple[str | Step, ...], steps: list[Step]) -> Iterator[str | int]:
    for atom in term:
        if isinstance(atom, Step):
            if atom not in steps:
                steps.append(atom)
            yield steps.index(atom)
        else:
            yield atom


def _step(step: Step) -> Data:
    return {"kind": str(step.kind), "of": _form(step.of), "constants": list(step.constants)}


def whole(number: int) -> int | str:
    """A number that JavaScript cannot represent exactly travels as text."""
    return number if abs(number) <= _EXACT_IN_JAVASCRIPT else str(number)
