"""A model, timed page by page into a folder, joined with its costs, and reported."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llm_perf_opt import __version__
from llm_perf_opt.analyses.profile import RunFigures, WorkloadCosts, join_run, metrics_document, profile_report
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.profile.costs import PageTraces, find_profiled_device
from llm_perf_opt.api.profile.profiled_model import ProfiledModel
from llm_perf_opt.api.profile.ranged_pass import ranged_program
from llm_perf_opt.api.profile.request import ProfileRequest
from llm_perf_opt.api.profile.run_folder import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    REQUEST_FILE,
    RunFolder,
    open_run_folder,
)
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import MeasuredKernel, OperatorTime, PageMeasurement
from llm_perf_opt.core.plugins import OUTSIDE_PROFILERS, REPORTERS
from llm_perf_opt.core.protocols import StageWatch
from llm_perf_opt.core.report import Note, Report

if TYPE_CHECKING:
    from llm_perf_opt.harness.timing.timed_runs import TimedRuns

log = logging.getLogger(__name__)

CHROME_TRACE = "chrome-trace.json"
KERNELS = "kernels.json"
OPERATORS = "operators.csv"
_OPERATOR_COLUMNS = ("stage", "operator", "calls", "self_ns", "total_ns", "device_ns")


class Progress(StageWatch, Protocol):
    """Told how far a run is: which page, and of it which stage."""

    def begin(self, total: int, done: int) -> None:
        """So many pages, of which so many were finished by an earlier run."""
        ...

    def page(self, image: str) -> None:
        """Work on it begins."""
        ...

    def page_done(self) -> None:
        """It is finished."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ProfileAnswer(Answer):
    """How fast a model ran: figures by stage, and the raw samples that they follow from.

    `device` is None where its peaks are not known; MFU and MBU are unknown then. `files` are empty where nothing was
    kept. `resumed_pages` were finished by an earlier run with the same configuration.
    """

    model: str
    dtype: str
    device: Device | None
    figures: RunFigures
    costs: tuple[WorkloadCosts | None, ...]  # one per page, None where none was traced
    pages: tuple[PageMeasurement, ...]
    operators: tuple[OperatorTime, ...]
    kernels: tuple[MeasuredKernel, ...]
    notes: tuple[str, ...]
    folder: Path | None
    files: tuple[Path, ...]
    resumed_pages: int
    _chapters: tuple[Report, ...]

    @property
    def mfu(self) -> float | None:
        """FLOPs of all forwards over their time and the peak of the device."""
        return self.figures.model.mfu

    @property
    def decode_tokens_per_s(self) -> float | None:
        """By the median decode step; None where none ran."""
        return None if self.figures.step is None else 1e9 / self.figures.step.median_ns

    def report(self) -> Report:
        """Times with their spread, efficiency, cold start, operators, charts; the static report as a chapter."""
        return profile_report(
            model=self.model,
            figures=self.figures,
            pages=self.pages,
            operators=self.operators,
            kernels=self.kernels,
            device=self.device,
            dtype=self.dtype,
            notes=[Note(text) for text in self.notes],
            chapters=self._chapters,
        )


