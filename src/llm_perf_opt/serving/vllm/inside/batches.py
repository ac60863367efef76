"""What is in a step, told from what vLLM's scheduler hands over."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.serving.engine_process.clock import EngineLoad
from llm_perf_opt.serving.engine_process.step_time import Batch


def batch_of(scheduled: Any, requests: Any) -> Batch:
    """The parts of a step. Most steps only decode: they need no look at single sequences."""
    cached, new = scheduled.scheduled_cached_reqs, scheduled.scheduled_new_reqs
    tokens = scheduled.num_scheduled_tokens
    images = _image_tokens(scheduled, requests) if scheduled.scheduled_encoder_inputs else 0
    if scheduled.total_num_scheduled_tokens == len(tokens) and not new:
        return Batch(len(tokens), sum(cached.num_computed_tokens), [], 0, images, 0, new)
    drafts = scheduled.scheduled_spec_decode_tokens
    decoding = context = drafted = prompt = 0
    chunks = []
    before = list(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for name, computed in before + [(request.req_id, request.num_computed_tokens) for request in new]:
        count = tokens[name]
        if name in drafts:
            drafted += count - 1
        elif count > 1:
            chunks.append((count, computed))
            prompt += count
            continue
        decoding += 1
        context += computed
    return Batch(decoding, context, chunks, drafted, images, prompt, new)


def _image_tokens(scheduled: Any, requests: Any) -> int:
    return sum(
        requests[name].get_num_encoder_embeds(at)
        for name, images in scheduled.scheduled_encoder_inputs.items()
        for at in images
    )


def load_of(scheduler: Any) -> EngineLoad:
    """How full an engine of vLLM is."""
    running, waiting = scheduler.get_request_counts()
    return EngineLoad(running, waiting, scheduler.kv_cache_manager.usage)
