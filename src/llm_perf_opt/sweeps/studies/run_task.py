"""One task of a study, as a process or a Ray task runs it: trace, evaluate or replay, and write one Parquet file.

A point that cannot be answered is a row with the reason. Rows that an earlier run left for the same inputs are kept.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.sweeps.run_function import RunFunction
from llm_perf_opt.sweeps.studies.figures import Figures, PointBlock, Priced, function_blocks, whole_run
from llm_perf_opt.sweeps.studies.parquet_store import StudyPart, StudyStore, rows_table, table_of
from llm_perf_opt.sweeps.studies.replayed_points import replays_of
from llm_perf_opt.sweeps.studies.study_columns import FAILED, KEY, OK, SCHEMA_VERSION
from llm_perf_opt.sweeps.studies.tasks import (
    CHECKPOINT,
    FILE,
    REPLAY,
    TRACE,
    PointDeployment,
    StudyTask,
    workload_text,
)
from llm_perf_opt.sweeps.studies.traced_points import TracedPoint, TracedPoints, served_batches
from llm_perf_opt.timing.rate_sources import find_machine, source_of
from llm_perf_opt.tracing.traced_run import TracedRun

MOST_TRACED = 16  # points outside all cells of a function, each traced by itself
_OUTSIDE = "it is outside the cells that are proven for the function"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What a finished task tells the driver; its rows are in the store."""

    stem: str
    part: StudyPart
    points: int
    failed: int
    kept: int  # of the points: rows of an earlier run
    seconds: float


def run_task(
    task: StudyTask, root: str, earlier: Sequence[str] = (), *, run: str, retry_failed: bool = False
) -> TaskOutcome:
    """Compute the points of a task and write them; `earlier` are files that may hold some of them already."""
    started = time.perf_counter()
    store = StudyStore(root)
    is_by_row = task.way in (TRACE, REPLAY)
    earlier_rows = _kept_rows(task, store, earlier, retry_failed=retry_failed) if is_by_row else []
    with contextlib.redirect_stdout(sys.stderr):  # some models print from their forward
        tables = _tables_of_rows(task, earlier_rows) if is_by_row else _function_tables(task)
        part, failed = store.write(task.study, task.model.name, task.file_stem, tables, run)
    return TaskOutcome(
        stem=task.file_stem,
        part=part,
        points=task.points,
        failed=failed,
        kept=len(earlier_rows),
        seconds=time.perf_counter() - started,
    )


def write_failure(task: StudyTask, root: str, reason: str, run: str) -> TaskOutcome:
    """The rows of a task when its process died or raised what nobody expected."""
    tables = [_failed_table(task, deployment, list(task.pairs()), reason) for deployment in task.deployments]
    part, failed = StudyStore(root).write(task.study, task.model.name, task.file_stem, tables, run)
    return TaskOutcome(stem=task.file_stem, part=part, points=task.points, failed=failed, kept=0, seconds=0.0)


def _kept_rows(
    task: StudyTask, store: StudyStore, earlier: Sequence[str], *, retry_failed: bool
) -> list[dict[str, Any]]:
    hashes = {deployment.inputs_hash for deployment in task.deployments}
    wanted = {(digest, *pair) for digest in hashes for pair in task.pairs()}
    row_of_key = {tuple(row[name] for name in KEY): row for row in store.read(earlier)}
    return [row for key, row in row_of_key.items() if key in wanted and not (retry_failed and row["status"] == FAILED)]


