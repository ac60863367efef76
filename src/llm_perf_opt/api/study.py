"""A study: a declared grid computed by processes or by Ray into Parquet; a killed one goes on where it stopped."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Protocol

from llm_perf_opt import __version__
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.study_task import TaskOutcome, reason_of, run_task, write_failure
from llm_perf_opt.api.tracing import trace
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table, counted
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.models.huggingface.names import find_model
from llm_perf_opt.serving.vllm.environment import find
from llm_perf_opt.sweeps.studies.one_writer import Lease, new_run, one_writer, run_local
from llm_perf_opt.sweeps.studies.parquet_store import StudyManifest, StudyPart, StudyStore, require_packages
from llm_perf_opt.sweeps.studies.study import Study, read_study
from llm_perf_opt.sweeps.studies.tasks import StudyTask, points_of, study_tasks
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import refuse_rates

log = logging.getLogger(__name__)

LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)
_SHOWN = 5  # damaged files that are named in the report
TASK_MEMORY_BYTES = 2 * 2**30  # a trace of a large model takes less


class StudyProgress(Protocol):
    """Who is told how far a study is."""

    def begin(self, points: int, done: int) -> None:
        """How many points there are, and how many an earlier run has finished."""

    def advance(self, points: int, failed: int) -> None:
        """A task is finished."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyAnswer(Answer):
    """What a run of a study did; the points themselves are in `folder`, which `lpo.ask` answers from."""

    name: str
    folder: str
    points: int
    computed: int
    kept: int  # rows of an earlier run with the same inputs
    failed: int
    damaged: tuple[str, ...]  # files that were not what was written, and why; their points were computed again
    other_files: int  # parts that are not of the study as it is declared now; nobody removes them
    tasks: int
    seconds: float

    def report(self) -> Report:
        """One line of figures, and where to look next."""
        cells = {
            Column("points", Kind.COUNT): self.points,
            Column("computed", Kind.COUNT): self.computed,
            Column("kept", Kind.COUNT): self.kept,
            Column("failed now", Kind.COUNT): self.failed,
            Column("time", Kind.SECONDS): self.seconds,
        }
        notes = []
        if self.failed:
            notes.append(Note(f'{self.failed:,} points failed: ask "failures" says why.', Level.WARNING))
        notes += [Note(f"Computed again: {line}", Level.WARNING) for line in self.damaged[:_SHOWN]]
        if len(self.damaged) > _SHOWN:
            notes.append(Note(f"{len(self.damaged):,} damaged files were computed again in all.", Level.WARNING))
        if self.other_files:
            files = counted(self.other_files, "file")
            notes.append(Note(f"ask leaves out {files}: of another declaration of the study, or damaged."))
        answer = (
            f"Study {self.name}: {counted(self.points, 'point')}, {format_count(self.computed)} computed, "
            f"{format_count(self.kept)} kept, {format_count(self.failed)} failed, in {format_seconds(self.seconds)}.",
        )
        return Report(
            title=f"Study {self.name}",
            answer=answer,
            tables=(Table(title="What was computed", columns=tuple(cells), rows=(tuple(cells.values()),)),),
            notes=tuple(notes),
        )


