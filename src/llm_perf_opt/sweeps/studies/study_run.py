"""One run of a study: what an earlier one left, what is still to be computed and where, and what came of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

from llm_perf_opt import __version__
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.models.huggingface.names import find_model
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.sweeps.studies.one_writer import Lease, new_run, run_local
from llm_perf_opt.sweeps.studies.parquet_store import StudyManifest, StudyPart, StudyStore
from llm_perf_opt.sweeps.studies.run_task import TaskOutcome, reason_of, run_task, write_failure
from llm_perf_opt.sweeps.studies.study import Study
from llm_perf_opt.sweeps.studies.tasks import StudyTask, points_of

log = logging.getLogger(__name__)

LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task without a file, and files of the same task with other inputs: rows of theirs may still hold."""

    task: StudyTask
    earlier: tuple[str, ...]


def _run_pending(pending: PendingTask, *, root: str, run: str, retry_failed: bool) -> TaskOutcome:
    return run_task(pending.task, root, pending.earlier, run=run, retry_failed=retry_failed)


@dataclass(slots=True)
class StudyRun:
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
        parts = self.store.parts(self.declared.name)
        by_key: dict[str, list[str]] = {}
        for stem, paths in parts.items():
            by_key.setdefault(stem.split("-")[1], []).extend(paths)
        pending = []
        for task in self.tasks:
            part = self._whole_part(parts.get(task.file_stem, ()), task.points)
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

    def results(
        self,
        pending: Sequence[PendingTask],
        engine: str,
        *,
        address: str | None,
        workers: int | None,
        task_memory_bytes: int,
    ) -> Iterator[tuple[PendingTask, TaskOutcome | BaseException]]:
        """Each task as it is finished, by processes of this machine or by Ray."""
        if not pending:
            return iter(())
        work = partial(_run_pending, root=self.store.root, run=self.identity, retry_failed=self.retry_failed)
        if engine == LOCAL:
            return run_local(work, pending, workers=workers, task_memory_bytes=task_memory_bytes)
        from llm_perf_opt.sweeps.studies.ray_engine import run_on_ray

        return run_on_ray(work, pending, address=address, workers=workers, task_memory_bytes=task_memory_bytes)

    def settle(self, task: StudyTask, result: TaskOutcome | BaseException) -> TaskOutcome:
        """A task that did not come back leaves rows with the reason."""
        if isinstance(result, BaseException):
            why = reason_of(result) if isinstance(result, PerfOptError) else f"{type(result).__name__}: {result}"
            result = write_failure(task, self.store.root, " ".join(why.split())[:500], self.identity)
            log.warning("%s, %s: %s", task.model.name, task.plan.describe(), why)
        self.outcomes.append(result)
        self.parts[task.file_stem] = result.part
        return result

    def other_files(self) -> int:
        """Parts that are not of the study as it is declared now."""
        listed = {part.file.rpartition("/")[2] for part in self.parts.values()}
        there = [path.rpartition("/")[2] for path in self.store.part_paths(self.declared.name)]
        return sum(name not in listed for name in there)


def named_folders(declared: Study) -> dict[str, Path]:
    """Where the configuration of each model lies that is given by its name; a wrong name fails in its own tasks.

    Found here once, so that a model of the Hub is fetched before the processes begin.
    """
    folders: dict[str, Path] = {}
    for source in sorted({model.source for model in declared.models}):
        if not os.path.exists(source):  # noqa: PTH110  Path.exists raises for a name that is too long
            with suppress(PerfOptError):
                named = find_model(source, declared.trust_remote_code)
                folders |= {} if named.folder is None else {source: named.folder}
    return folders


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
