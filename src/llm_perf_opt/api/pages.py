"""What pages cost: one traced run per way of cutting a page, and what one more crop adds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.hardware.links import is_several
from llm_perf_opt.core.options import read_grid
from llm_perf_opt.core.protocols import Tracer
from llm_perf_opt.core.report import Note, Report
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import PageSize, read_page_size
from llm_perf_opt.costs.run_description import deployment_notes, workload_text
from llm_perf_opt.sweeps.page_report import (
    AddedCrops,
    PageCost,
    RunCost,
    added_crops,
    grid_text,
    page_lines,
    page_report,
    run_cost,
    smaller_grid,
)
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.traced_phases import make_tracer, trace_targets

log = logging.getLogger(__name__)

DEFAULT_PAGES = ("640x640", "1024x1024", "1920x1080", "A4@150dpi", "A4@300dpi", "600x2400", "2048x2048")
DEFAULT_CROPS = ("1x1", "2x1", "2x2", "2x3", "2x4", "3x3")
MOST_PAGES = 64
_OF_THE_PAGE = ("image", "image_tokens", "context_tokens", "crops", "inputs")  # what differs from page to page


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PagesAnswer(Answer):
    """Every page, and for each grid among them what its last row of crops adds. `device` None: no times."""

    model: str
    device: Device | None
    execution: str
    pages: tuple[PageCost, ...]
    added: tuple[AddedCrops, ...]
    _graphs: tuple[CallGraph, ...]  # of the first page, for the description of the rest of the workload

    def report(self) -> Report:
        """Tables of cost, time and added crops, with charts by page and by crops."""
        header = {name: value for name, value in self._graphs[0].workload.items() if name not in _OF_THE_PAGE}
        notes = (
            Note(f"Workload of every page: {workload_text(header)}."),
            *deployment_notes(self._graphs),
            Note("FLOPs are as written: a multiply-add counts as two, and causal attention is not halved."),
        )
        machine = None if self.device is None else self.device.name
        report = page_report(f"{self.model}: what a page costs", self.pages, self.added, machine=machine, notes=notes)
        where = "" if machine is None else f"{machine}, {Execution(self.execution).text}"
        return replace(report, answer=page_lines(self.model, self.pages, self.added, where))


def pages(
    model: str | Path,
    *,
    page: str | Sequence[str] | None = None,
    crops: str | Sequence[str | tuple[int, int]] | None = None,
    gpus: str | Device | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.FUSED,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> PagesAnswer:
    """What pages of several sizes cost, each from a trace of its own: crops, tokens, FLOPs, cache and time.

    - `page`: sizes, `640x480,A4@150dpi` or a list. Or `crops`: grids of crops, `1x1,2x3`. Default: a mix of sizes.
    - `gpus`: one GPU, for times. Default: no times. `execution`: `fused`, an engine's kernels, or `eager`.
    - `weights`, `cache`, `routing` and the workload are as in `lpo.trace`.
    """
    hardware = _one_gpu(gpus, devices_file) if isinstance(gpus, str) else gpus
    origin = find_origin(
        model,
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=None if hardware is None else hardware.torch_device,
        trust_remote_code=trust_remote_code,
        **workload,
    )
    shown = _pages_to_show(origin, _listed(page), _listed(crops))
    rates = None if hardware is None else source_of(hardware, execution, rates=None)
    runs = _Runs(origin, rates)
    costs = tuple(
        PageCost(name=name, pixels=None if size is None else size.pixels, run=runs.of(given))
        for name, size, given in shown
    )
    return PagesAnswer(
        model=runs.first[0].model,
        device=hardware,
        execution=execution,
        pages=costs,
        added=tuple(_added(origin, costs, runs)),
        _graphs=runs.first,
    )


def _one_gpu(name: str, devices_file: Path | None) -> Device:
    if is_several(name):
        raise UsageError(
            f"Pages are timed on one GPU, and {name[:80]!r} names several.",
            why="a table shows each page once, with its crops and its time",
            fix="name one GPU, and run the command once for each",
        )
    return find_device(name, devices_file)


Named = TypeVar("Named")


def _listed(given: str | Sequence[Named] | None) -> Sequence[str | Named] | None:
    """A list as people write it, `1x1, 2x2`, or one of Python."""
    return [word.strip() for word in given.split(",") if word.strip()] if isinstance(given, str) else given


Shown = tuple[str, PageSize | None, Mapping[str, Any]]  # name, size, the fields of the workload for it


def _pages_to_show(
    origin: Origin, pages: Sequence[str] | None, crops: Sequence[str | tuple[int, int]] | None
) -> list[Shown]:
    """Checked before anything runs."""
    takes = type(origin.workload).options()
    if pages is not None and crops is not None:
        raise UsageError("--page and --crops exclude each other.", why="a size fixes its crops", fix="give one of them")
    for option, given in (("--page", pages), ("--crops", crops)):
        if given is not None and not given:
            raise UsageError(f"{option} names no page.", why="the list is empty", fix=f"name one or leave {option} out")
        if given is not None and len(given) > MOST_PAGES:
            raise UsageError(
                f"{option} names {len(given):,} pages.",
                why=f"each is traced by itself, and a table shows at most {MOST_PAGES}",
                fix="name fewer, or run the command once for each part of the list",
            )
    if pages is None and crops is None and "image" not in takes:
        crops = DEFAULT_CROPS
    field, option = ("image", "--page") if crops is None else ("crops", "--crops")
    if field not in takes:
        raise UsageError(
            f"{origin.name} takes no {option}.",
            why=f"its workload has no {field}; it has: {', '.join(takes)}",
            fix="use --crops" if "crops" in takes else "use --page" if "image" in takes else "choose another model",
        )
    if origin.workload.changed().get("image") is not None:
        raise UsageError("--image is a single page.", why=f"{option} names every page", fix="leave --image out")
    if crops is not None:
        grids = [read_grid(grid) for grid in crops]
        return [(grid_text(grid) or "", None, {"crops": grid}) for grid in grids]
    read = [read_page_size(size) for size in (DEFAULT_PAGES if pages is None else pages)]
    return [(size.name, size, {"image": size.text}) for size in read]


class _Runs:
    """Traces each way of showing a page once; all of them share one built model."""

    def __init__(self, origin: Origin, rates: RateSource | None) -> None:
        self._origin, self._rates = origin, rates
        self._tracer: Tracer = make_tracer(routing=origin.routing, torch_device=origin.torch_device)
        self._build: Any = None
        self._known: dict[str, RunCost] = {}
        self.first: tuple[CallGraph, ...] = ()

    def of(self, given: Mapping[str, Any]) -> RunCost:
        """The figures of the workload with these fields."""
        targets = self._targets(given)
        key = repr({name: value for name, value in targets[0].workload.items() if name != "image"})
        if key not in self._known:
            log.info("Page: %s", given.get("image") or grid_text(given["crops"]))
            adapter, deployment = self._origin.adapter, self._origin.deployment
            graphs = trace_targets(self._tracer, adapter, targets, deployment).graphs
            self.first = self.first or graphs
            if self._rates is not None:
                self._rates.meet(graphs)
            self._known[key] = run_cost(graphs, self._rates)
        return self._known[key]

    def _targets(self, given: Mapping[str, Any]) -> tuple[Target, ...]:
        targets = self._origin.targets(**given)
        if self._build is None:
            self._build = targets[0].build
        return tuple(replace(target, build=self._build) for target in targets)


def _added(origin: Origin, costs: Sequence[PageCost], runs: _Runs) -> Iterator[AddedCrops]:
    """For every grid among the pages, by crops; nothing where the grid cannot be chosen."""
    if "crops" not in type(origin.workload).options():
        return
    grids = {cost.run.grid: cost for cost in costs if cost.run.grid is not None}
    by_crops = sorted(grids, key=lambda grid: (grid[0] * grid[1], grid))
    for grid in by_crops:
        smaller = smaller_grid(grid)
        if smaller is not None:
            cost = added_crops(runs.of({"crops": smaller}), grids[grid].run)
            if cost is not None:
                yield cost
