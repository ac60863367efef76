"""Copies of cache blocks to host memory and back, on the virtual clock; what is copied, vLLM's own connector decides.

Each direction of the link takes one copy after another. As vLLM's worker does, copies to the host begin with the next
step, copies to the GPU with this one, and a step tells the scheduler of what has ended by its launch.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput

POLL_S = 0.001  # vLLM looks again after this time while nothing runs


class _Copy(NamedTuple):
    job: int
    end_s: float
    loaded: str | None  # the request that waits for it


class HostTransfers:
    """The copies of one engine; all its ranks copy at once, each its share."""

    def __init__(self, tokens_per_s: float, block_tokens: int, workers: int) -> None:
        self._block_s, self._workers = block_tokens / tokens_per_s, workers
        self._loads: deque[_Copy] = deque()
        self._stores: deque[_Copy] = deque()
        self._deferred: list[tuple[int, Any]] = []
        self._free_s = [0.0, 0.0]  # of the link, to the GPU and to the host

    @property
    def is_busy(self) -> bool:
        """Whether something is still to end."""
        return bool(self._loads or self._stores or self._deferred)

    def start(self, asked: Any, now_s: float) -> float:
        """Begin what the scheduler asks for; return when the step may begin, which may reuse blocks in flight."""
        for job, blocks in self._deferred:
            self._stores.append(self._copy(job, blocks, now_s, 1, None))
        self._deferred = [(job, transfer.src_spec) for job, transfer in asked.store_jobs.items()]
        for job, transfer in asked.load_jobs.items():
            self._loads.append(self._copy(job, transfer.dst_spec, now_s, 0, transfer.req_id))
        flushed = asked.jobs_to_flush or ()
        return max((copy.end_s for copy in (*self._loads, *self._stores) if copy.job in flushed), default=now_s)

    def _copy(self, job: int, blocks: Any, now_s: float, way: int, loaded: str | None) -> _Copy:
        groups = max(1, len(blocks.group_sizes))  # a block of one group has the layers of that group alone
        seconds = len(blocks.block_ids) / groups * self._block_s
        end_s = self._free_s[way] = max(now_s, self._free_s[way]) + seconds
        return _Copy(job, end_s, loaded)

    def ended(self, now_s: float) -> Any:
        """What the worker tells the scheduler: copies that ended, and requests that have their cache."""
        done = []
        for copies in (self._loads, self._stores):
            while copies and copies[0].end_s <= now_s:
                done.append(copies.popleft())
        return KVConnectorOutput(
            finished_recving={copy.loaded for copy in done if copy.loaded is not None},
            kv_connector_worker_meta=OffloadingWorkerMetadata(
                completed_jobs={copy.job: self._workers for copy in done}
            ),
        )