def _tables_of_rows(task: StudyTask, earlier_rows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """One table: the rows of an earlier run, and those that it has not."""
    done = {tuple(row[name] for name in KEY) for row in earlier_rows}
    rows = _replayed_rows(task, done) if task.way == REPLAY else _traced_rows(task, done)
    yield rows_table([*earlier_rows, *rows])


def _traced_rows(task: StudyTask, done: Container[tuple[Any, ...]]) -> Iterator[Mapping[str, Any]]:
    """Every pair is traced once for all deployments that need it."""
    points = TracedPoints(task)
    for batch, context in task.pairs():
        assert batch is not None, "only traffic leaves it open"
        for deployment in sorted(task.deployments, key=lambda candidate: candidate.replicas):
            if (deployment.inputs_hash, batch, context) not in done:
                yield _traced_row(task, deployment, points, batch, context)


def _replayed_rows(task: StudyTask, done: Container[tuple[Any, ...]]) -> Iterator[Mapping[str, Any]]:
    """Every deployment under its traffic, by one trace and the processes of one vLLM; a refusal is a row."""
    wanted = [deployment for deployment in task.deployments if (deployment.inputs_hash, None, None) not in done]
    for deployment, figures in replays_of(task, wanted):
        row = {**_identity(task, deployment), "origin": "replay"}
        if isinstance(figures, PerfOptError):
            yield {**row, "status": FAILED, "reason": reason_of(figures)}
        else:
            yield {**row, **_machine(deployment), **figures, "status": OK}


def _traced_row(
    task: StudyTask, deployment: PointDeployment, points: TracedPoints, batch: int, context: int | None
) -> dict[str, Any]:
    """One point from its trace; a refusal is a row with the reason."""
    row = {**_identity(task, deployment), "global_batch": batch, "context": context, "asked_context": context}
    try:
        point = points.at(deployment, batch, context)
    except PerfOptError as refusal:
        return {**row, "status": FAILED, "reason": reason_of(refusal)}
    row |= {"context": point.context, "image_tokens": point.image_tokens, "origin": "trace", "rates": point.rates}
    return {**row, **_machine(deployment), **_answers(task, deployment, point, batch), "status": OK}


def _answers(task: StudyTask, deployment: PointDeployment, point: TracedPoint, batch: int) -> Figures:
    run = whole_run(point.figures, batch, point.served_batch, _priced(task, deployment))
    return {**point.figures, **run}


def _priced(task: StudyTask, deployment: PointDeployment) -> Priced:
    return Priced(
        generated_tokens=task.generated_tokens,
        memory_bytes=deployment.cluster().device.memory_bytes,
        price_per_hour=deployment.price_per_hour,
    )


def _function_tables(task: StudyTask) -> Iterator[Any]:
    """Every deployment at all its pairs, this many at a time."""
    try:
        function = _function(task)
    except PerfOptError as refusal:
        for deployment in task.deployments:
            yield _failed_table(task, deployment, list(task.pairs()), reason_of(refusal))
        return
    for deployment in task.deployments:
        try:
            yield from _deployed_tables(task, function, deployment)
        except PerfOptError as refusal:  # before its first table: rates and devices are looked up first
            yield _failed_table(task, deployment, list(task.pairs()), reason_of(refusal))


def _function(task: StudyTask) -> RunFunction[TracedRun]:
    if task.way == FILE:
        if (
            task.plan.is_spread
            or task.workload
            or any(deployment.weights or deployment.cache for deployment in task.deployments)
        ):
            raise PerfOptError(
                "A saved function takes no plan, no format and no workload.",
                why="it was made with its own",
                fix="leave them out, or name the model itself",
            )
        if task.contexts is None:
            raise PerfOptError(
                "A saved function has no default context.", why="it is evaluated at contexts", fix="give context"
            )
        return _loaded(task.model.source)
    points = TracedPoints(task)
    return points.function(task.deployments[0])


@lru_cache(maxsize=2)
def _loaded(path: str) -> RunFunction[TracedRun]:
    """A process that evaluates many tasks of one function reads it once."""
    from llm_perf_opt.sweeps.function_files import read_run_function

    return read_run_function(path, TracedRun)


def _deployed_tables(task: StudyTask, function: RunFunction[TracedRun], deployment: PointDeployment) -> Iterator[Any]:
    from llm_perf_opt.sweeps.run_function import sizes_in_range

    assert task.contexts is not None, "a function is asked at contexts"
    cluster = deployment.cluster()
    machine = find_machine(cluster if cluster.count > 1 else cluster.device)
    rates = source_of(machine, task.execution, rates=task.rates, runs=[function.proven_graphs()])
    fixed = {**_identity(task, deployment), **_machine(deployment), "image_tokens": function.media_tokens}
    fixed |= {"status": OK, "origin": "function", "rates": rates.name}
    served = _Served(function, cluster, task)
    open_pairs: list[tuple[int, int | None]] = []
    with sizes_in_range():
        for block in function_blocks(
            function.phases, task.batches, task.contexts, deployment.replicas, task.generated_tokens, rates
        ):
            if not block.is_proven:
                open_pairs += zip(block.batch.tolist(), block.context.tolist(), strict=True)
                continue
            run = whole_run(block.figures, block.batch, served.at(block, deployment), _priced(task, deployment))
            places = {"global_batch": block.batch, "context": block.context, "asked_context": block.context}
            yield table_of({**fixed, **places, **block.figures, **run}, len(block.batch))
    if open_pairs:
        yield _open_table(task, deployment, open_pairs)


@dataclass(slots=True)
class _Served:
    """The largest batch that a serving engine holds, for every context of a function."""

    function: RunFunction[TracedRun]
    cluster: Cluster
    task: StudyTask
    _known: dict[int, int | None] | None = None

    def at(self, block: PointBlock, deployment: PointDeployment) -> Any:
        """A column, for all replicas together; None: not known."""
        if self._known is None:
            batch = int(block.batch[0]) // deployment.replicas
            graphs = self.function.at(batch=batch, context=int(block.context[0])).graphs
            assert self.task.contexts is not None, "a function is asked at contexts"
            ends = {context: context + self.task.generated_tokens for context in self.task.contexts}
            served = served_batches([graphs], self.cluster.device, sorted(set(ends.values())))
            self._known = {context: served[end] for context, end in ends.items()}
        if None in self._known.values():
            return None
        import numpy as np

        contexts = np.array(list(self._known))
        most = np.array([value or 0 for value in self._known.values()], dtype=np.int64)
        order = np.argsort(contexts)
        return most[order][np.searchsorted(contexts[order], block.context)] * deployment.replicas


def _open_table(task: StudyTask, deployment: PointDeployment, pairs: Sequence[tuple[int, int | None]]) -> Any:
    """Points that no cell proves: few of them are traced, many are told."""
    if task.way == FILE or len(pairs) > MOST_TRACED:
        return _failed_table(task, deployment, pairs, f"The function does not answer here: {_OUTSIDE}.")
    points = TracedPoints(task)
    return rows_table([_traced_row(task, deployment, points, batch, context) for batch, context in pairs])


def _failed_table(
    task: StudyTask, deployment: PointDeployment, pairs: Sequence[tuple[int | None, int | None]], reason: str
) -> Any:
    fixed = {**_identity(task, deployment), "status": FAILED, "reason": reason}
    batches, contexts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return table_of({**fixed, "global_batch": batches, "context": contexts, "asked_context": contexts}, len(pairs))


def _identity(task: StudyTask, deployment: PointDeployment) -> dict[str, Any]:
    return {
        "study": task.study,
        "model": task.model.name,
        "model_source": task.model.source,
        "workload": workload_text(task.workload),
        "plan": deployment.plan.describe(),
        "weights": deployment.weights or CHECKPOINT,
        "cache": deployment.cache or CHECKPOINT,
        "device": deployment.device,
        "device_count": deployment.plan.ranks,
        "execution": task.execution,
        "traffic": deployment.traffic,
        "generated_tokens": None if task.way == REPLAY else task.generated_tokens,
        "price_per_hour": deployment.price_per_hour,
        "currency": task.currency,
        "schema_version": SCHEMA_VERSION,
        "inputs_hash": deployment.inputs_hash,
        **task.versions,
    }


def _machine(deployment: PointDeployment) -> dict[str, Any]:
    watts = deployment.cluster().device.facts.get("tdp_w")
    return {"watts": None if not isinstance(watts, int | float) else float(watts) * deployment.plan.ranks}


def reason_of(error: PerfOptError) -> str:
    """What went wrong and why, in one line."""
    return " ".join(f"{error.what} {error.why}".split())[:500]
