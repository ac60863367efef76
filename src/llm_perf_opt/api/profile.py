"""`lpo.profile(...)`: run a model for real, by name, folder or module, and say how fast each stage was."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llm_perf_opt import __version__
from llm_perf_opt.api.advise import AdviceAnswer, advice_answer
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.profile_preparation import (
    Prepared,
    analyse,
    failure_text,
    find_profiled_device,
    require_memory,
    require_programs,
    require_recorded_on,
)
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import MeasuredKernel, OperatorTime, PageMeasurement
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.plugins import OUTSIDE_PROFILERS, REPORTERS
from llm_perf_opt.core.protocols import StageWatch
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.core.report import Level, Note, Report
from llm_perf_opt.measurements.profile import RunFigures, WorkloadCosts, join_run, metrics_document, profile_report
from llm_perf_opt.measurements.profile.joined_run import JoinedRun, join_profiled
from llm_perf_opt.measurements.profile.profiled_model import ProfiledModel, open_model, ranged_program
from llm_perf_opt.measurements.profile.request import (
    WORKLOAD_OPTIONS,
    DeviceChoice,
    ModelChoice,
    PageChoice,
    ProfilerChoice,
    ProfileRequest,
    RunChoice,
    StaticChoice,
    StaticSwitch,
    WorkloadChoice,
)
from llm_perf_opt.measurements.profile.run_folder import (
    CHROME_TRACE,
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    OPERATORS,
    REQUEST_FILE,
    RunFolder,
    kept_operators,
    open_run_folder,
    operator_columns,
    operators_text,
)
from llm_perf_opt.tracing.origin import module_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from llm_perf_opt.measurements.timed.timed_runs import TimedRuns

log = logging.getLogger(__name__)

KERNELS = "kernels.json"
# sources of figures besides the clock, as failures name them
STATIC, PROFILER, JOIN, ADVICE = "static analysis", "torch's profiler", "the join with the trace", "the advice"


class Progress(StageWatch, Protocol):
    """Told how far a run is: which page, and of it which stage."""

    def begin(self, total: int, done: int) -> None:
        """Say how many pages there are, and how many an earlier run finished."""
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
    kept. `resumed_pages` were finished by an earlier run with the same configuration. `failures` are sources besides
    the clock that gave nothing, with the reason; everything else is as if they had not been asked.
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
    failures: Mapping[str, str]  # source -> reason
    joined: JoinedRun | None  # None: it was not asked for, or failed
    advice: AdviceAnswer | None  # from the measured times; None: no join, or the peaks of the device are not known
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
            notes=[*map(Note, self.notes), *(Note(text, Level.WARNING) for text in self.failure_lines)],
            chapters=self._chapters,
            joined=self.joined,
            advice=None if self.advice is None else self.advice.report(),
        )

    @property
    def failure_lines(self) -> list[str]:
        """The failures as the report tells them."""
        return [f"Failed: {source}; its figures are missing. {why}" for source, why in self.failures.items()]


def run_profile(
    request: ProfileRequest,
    model: ProfiledModel,
    folder: Path,
    config_text: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> ProfileAnswer:
    """Analyse, then measure every page that the folder does not hold yet, then write all artifacts from what it holds.

    What cannot succeed is refused before the first pass: a program that is missing, a workload that the model does not
    take, memory that is not there. A source besides the clock that fails later is a line of the report.
    """
    from llm_perf_opt.harness.real_models import RealModels
    from llm_perf_opt.measurements.timed.timed_runs import TimedRuns

    require_programs(request, model)
    images = request.pages()
    with open_run_folder(folder, request, config_text, force=force) as run_folder:
        run = request.run
        models = RealModels(weights=model.weights, device=request.device.torch)
        runs = TimedRuns(
            models, warmup=run.warmup, repeats=run.repeats, clock=run.clock, threads=run.threads, watch=progress
        )
        environment = runs.environment()
        run_folder.keep_environment(environment)
        device = find_profiled_device(request.device, environment, request.model.dtype)
        if request.profiler.join:
            reported = environment["device"]["reported_name"]
            require_recorded_on(device, reported, on_host=request.device.torch == "cpu")
        first = model.page_run(request, images[0])
        prepared = analyse(request, model, first, run_folder)
        finished = [run_folder.finished_page(index, image) for index, image in enumerate(images)]
        if run.check_memory and None in finished:
            has_weights = any(target.has_weights for target in first.run.targets)
            require_memory(prepared.memory, request.device.torch, has_weights=has_weights)
        pages = _measured(request, model, images, finished, run_folder, runs, progress)
        records = _records(request, model, images, run_folder, runs, pages)
        resumed = sum(page is not None for page in finished)
        return _finish(request, model, run_folder, prepared, records, device, resumed)


@dataclass(frozen=True, slots=True)
class ProfileRecords:
    """What was measured, by the clock, by torch's profiler, and by Nsight; and which of the latter two failed."""

    pages: list[PageMeasurement]
    operators: tuple[OperatorTime, ...]
    kernels: tuple[MeasuredKernel, ...]
    failures: Mapping[str, str]


