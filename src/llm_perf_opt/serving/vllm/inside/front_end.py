"""What vLLM's front end does: it writes our requests as its own, and chooses the replica that gets each.

Tokens of two prompts are equal where a prefix is shared, and nowhere else. The choice follows vLLM's own rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from llm_perf_opt.serving.engine_process.prompts import PromptWriter
from llm_perf_opt.serving.requests import Request


class RequestWriter(PromptWriter):
    """Writes requests as vLLM's."""

    def engine_request(self, request: Request, arrival_s: float) -> Any:
        """What vLLM's front end hands to its core. The answer has its full length: no token ends it before."""
        images = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=image.name,
                mm_position=PlaceholderRange(offset=image.offset, length=image.tokens),
            )
            for image in request.images
        ]
        return EngineCoreRequest(
            request_id=request.id,
            prompt_token_ids=self.prompt(request),
            mm_features=images or None,
            sampling_params=SamplingParams(
                max_tokens=request.output_tokens, ignore_eos=True, temperature=0.0, detokenize=False
            ),
            pooling_params=None,
            arrival_time=arrival_s,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            priority=request.priority,
        )


class FrontEnd:
    """What vLLM's client of several engines knows about them. Its counts are fresh; a real client's are 100 ms old."""

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
