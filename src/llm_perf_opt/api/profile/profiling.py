"""A session, timed page by page into a folder, joined with its costs, and reported."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from llm_perf_opt import __version__
from llm_perf_opt.analyses.profile import RunFigures, WorkloadCosts, join_run, metrics_document, profile_report
from llm_perf_opt.api.profile.costs import PageCosts, find_profiled_device, static_run
from llm_perf_opt.api.profile.ranged_pass import ranged_program
from llm_perf_opt.api.profile.request import ProfileRequest, list_pages
from llm_perf_opt.api.profile.run_folder import METRICS_FILE, RunFolder, open_run_folder
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import Kernel, OperatorTime, PageMeasurement
from llm_perf_opt.core.protocols import OUTSIDE_PROFILERS, REPORTERS, RUNNERS, SESSIONS, Runner, Session, StageWatch
from llm_perf_opt.core.report import Note, Report

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRun:
    """What a run left behind."""

    folder: Path
    files: tuple[Path, ...]
    report: Report
    figures: RunFigures
    resumed_pages: int  # finished by an earlier run with the same configuration


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, by the clock, by torch's profiler, and by Nsight."""

    pages: list[PageMeasurement]
    operators: tuple[OperatorTime, ...]
    kernels: tuple[Kernel, ...]


def run_profile(
    request: ProfileRequest, folder: Path, config_text: str, *, force: bool = False, progress: Progress | None = None
) -> ProfileRun:
    """Measure every page that the folder does not hold yet, then write all artifacts from what it holds."""
    images = list_pages(request.workload.image, sample=request.workload.sample, seed=request.workload.seed)
    with open_run_folder(folder, config_text, force=force) as kept:
        session = SESSIONS.get(request.model.name)(request.session())
        runner = _runner(request, session, progress)
        environment = runner.environment()
        kept.keep_environment(environment)
        device = find_profiled_device(request.device, environment, request.model.dtype)
        pages, resumed = _measured(request, images, kept, runner, progress)
        operators = _operators(request, images, kept, runner)
        kernels = _kernels(request, kept)
        return _finish(request, session, kept, Seen(pages, operators, kernels), device, resumed)


def _runner(request: ProfileRequest, session: Session, progress: Progress | None) -> Runner:
    run = request.run
    return RUNNERS.get("timed")(
        session, warmup=run.warmup, repeats=run.repeats, clock=run.clock, threads=run.threads, watch=progress
    )


def _measured(
    request: ProfileRequest, images: Sequence[str], kept: RunFolder, runner: Runner, progress: Progress | None
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
                progress.page(image)
            page = runner.measure(request.workload.request(image))
            kept.keep_page(index, page)
            if progress is not None:
                progress.page_done()
        pages.append(page)
    return pages, resumed


def _operators(
    request: ProfileRequest, images: Sequence[str], kept: RunFolder, runner: Runner
) -> tuple[OperatorTime, ...]:
    """Of the first page, in a pass of its own; a resumed run that has them already reads them back."""
    if not request.profiler.enabled:
        return ()
    file = kept.path / OPERATORS
    if file.is_file() and (kept.path / CHROME_TRACE).is_file():
        return read_operators(file.read_text("utf-8"))
    found = runner.operators(
        request.workload.request(images[0]), kept.path / CHROME_TRACE, modules=request.profiler.modules
    )
    kept.write_text(OPERATORS, operators_text(found))
    return found


def _kernels(request: ProfileRequest, kept: RunFolder) -> tuple[Kernel, ...]:
    """Of a process of its own under Nsight, where that was asked for."""
    if request.profiler.nsight == "none":
        return ()
    profiler = OUTSIDE_PROFILERS.get(request.profiler.nsight)
    request_file = kept.write_json("nsight-request.json", asdict(request))
    found = profiler(ranged_program(request_file), kept.path, request.profiler.nsight_stage)
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
    request: ProfileRequest,
    session: Session,
    kept: RunFolder,
    seen: Seen,
    device: Device | None,
    resumed: int,
) -> ProfileRun:
    """Costs, the join, and every artifact; all of it follows from what the folder holds."""
    pages = seen.pages
    dtype = request.model.dtype
    by_page: list[WorkloadCosts | None] = [None] * len(pages)
    if request.static_analysis.enabled:
        by_page = PageCosts(session.adapter, request.model.name, request.device.torch).of(pages)
    figures = join_run(pages, by_page, device, dtype)
    notes = [*session.notes, *_holes(by_page)]
    chapters: tuple[Report, ...] = ()
    files = [kept.path / name for name in ("config.yaml", "env.json")]
    if request.static_analysis.enabled:
        static = static_run(session.adapter, request, pages[0])
        files.append(kept.write_text("static_compute.json", static.text))
        chapters = (static.report,)
    report = profile_report(
        model=request.model.name,
        figures=figures,
        pages=pages,
        operators=seen.operators,
        kernels=seen.kernels,
        device=device,
        dtype=dtype,
        notes=[Note(text) for text in notes],
        chapters=chapters,
    )
    document = metrics_document(
        tool_version=__version__,
        model=request.model.name,
        request=asdict(request),
        device=device,
        dtype=dtype,
        figures=figures,
        pages=pages,
        costs=by_page,
        notes=notes,
    )
    if seen.operators:
        files += [kept.path / OPERATORS, kept.path / CHROME_TRACE]
    if seen.kernels:
        files.append(kept.path / KERNELS)
    files.append(kept.write_text("report.md", REPORTERS.get("markdown")().render(report)))
    files.append(kept.write_text("report.html", REPORTERS.get("html")().render(report)))
    files.append(kept.write_json(METRICS_FILE, document))
    return ProfileRun(folder=kept.path, files=tuple(files), report=report, figures=figures, resumed_pages=resumed)


def _holes(costs: Sequence[WorkloadCosts | None]) -> list[str]:
    unpriced = sum(work.unpriced_ops for cost in costs if cost is not None for work in cost.works.values())
    return [f"{unpriced:,} ops have no price, so FLOPs and MFU leave them out"] if unpriced else []