def study(
    file: str | Path | Study,
    overrides: Sequence[str] = (),
    *,
    out: str | Path,
    engine: str = LOCAL,
    address: str | None = None,
    workers: int | None = None,
    task_memory_gib: float | None = None,
    retry_failed: bool = False,
    trust_remote_code: bool = False,
    progress: StudyProgress | None = None,
) -> StudyAnswer:
    """Compute every point of a study file into Parquet below `out`; what is there already is kept.

    - `overrides`: `KEY=VALUE` in place of what the file says, such as `workload.global_batch=1,8`.
    - `out`: a folder, or any address that fsspec knows, such as `s3://bucket/results`.
    - `engine`: `local`, processes of this machine; or `ray`, with `address` of a cluster (`auto`), extra `ray`.
    - `workers`: processes, of `local` and of a Ray of this machine. Default: as cores and memory allow.
    - `task_memory_gib`: what one task may take, so that not too many run at once. Default: 2.
    - `retry_failed`: compute points again that failed. Default: a failure is a result.
    - `trust_remote_code`: run the Python code of model folders; a study file can only ask for it.
    """
    started = time.perf_counter()
    if isinstance(file, Study):
        declared = replace(file, trust_remote_code=trust_remote_code or file.trust_remote_code)
    else:
        declared = read_study(Path(file), overrides, trust_remote_code=trust_remote_code)
    _refuse(declared, engine, address)
    store = StudyStore(str(out))
    versions = installed_versions(is_replayed=bool(declared.traffics))
    tasks = study_tasks(declared, versions, named_folders(declared))
    run = _Run(store=store, declared=declared, tasks=tasks, retry_failed=retry_failed)
    memory = round((task_memory_gib or TASK_MEMORY_BYTES / 2**30) * 2**30)
    with one_writer(store, declared.name, run.identity) as lease:
        pending = run.pending()
        run.write_manifest(lease)
        if progress is not None:
            progress.begin(points_of(tasks), points_of(tasks) - points_of([one.task for one in pending]))
        work = partial(_run_pending, root=str(out), run=run.identity, retry_failed=retry_failed)
        for one, result in _outcomes(engine, work, pending, address, workers, memory):
            outcome = run.settle(one.task, result)
            if progress is not None:
                progress.advance(outcome.points, outcome.failed)
        run.write_manifest(lease)
        store.clear_left_behind(declared.name)
    return run.answer(pending, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task without a file, and files of the same task with other inputs: rows of theirs may still hold."""

    task: StudyTask
    earlier: tuple[str, ...]


def _run_pending(one: PendingTask, *, root: str, run: str, retry_failed: bool) -> TaskOutcome:
    return run_task(one.task, root, one.earlier, run=run, retry_failed=retry_failed)


def _outcomes(
    engine: str,
    work: partial[TaskOutcome],
    pending: Sequence[PendingTask],
    address: str | None,
    workers: int | None,
    memory_bytes: int,
) -> Iterator[tuple[PendingTask, TaskOutcome | BaseException]]:
    if not pending:
        return iter(())
    if engine == LOCAL:
        return run_local(work, pending, workers=workers, task_memory_bytes=memory_bytes)
    from llm_perf_opt.sweeps.studies.ray_engine import run_on_ray

    return run_on_ray(work, pending, address=address, workers=workers, task_memory_bytes=memory_bytes)


@dataclass(slots=True)
class _Run:
    """What one run of a study has found so far."""

    store: StudyStore
    declared: Study
    tasks: Sequence[StudyTask]
    retry_failed: bool
    identity: str = field(default_factory=new_run)
    outcomes: list[TaskOutcome] = field(default_factory=list)
    parts: dict[str, StudyPart] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def pending(self) -> list[PendingTask]:
        """Tasks without a part that is whole, or with failures that are to be tried again."""
        found = self.store.parts(self.declared.name)
        by_key: dict[str, list[str]] = {}
        for stem, paths in found.items():
            by_key.setdefault(stem.split("-")[1], []).extend(paths)
        pending = []
        for task in self.tasks:
            part = self._whole_part(found.get(task.file_stem, ()), task.points)
            if part is not None:
                self.parts[task.file_stem] = part
            if part is None or (self.retry_failed and part.has_failures):
                earlier = [path for path in by_key.get(task.key, ()) if self._is_whole(path)]
                pending.append(PendingTask(task, tuple(earlier)))
        return pending

    def _whole_part(self, paths: Sequence[str], points: int) -> StudyPart | None:
        """The first that is what was written; what is wrong with the others is told where there is none."""
        wrong = []
        for path in paths:
            try:
                part = self.store.checked(path)
            except PerfOptError as error:
                wrong.append(f"{path}: {error.why}")
                continue
            if self.store.is_current(part, points):
                return part
            wrong.append(f"{path}: it has {part.rows:,} rows of {points:,}, or other columns")
        for line in wrong:
            log.warning("Computed again: %s", line)
        self.damaged += wrong
        return None

    def _is_whole(self, path: str) -> bool:
        try:
            self.store.checked(path)
        except PerfOptError:
            return False
        return True

    def write_manifest(self, lease: Lease | None) -> None:
        """What the study is made of now; not where another run has taken it over."""
        if lease is not None:
            lease.require()
        stems = [task.file_stem for task in self.tasks]  # in their order: parts come as workers finish them
        self.store.write_manifest(
            StudyManifest(
                study=self.declared.name,
                run=self.identity,
                tool_version=__version__,
                points=points_of(self.tasks),
                stems=stems,
                parts={stem: self.parts[stem] for stem in stems if stem in self.parts},
            )
        )

    def settle(self, task: StudyTask, result: TaskOutcome | BaseException) -> TaskOutcome:
        """A task that did not come back leaves rows with the reason."""
        if isinstance(result, BaseException):
            why = reason_of(result) if isinstance(result, PerfOptError) else f"{type(result).__name__}: {result}"
            result = write_failure(task, self.store.root, " ".join(why.split())[:500], self.identity)
            log.warning("%s, %s: %s", task.model.name, task.plan.describe(), why)
        self.outcomes.append(result)
        self.parts[task.file_stem] = result.part
        return result

    def answer(self, pending: Sequence[PendingTask], seconds: float) -> StudyAnswer:
        """The figures of the run."""
        computed = sum(one.points - one.kept for one in self.outcomes)
        total = points_of(self.tasks)
        listed = {part.file.rpartition("/")[2] for part in self.parts.values()}
        there = [path.rpartition("/")[2] for path in self.store.part_paths(self.declared.name)]
        return StudyAnswer(
            name=self.declared.name,
            folder=self.store.root,
            points=total,
            computed=computed,
            kept=total - computed,
            failed=sum(one.failed for one in self.outcomes),
            damaged=tuple(self.damaged),
            other_files=sum(name not in listed for name in there),
            tasks=len(pending),
            seconds=seconds,
        )


def _refuse(declared: Study, engine: str, address: str | None) -> None:
    """What cannot be, before any work."""
    require_packages()
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is no engine of a study.", why=f"there are {', '.join(ENGINES)}", fix="pick one")
    if engine == RAY:
        from llm_perf_opt.sweeps.studies.ray_engine import require_ray

        require_ray()
    elif address is not None:
        raise UsageError("--address is for Ray.", why="local processes have none", fix="add --engine ray")
    if declared.execution not in tuple(Execution):
        raise UsageError(
            f"{declared.execution!r} is no execution.", why=f"there are {', '.join(Execution)}", fix="pick one"
        )
    refuse_rates(declared.execution, declared.rates, None)
    _refuse_fields(declared)


def _refuse_fields(declared: Study) -> None:
    """A workload says what a model runs, not what `trace` may do: no code to trust, no file to write, no tracer."""
    own = set(signature(trace).parameters) - {"routing", "workload"}
    for fields in (*declared.workloads, *(model.workload for model in declared.models)):
        for name in own.intersection(fields):
            raise UsageError(
                f"{name!r} is no field of a workload.",
                why="it is an option of whoever runs the study, and a study file has none",
                fix="leave it out" if name != "trust_remote_code" else "leave it out, and add --trust-remote-code",
            )


def named_folders(declared: Study) -> dict[str, Path]:
    """Where the configuration of each model lies that is given by its name; a wrong name fails in its own tasks.

    Found here once, so that a model of the Hub is fetched before the processes begin.
    """
    found: dict[str, Path] = {}
    for source in sorted({model.source for model in declared.models}):
        if not os.path.exists(source):  # noqa: PTH110  Path.exists raises for a name that is too long
            with suppress(PerfOptError):
                named = find_model(source, declared.trust_remote_code)
                found |= {} if named.folder is None else {source: named.folder}
    return found


def installed_versions(*, is_replayed: bool = False) -> dict[str, str | None]:
    """What figures rest on besides their inputs; None: not installed. A replay rests on vLLM too."""
    return {
        "tool_version": __version__,
        "torch_version": _version("torch"),
        "transformers_version": _version("transformers"),
        **({"engine_version": _engine_version()} if is_replayed else {}),
    }


def _engine_version() -> str | None:
    try:
        return find().version
    except PerfOptError:
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
