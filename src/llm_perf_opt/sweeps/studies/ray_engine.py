"""Tasks on Ray: one machine or a cluster. Scheduling, retries and memory are Ray's; the only file that sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from llm_perf_opt.core.errors import PerfOptError

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 5  # of a task when its worker or node died; a task that raises is not tried again
_STORE_BYTES = 128 * 2**20  # rows go to the store of the study, not through Ray's


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise PerfOptError(
            "Ray is not installed.",
            why="--engine ray runs tasks on it",
            fix="pip install 'llm-perf-opt[ray]', or leave --engine out: processes of this machine need no Ray",
        ) from error
    return ray


def require_ray() -> None:
    """Refuse, before any work, where it is missing."""
    _ray()


def run_on_ray(
    work: Callable[[T], R], tasks: Sequence[T], *, address: str | None, workers: int | None, task_memory_bytes: int
) -> Iterator[tuple[T, R | BaseException]]:
    """Each task with its result or its error, as they finish; `address` None: a Ray of this machine alone."""
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address, workers)
    try:
        remote = ray.remote(
            num_cpus=1, memory=_memory(ray, task_memory_bytes), max_retries=RETRIES, retry_exceptions=False
        )(_as_function(work))
        of_reference = {remote.remote(task): task for task in tasks}
        pending = list(of_reference)
        while pending:
            ready, pending = ray.wait(pending, num_returns=1)
            for reference in ready:
                yield of_reference[reference], _result(ray, reference)
    finally:
        if own:
            ray.shutdown()


def _as_function(work: Callable[[T], R]) -> Callable[[T], R]:
    """Ray takes functions alone, not everything that can be called."""

    def study_task(task: T) -> R:
        return work(task)

    return study_task


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(address="local", num_cpus=workers, object_store_memory=_STORE_BYTES, **quiet)
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError) as error:
        raise PerfOptError(
            f"Ray could not be reached at {address}.",
            why=" ".join(str(error).split())[:300],
            fix="start a cluster with `ray start --head`, or leave --address out",
        ) from error


def _memory(ray: Any, task_memory_bytes: int) -> int:
    """What a task asks Ray for, at most what a node has: a small machine runs one after the other."""
    nodes = [node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]]
    return int(min(task_memory_bytes, max(nodes, default=0) or task_memory_bytes))


def _result(ray: Any, reference: Any) -> Any:
    """The result, or the error that ended the task after all tries."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        return cause if isinstance(cause, Exception) else error
