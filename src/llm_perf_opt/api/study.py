"""A study: a declared grid computed by processes or by Ray into Parquet; a killed one goes on where it stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Protocol

from llm_perf_opt import __version__
from llm_perf_opt.analyses.first_lines import counted
from llm_perf_opt.analyses.studies.tasks import StudyTask, points_of, study_tasks
from llm_perf_opt.analyses.time.datasheet_rates import Execution
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.prediction import refuse_rates
from llm_perf_opt.api.study_task import TaskOutcome, reason_of, run_task, write_failure
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table
from llm_perf_opt.core.study import Study
from llm_perf_opt.core.study_file import read_study
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.engines.vllm.environment import find
from llm_perf_opt.labs.study.local_engine import run_local
from llm_perf_opt.labs.study.parquet_store import StudyStore, has_failures, require_packages
from llm_perf_opt.models.huggingface.names.resolve import find_model

log = logging.getLogger(__name__)

LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)
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
    removed_files: int  # of an earlier declaration of the study
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
        if self.removed_files:
            notes.append(Note(f"{self.removed_files:,} files of an earlier declaration were removed."))
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
    progress: StudyProgress | None = None,
) -> StudyAnswer:
    """Compute every point of a study file into Parquet below `out`; what is there already is kept.

    - `overrides`: `KEY=VALUE` in place of what the file says, such as `workload.batch=1,8`.
    - `out`: a folder, or any address that fsspec knows, such as `s3://bucket/results`.
    - `engine`: `local`, processes of this machine; or `ray`, with `address` of a cluster (`auto`), extra `ray`.
    - `workers`: processes, of `local` and of a Ray of this machine. Default: as cores and memory allow.
    - `task_memory_gib`: what one task may take, so that not too many run at once. Default: 2.
    - `retry_failed`: compute points again that failed. Default: a failure is a result.
    """
    started = time.perf_counter()
    declared = file if isinstance(file, Study) else read_study(Path(file), overrides)
    _refuse(declared, engine, address)
    store = StudyStore(str(out))
    versions = installed_versions(is_replayed=bool(declared.traffics))
    tasks = study_tasks(declared, versions, named_folders(declared))
    stems = [task.file_stem for task in tasks]
    run = _Run(store=store, declared=declared, retry_failed=retry_failed)
    pending = run.pending(tasks)
    store.write_manifest(declared.name, {"files": stems, "points": points_of(tasks), "tool_version": __version__})
    if progress is not None:
        progress.begin(points_of(tasks), points_of(tasks) - points_of([one.task for one in pending]))
    memory = round((task_memory_gib or TASK_MEMORY_BYTES / 2**30) * 2**30)
    work = partial(_run_pending, root=str(out), retry_failed=retry_failed)
    finished = _outcomes(engine, work, pending, address, workers, memory)
    for one, result in finished:
        outcome = run.settle(one.task, result)
        if progress is not None:
            progress.advance(outcome.points, outcome.failed)
    removed = store.remove_others(declared.name, stems)
    return run.answer(tasks, pending, removed, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task without a file, and files of the same task with other inputs: rows of theirs may still hold."""

    task: StudyTask
    earlier: tuple[str, ...]


def _run_pending(one: PendingTask, *, root: str, retry_failed: bool) -> TaskOutcome:
    return run_task(one.task, root, one.earlier, retry_failed=retry_failed)


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
    from llm_perf_opt.labs.study.ray_engine import run_on_ray

    return run_on_ray(work, pending, address=address, workers=workers, task_memory_bytes=memory_bytes)


@dataclass(slots=True)
class _Run:
    """What one run of a study has found so far."""

    store: StudyStore
    declared: Study
    retry_failed: bool
    outcomes: list[TaskOutcome] = field(default_factory=list)

    def pending(self, tasks: Sequence[StudyTask]) -> list[PendingTask]:
        """Tasks whose file is not there, or holds failures that are to be tried again."""
        files = self.store.files(self.declared.name)
        by_key: dict[str, list[str]] = {}
        for stem, path in files.items():
            by_key.setdefault(stem.split("-")[1], []).append(path)
        return [
            PendingTask(task, tuple(by_key.get(task.key, ())))
            for task in tasks
            if task.file_stem not in files or (self.retry_failed and has_failures(files[task.file_stem]))
        ]

    def settle(self, task: StudyTask, result: TaskOutcome | BaseException) -> TaskOutcome:
        """A task that did not come back leaves rows with the reason."""
        if isinstance(result, BaseException):
            why = reason_of(result) if isinstance(result, PerfOptError) else f"{type(result).__name__}: {result}"
            result = write_failure(task, self.store.root, " ".join(why.split())[:500])
            log.warning("%s, %s: %s", task.model.name, task.plan.describe(), why)
        self.outcomes.append(result)
        return result

    def answer(
        self, tasks: Sequence[StudyTask], pending: Sequence[PendingTask], removed: int, seconds: float
    ) -> StudyAnswer:
        """The figures of the run."""
        computed = sum(one.points - one.kept for one in self.outcomes)
        total = points_of(tasks)
        return StudyAnswer(
            name=self.declared.name,
            folder=self.store.root,
            points=total,
            computed=computed,
            kept=total - computed,
            failed=sum(one.failed for one in self.outcomes),
            removed_files=removed,
            tasks=len(pending),
            seconds=seconds,
        )


def _refuse(declared: Study, engine: str, address: str | None) -> None:
    """What cannot be, before any work."""
    require_packages()
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is no engine of a study.", why=f"there are {', '.join(ENGINES)}", fix="pick one")
    if engine == RAY:
        from llm_perf_opt.labs.study.ray_engine import require_ray

        require_ray()
    elif address is not None:
        raise UsageError("--address is for Ray.", why="local processes have none", fix="add --engine ray")
    if declared.execution not in tuple(Execution):
        raise UsageError(
            f"{declared.execution!r} is no execution.", why=f"there are {', '.join(Execution)}", fix="pick one"
        )
    refuse_rates(declared.execution, declared.rates, None)


def named_folders(declared: Study) -> dict[str, Path]:
    """Where the configuration of each model lies that is given by its name; a wrong name fails in its own tasks.

    Found here once, so that a model of the Hub is fetched before the processes begin.
    """
    found: dict[str, Path] = {}
    for source in sorted({model.source for model in declared.models}):
        if not Path(source).exists():
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