def _measured(
    request: ProfileRequest,
    model: ProfiledModel,
    images: Sequence[str | None],
    finished: Sequence[PageMeasurement | None],
    run_folder: RunFolder,
    runs: TimedRuns,
    progress: Progress | None,
) -> list[PageMeasurement]:
    resumed = sum(page is not None for page in finished)
    if resumed:
        log.info("%d of %d pages were finished by an earlier run", resumed, len(images))
    if progress is not None:
        progress.begin(len(images), resumed)
    pages: list[PageMeasurement] = []
    for index, (image, page) in enumerate(zip(images, finished, strict=True)):
        if page is None:
            if progress is not None:
                progress.page(image or request.model.name)
            page = runs.measure(model.page_run(request, image))
            run_folder.keep_page(index, page)
            if progress is not None:
                progress.page_done()
        pages.append(page)
    return pages


def _records(
    request: ProfileRequest,
    model: ProfiledModel,
    images: Sequence[str | None],
    run_folder: RunFolder,
    runs: TimedRuns,
    pages: list[PageMeasurement],
) -> ProfileRecords:
    """The passes that are not timed. The times are there already, so one that fails does not end the run."""
    failures: dict[str, str] = {}
    operators: tuple[OperatorTime, ...] = ()
    kernels: tuple[MeasuredKernel, ...] = ()
    try:
        operators = _operators(request, model, images, run_folder, runs)
    except (PerfOptError, RuntimeError) as error:
        failures[PROFILER] = failure_text(error)
    for name in _nsight_programs(request, model):
        try:
            kernels += OUTSIDE_PROFILERS.get(name)(
                ranged_program(run_folder.path / REQUEST_FILE), run_folder.path, request.profiler.nsight_stage
            )
        except PerfOptError as error:
            failures[name] = failure_text(error)
    if kernels:
        run_folder.write_json(KERNELS, [asdict(kernel) for kernel in kernels])
    return ProfileRecords(pages, operators, kernels, failures)


def _nsight_programs(request: ProfileRequest, model: ProfiledModel) -> list[str]:
    """The outside profilers to run, each in a process of its own."""
    choice = request.profiler.nsight
    if choice == "installed":
        return [name for name in OUTSIDE_PROFILERS.names() if model.has_workload and shutil.which(name) is not None]
    return [] if choice == "none" else [choice]


def _operators(
    request: ProfileRequest, model: ProfiledModel, images: Sequence[str | None], run_folder: RunFolder, runs: TimedRuns
) -> tuple[OperatorTime, ...]:
    """Of the first page, in a pass of its own; a resumed run that has them already reads them back."""
    from llm_perf_opt.harness.profiler_details import ProfilerOptions

    profiler = request.profiler
    if not profiler.enabled:
        return ()
    if (known := kept_operators(run_folder, profiler)) is not None:
        return known
    options = ProfilerOptions(
        with_stack=profiler.with_stack, with_modules=profiler.with_modules, profile_memory=profiler.profile_memory
    )
    page = model.page_run(request, images[0])
    operators = runs.operators(page, run_folder.path / CHROME_TRACE, modules=profiler.modules, options=options)
    run_folder.write_with_digest(OPERATORS, operators_text(operators, operator_columns(profiler)))
    return operators


def _finish(
    request: ProfileRequest,
    model: ProfiledModel,
    run_folder: RunFolder,
    prepared: Prepared,
    records: ProfileRecords,
    device: Device | None,
    resumed_pages: int,
) -> ProfileAnswer:
    """Costs, the join, and every artifact; all of it follows from what the folder holds. A page is traced once."""
    pages, files = records.pages, [run_folder.path / name for name in (CONFIG_FILE, REQUEST_FILE, ENVIRONMENT_FILE)]
    costs, failure = _costs(prepared, pages)
    failures = {**({} if failure is None else {STATIC: failure}), **records.failures}
    figures = join_run(pages, costs, device, request.model.dtype)
    joined = _joined(request, run_folder, prepared, pages[0], figures, device, failures)
    advice = _advice(prepared, pages[0], joined, device, failures)
    files += prepared.files
    files += [run_folder.path / OPERATORS, run_folder.path / CHROME_TRACE] if records.operators else []
    files += [run_folder.path / KERNELS] if records.kernels else []
    names = ("report.md", "report.html", METRICS_FILE)
    answer = ProfileAnswer(
        model=request.model.name,
        dtype=request.model.dtype,
        device=device,
        figures=figures,
        costs=tuple(costs),
        pages=tuple(pages),
        operators=records.operators,
        kernels=records.kernels,
        notes=(*model.notes, *_holes(costs)),
        folder=run_folder.path,
        files=(*files, *(run_folder.path / name for name in names)),
        resumed_pages=resumed_pages,
        failures=failures,
        joined=joined,
        advice=advice,
        _chapters=() if prepared.static is None else (prepared.static.report(),),
    )
    report = answer.report()
    run_folder.write_text("report.md", REPORTERS.get("markdown")().render(report))
    run_folder.write_text("report.html", REPORTERS.get("html")().render(report))
    run_folder.write_json(METRICS_FILE, _metrics(request, answer))
    return answer


