"""Which replica gets a request: vLLM's own rule, asked as its front end asks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine.core_client import DPLBAsyncMPClient


class FrontEnd:
    """What vLLM's client of several engines knows of them. Its counts are fresh: a real one has those of 100 ms ago."""

    def __init__(self, cores: Sequence[Any]) -> None:
        self._cores = cores
        self._known = SimpleNamespace(
            client_count=1,
            eng_start_index=0,
            core_engines=list(range(len(cores))),
            lb_engines=[],
            reqs_in_flight={},
            engine_inflight=Counter(),
        )

    def route(self, request: Any) -> int:
        """The replica that vLLM would send this request to now."""
        counts = [(*core.scheduler.get_request_counts(), core.scheduler.kv_cache_manager.usage) for core in self._cores]
        self._known.lb_engines = [[waiting, running, usage] for running, waiting, usage in counts]
        # the client counts by itself what it sent and what came back; here the engines say so
        self._known.engine_inflight = Counter({at: sum(counts[at][:2]) for at in range(len(counts))})
        chosen: int = DPLBAsyncMPClient.get_core_engine_for_request(self._known, request)
        return chosen