def run_profile(
    request: ProfileRequest,
    model: ProfiledModel,
    folder: Path,
    config_text: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> ProfileAnswer:
    """Measure every page that the folder does not hold yet, then write all artifacts from what it holds."""
    from llm_perf_opt.harness.real_models import RealModels
    from llm_perf_opt.harness.timing.timed_runs import TimedRuns

    if request.profiler.nsight != "none" and not model.has_workload:
        raise UsageError(
            "Nsight cannot run a module.", why="it starts a process of its own", fix="run your script under Nsight"
        )
    images = request.pages()
    with open_run_folder(folder, request, config_text, force=force) as kept:
        run = request.run
        models = RealModels(weights=model.weights, device=request.device.torch)
        runs = TimedRuns(
            models, warmup=run.warmup, repeats=run.repeats, clock=run.clock, threads=run.threads, watch=progress
        )
        environment = runs.environment()
        kept.keep_environment(environment)
        device = find_profiled_device(request.device, environment, request.model.dtype)
        pages, resumed = _measured(request, model, images, kept, runs, progress)
        operators = _operators(request, model, images, kept, runs)
        kernels = _kernels(request, kept)
        return _finish(request, model, kept, Seen(pages, operators, kernels, resumed), device)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, by the clock, by torch's profiler, and by Nsight."""

    pages: list[PageMeasurement]
    operators: tuple[OperatorTime, ...]
    kernels: tuple[MeasuredKernel, ...]
    resumed_pages: int


def _measured(
    request: ProfileRequest,
    model: ProfiledModel,
    images: Sequence[str | None],
    kept: RunFolder,
    runs: TimedRuns,
    progress: Progress | None,
) -> tuple[list[PageMeasurement], int]:
    found = [kept.finished_page(index, image) for index, image in enumerate(images)]
    resumed = sum(page is not None for page in found)
    if resumed:
        log.info("%d of %d pages were finished by an earlier run", resumed, len(images))
    if progress is not None:
        progress.begin(len(images), resumed)
    pages: list[PageMeasurement] = []
    for index, (image, page) in enumerate(zip(images, found, strict=True)):
        if page is None:
            if progress is not None:
                progress.page(image or request.model.name)
            page = runs.measure(model.page_run(request, image))
            kept.keep_page(index, page)
            if progress is not None:
                progress.page_done()
        pages.append(page)
    return pages, resumed


def _operators(
    request: ProfileRequest, model: ProfiledModel, images: Sequence[str | None], kept: RunFolder, runs: TimedRuns
) -> tuple[OperatorTime, ...]:
    """Of the first page, in a pass of its own; a resumed run that has them already reads them back."""
    if not request.profiler.enabled:
        return ()
    file = kept.path / OPERATORS
    if file.is_file() and (kept.path / CHROME_TRACE).is_file():
        return read_operators(file.read_text("utf-8"))
    page = model.page_run(request, images[0])
    found = runs.operators(page, kept.path / CHROME_TRACE, modules=request.profiler.modules)
    kept.write_text(OPERATORS, operators_text(found))
    return found


def _kernels(request: ProfileRequest, kept: RunFolder) -> tuple[MeasuredKernel, ...]:
    """Of a process of its own under Nsight, where that was asked for."""
    if request.profiler.nsight == "none":
        return ()
    profiler = OUTSIDE_PROFILERS.get(request.profiler.nsight)
    found = profiler(ranged_program(kept.path / REQUEST_FILE), kept.path, request.profiler.nsight_stage)
    kept.write_json(KERNELS, [asdict(kernel) for kernel in found])
    return found


def operators_text(operators: Sequence[OperatorTime]) -> str:
    """One line per stage and operator; an unknown time is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _OPERATOR_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(one) for one in operators)
    return text.getvalue()


def read_operators(text: str) -> tuple[OperatorTime, ...]:
    """Back from `operators_text`."""
    return tuple(
        OperatorTime(
            stage=row["stage"],
            operator=row["operator"],
            calls=int(row["calls"]),
            self_ns=int(row["self_ns"]),
            total_ns=int(row["total_ns"]),
            device_ns=int(row["device_ns"]) if row["device_ns"] else None,
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def _finish(
    request: ProfileRequest, model: ProfiledModel, kept: RunFolder, seen: Seen, device: Device | None
) -> ProfileAnswer:
    """Costs, the join, and every artifact; all of it follows from what the folder holds. A page is traced once."""
    pages, files = seen.pages, [kept.path / name for name in (CONFIG_FILE, REQUEST_FILE, ENVIRONMENT_FILE)]
    costs: list[WorkloadCosts | None] = [None] * len(pages)
    chapters: tuple[Report, ...] = ()
    if request.static_analysis.enabled:
        traces = PageTraces(model.adapter, request.model.name, request.device.torch)
        costs = traces.costs(pages)
        static = traces.static(pages[0], request.static_analysis.options())
        files.append(kept.write_text("static_compute.json", static.to_json()))
        chapters = (static.report(),)
    files += [kept.path / OPERATORS, kept.path / CHROME_TRACE] if seen.operators else []
    files += [kept.path / KERNELS] if seen.kernels else []
    names = ("report.md", "report.html", METRICS_FILE)
    answer = ProfileAnswer(
        model=request.model.name,
        dtype=request.model.dtype,
        device=device,
        figures=join_run(pages, costs, device, request.model.dtype),
        costs=tuple(costs),
        pages=tuple(pages),
        operators=seen.operators,
        kernels=seen.kernels,
        notes=(*model.notes, *_holes(costs)),
        folder=kept.path,
        files=(*files, *(kept.path / name for name in names)),
        resumed_pages=seen.resumed_pages,
        _chapters=chapters,
    )
    report = answer.report()
    kept.write_text("report.md", REPORTERS.get("markdown")().render(report))
    kept.write_text("report.html", REPORTERS.get("html")().render(report))
    kept.write_json(METRICS_FILE, _metrics(request, answer))
    return answer


def _metrics(request: ProfileRequest, answer: ProfileAnswer) -> dict[str, object]:
    return metrics_document(
        tool_version=__version__,
        model=answer.model,
        request=asdict(request),
        device=answer.device,
        dtype=answer.dtype,
        figures=answer.figures,
        pages=answer.pages,
        costs=answer.costs,
        notes=answer.notes,
    )


def _holes(costs: Sequence[WorkloadCosts | None]) -> list[str]:
    unpriced = sum(work.unpriced_ops for cost in costs if cost is not None for work in cost.works.values())
    return [f"{unpriced:,} ops have no price, so FLOPs and MFU leave them out"] if unpriced else []