def _joined(
    request: ProfileRequest,
    run_folder: RunFolder,
    prepared: Prepared,
    page: PageMeasurement,
    figures: RunFigures,
    device: Device | None,
    failures: dict[str, str],
) -> JoinedRun | None:
    """The profile of the first page on its trace; why not goes to `failures`."""
    if not request.profiler.join or prepared.traces is None or PROFILER in failures:
        return None
    on_host = request.device.torch == "cpu"
    try:
        recording = read_recording(run_folder.path / CHROME_TRACE, of_host=on_host)
        require_recorded_on(device, recording.device_name, on_host=on_host)
        return join_profiled(prepared.traces.of(page).graphs, recording, figures, device, on_host=on_host)
    except PerfOptError as error:
        failures[JOIN] = failure_text(error)
        return None


def _advice(
    prepared: Prepared, page: PageMeasurement, joined: JoinedRun | None, device: Device | None, failures: dict[str, str]
) -> AdviceAnswer | None:
    """What to change first, from the measured time of the prompt and of a decode step; why not goes to `failures`."""
    if joined is None or prepared.traces is None or device is None or not joined.measured:
        return None
    try:
        return advice_answer(prepared.traces.of(page), device, output=page.decode_steps + 1, measured=joined.measured)
    except PerfOptError as error:
        failures[ADVICE] = failure_text(error)
        return None


def _costs(prepared: Prepared, pages: Sequence[PageMeasurement]) -> tuple[list[WorkloadCosts | None], str | None]:
    """One entry per page, and why there are none where the static analysis failed."""
    unknown: list[WorkloadCosts | None] = [None] * len(pages)
    if prepared.traces is None:
        return unknown, prepared.failure
    try:
        return prepared.traces.costs(pages), None
    except PerfOptError as error:
        return unknown, failure_text(error)


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
        notes=(*answer.notes, *answer.failure_lines),
    )


def _holes(costs: Sequence[WorkloadCosts | None]) -> list[str]:
    unpriced = sum(work.unpriced_ops for cost in costs if cost is not None for work in cost.works.values())
    return [f"{unpriced:,} ops have no price, so FLOPs and MFU leave them out"] if unpriced else []


