"""A study: a declared grid computed by processes or by Ray into Parquet; a killed one goes on where it stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Protocol

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.tracing import trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table, counted
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.sweeps.studies.one_writer import one_writer
from llm_perf_opt.sweeps.studies.parquet_store import StudyStore, require_packages
from llm_perf_opt.sweeps.studies.study import Study, read_study
from llm_perf_opt.sweeps.studies.study_run import ENGINES, LOCAL, RAY, StudyRun, installed_versions, named_folders
from llm_perf_opt.sweeps.studies.tasks import points_of, study_tasks
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import refuse_rates

log = logging.getLogger(__name__)

_SHOWN = 5  # damaged files that are named in the report
TASK_MEMORY_BYTES = 2 * 2**30  # a trace of a large model takes less


class StudyProgress(Protocol):
    """Receives how far a study is."""

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
    reused: int  # rows of an earlier run with the same inputs
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
            Column("reused", Kind.COUNT): self.reused,
            Column("failed now", Kind.COUNT): self.failed,
            Column("time", Kind.SECONDS): self.seconds,
        }
        notes = []
        if self.failed:
            notes.append(Note(f'{self.failed:,} points failed: llm-perf-opt ask "failures" says why.', Level.WARNING))
        notes += [Note(f"Computed again: {line}", Level.WARNING) for line in self.damaged[:_SHOWN]]
        if len(self.damaged) > _SHOWN:
            notes.append(Note(f"{len(self.damaged):,} damaged files were computed again in all.", Level.WARNING))
        if self.other_files:
            files = counted(self.other_files, "file")
            notes.append(Note(f"llm-perf-opt ask skips {files}, from another version of the study or damaged."))
        answer = (
            f"Study {self.name}: {counted(self.points, 'point')}, {format_count(self.computed)} computed, "
            f"{format_count(self.reused)} reused, {format_count(self.failed)} failed, in "
            f"{format_seconds(self.seconds)}.",
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
    """Compute every point of a study file into Parquet below `out`; points that are there already are reused.

    - `overrides`: `KEY=VALUE` in place of what the file says, such as `workload.users=1,8`.
    - `out`: a folder, or any address that fsspec knows, such as `s3://bucket/results`.
    - `engine`: `local`, processes of this machine; or `ray`, with `address` of a cluster (`auto`), extra `ray`.
    - `workers`: processes, of `local` and of a Ray of this machine. Default: as cores and memory allow.
    - `task_memory_gib`: memory that one task may take, which limits how many run at once. Default: 2.
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
    run = StudyRun(store=store, declared=declared, tasks=tasks, retry_failed=retry_failed)
    memory = round((task_memory_gib or TASK_MEMORY_BYTES / 2**30) * 2**30)
    with one_writer(store, declared.name, run.identity) as lease:
        pending = run.pending()
        run.write_manifest(lease)
        total = points_of(tasks)
        if progress is not None:
            progress.begin(total, total - points_of([left.task for left in pending]))
        for left, result in run.results(pending, engine, address=address, workers=workers, task_memory_bytes=memory):
            outcome = run.settle(left.task, result)
            if progress is not None:
                progress.advance(outcome.points, outcome.failed)
        run.write_manifest(lease)
        store.clear_left_behind(declared.name)
    computed = sum(outcome.points - outcome.kept for outcome in run.outcomes)
    return StudyAnswer(
        name=declared.name,
        folder=store.root,
        points=total,
        computed=computed,
        reused=total - computed,
        failed=sum(outcome.failed for outcome in run.outcomes),
        damaged=tuple(run.damaged),
        other_files=run.other_files(),
        tasks=len(pending),
        seconds=time.perf_counter() - started,
    )


def _refuse(declared: Study, engine: str, address: str | None) -> None:
    """What cannot be, before any work."""
    require_packages()
    if engine not in ENGINES:
        raise UsageError(
            f"{engine!r} is not an engine of a study.", why=f"there are {', '.join(ENGINES)}", fix="pick one"
        )
    if engine == RAY:
        from llm_perf_opt.sweeps.studies.ray_engine import require_ray

        require_ray()
    elif address is not None:
        raise UsageError("--address is for Ray.", why="local processes have no address", fix="add --engine ray")
    if declared.execution not in tuple(Execution):
        raise UsageError(
            f"{declared.execution!r} is not an execution.", why=f"there are {', '.join(Execution)}", fix="pick one"
        )
    refuse_rates(declared.execution, declared.rates, None)
    _refuse_fields(declared)


def _refuse_fields(declared: Study) -> None:
    """A workload says what a model runs, not what `trace` may do: no code to trust, no file to write, no tracer."""
    own = set(signature(trace).parameters) - {"routing", "workload"}
    for fields in (*declared.workloads, *(model.workload for model in declared.models)):
        for name in own.intersection(fields):
            raise UsageError(
                f"{name!r} is not a field of a workload.",
                why="it is an option of the person who runs the study, and not part of a study file",
                fix="leave it out" if name != "trust_remote_code" else "leave it out, and add --trust-remote-code",
            )