def profile(
    model: str | Path | torch.nn.Module,  # a registered name, a local Hugging Face folder, or a module
    args: Sequence[Any] = (),  # of a module
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: str = "random",  # or "stored": those in the folder, or in `checkpoint`
    checkpoint: str | Path | None = None,  # the released folder of a registered model
    trust_remote_code: bool = False,  # whether the Python code in a model folder may run
    torch_device: str = "cpu",  # where it runs: "cpu" or "cuda"
    device: str | None = None,  # MFU and MBU refer to its peaks; an id or name; default: what the machine reports
    devices_file: str | Path | None = None,
    max_new_tokens: int = 8,  # the first of them comes from the prefill
    prompt: str | None = None,  # in words, which needs a tokenizer
    stop_at_eos: bool = False,
    sample: int | None = None,  # of many pages (`image` is a folder or a list) take this many
    seed: int = 0,
    warmup: int = 1,
    repeats: int = 3,
    clock: str = "auto",  # "host", "synchronise" or "events"
    threads: int | None = None,
    operators: bool = True,  # one more pass under torch's profiler
    modules: bool = False,  # with a range for every module
    with_stack: bool = False,  # with the source line of every operator
    with_modules: bool = False,  # with the module of every operator
    profile_memory: bool = False,  # with the bytes that every operator allocates
    nsight: str = "none",  # and one under "nsys" or "ncu", or each of them that is "installed"
    nsight_stage: str = "decode",
    join: bool = False,  # lay the operators on the traced ops, next to what is predicted of them
    static: bool | Mapping[str, Any] = True,  # trace the pages; or `sources` and sizes of the static report
    check_memory: bool = True,  # refuse a run that the machine has no memory for
    out: str | Path | None = None,  # a folder for the artifacts; default: nothing is kept
    force: bool = False,
    progress: Progress | None = None,
    **workload: Any,
) -> ProfileAnswer:
    """Run a model for real and time every stage. A module that is passed in keeps its weights.

    `workload` is what the model is run with: `image`, `prompt_tokens`, `batch`, `dtype`, `attention`, and the model's
    own options. Every parameter is also a key of the command: see `docs/reference/cli/profile.md`.
    """
    choice, profiled = _opened(model, args, kwargs, torch_device, weights, checkpoint, workload, trust_remote_code)
    pages = {"max_new_tokens": max_new_tokens, "prompt": prompt, "stop_at_eos": stop_at_eos}
    run = RunChoice(folder=".", warmup=warmup, repeats=repeats, clock=clock, threads=threads)
    profiler = ProfilerChoice(enabled=operators, modules=modules, nsight=nsight, nsight_stage=nsight_stage, join=join)
    request = ProfileRequest(
        model=choice,
        workload=_workload_choice(workload, **pages, sample=sample, seed=seed),
        device=DeviceChoice(
            torch=torch_device, name=device, devices=None if devices_file is None else str(devices_file)
        ),
        run=replace(run, check_memory=check_memory),
        static_analysis=_static_choice(static),
        profiler=replace(profiler, with_stack=with_stack, with_modules=with_modules, profile_memory=profile_memory),
    )
    with _folder(out) as folder:
        answer = run_profile(request, profiled, folder, _config_text(request), force=force, progress=progress)
    return answer if out is not None else replace(answer, folder=None, files=())


def _opened(
    model: str | Path | torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    torch_device: str,
    weights: str,
    checkpoint: str | Path | None,
    workload: Mapping[str, Any],
    trust_remote_code: bool,
) -> tuple[ModelChoice, ProfiledModel]:
    adapter = module_adapter(model, args, kwargs)
    if adapter is not None and not isinstance(model, (str, Path)):
        if workload:
            raise UsageError(
                f"A module takes no {', '.join(workload)}.",
                why="its workload is its arguments",
                fix="pass it in args or kwargs",
            )
        choice = ModelChoice(name=adapter.title, weights="stored", dtype=_dtype_of(model))
        return choice, ProfiledModel(adapter=adapter, real=adapter, weights="random", has_workload=False)
    choice = ModelChoice(
        name=str(model),
        folder=None if checkpoint is None else str(checkpoint),
        weights=weights,
        dtype=workload.get("dtype", ModelChoice().dtype),
        attention=workload.get("attention"),
        trust_remote_code=trust_remote_code,
    )
    return choice, open_model(choice, torch_device)


def _dtype_of(module: torch.nn.Module) -> str:
    """The type of the first weight that holds numbers with a fraction; the peak of the device is taken for it."""
    dtypes = (str(weight.dtype).removeprefix("torch.") for weight in module.parameters() if weight.is_floating_point())
    return next(dtypes, "float32")


def _workload_choice(workload: Mapping[str, Any], **paging: Any) -> PageChoice:
    """The record of the configuration, in which a grid is written as `2x3`."""
    for name in workload:
        if name not in (*WORKLOAD_OPTIONS, "image", "dtype", "attention"):
            fix = "use max_new_tokens, one more" if name == "decode_steps" else "leave it out"
            raise UsageError(
                f"profile takes no {name}.",
                why=f"it takes: image, dtype, attention, {', '.join(WORKLOAD_OPTIONS)}",
                fix=fix,
            )
    given = {name: value for name, value in workload.items() if name not in ("dtype", "attention")}
    return WorkloadChoice(**_written(given), **paging)


def _static_choice(static: bool | Mapping[str, Any]) -> StaticSwitch:
    if isinstance(static, bool):
        return StaticChoice(enabled=static)
    return StaticChoice(**_written(static))


def _written(given: Mapping[str, Any]) -> dict[str, Any]:
    """As a configuration file writes it: a grid as `2x3`, a list of sources as `counted+fvcore`."""
    if "sources" in given and not isinstance(given["sources"], str):
        given = {**given, "sources": "+".join(given["sources"])}
    return {name: "x".join(map(str, value)) if isinstance(value, tuple) else value for name, value in given.items()}


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with scratch_folder() as scratch:
        yield scratch


def _config_text(request: ProfileRequest) -> str:
    """The request as YAML, in which values are written as in JSON."""
    groups = asdict(request)
    lines = [
        f"{group}:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in groups[group].items())
        for group in groups
    ]
    return "".join(lines)
