"""aiconfigurator: how a serving engine would do on a GPU, from measured kernels. It reads a configuration."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked
from benchmarks.peer_probes.workloads import DENSE_TOKENS

SYSTEM = "h100_sxm"
ANSWERED_TOKENS = 128


def prepare(asked: Asked) -> None:
    importlib.import_module("aiconfigurator.cli.api")


def count(asked: Asked) -> Count:
    answer = _estimate(asked, mode="static_ctx", batch_size=1)
    keys = [name for name in answer.raw if "flop" in name.lower()]
    if not keys:
        raise LookupError(f"none of the {len(answer.raw)} figures in its answer counts FLOPs")
    return Count(printed=answer.raw[keys[0]], unit=keys[0], flops=round(answer.raw[keys[0]]))


def memory(asked: Asked) -> Offer:
    answer = _estimate(asked, mode="static_ctx", batch_size=1)
    return Offer(figure=answer.memory * 2**30, unit="bytes", of="the whole engine on one GPU")


def kv_cache(asked: Asked) -> Offer:
    answer = _estimate(asked, mode="static_ctx", batch_size=1)
    figure = answer.summary.get_memory()["kvcache"] * 2**30
    return Offer(figure=figure, unit="bytes", of=f"the cache of one request of {DENSE_TOKENS} tokens")


def predicted_time(asked: Asked) -> Offer:
    answer = _estimate(asked, mode="static_ctx", batch_size=1)
    return Offer(figure=answer.ttft / 1e3, unit="s", of=f"a prefill of {DENSE_TOKENS} tokens on an H100 SXM")


def serving(asked: Asked) -> Offer:
    answer = _estimate(asked, mode="agg", batch_size=64)
    return Offer(
        figure=answer.tokens_per_second_per_gpu, unit="tokens/s", of="64 requests at once, batched in flight, per GPU"
    )


def measured_kernels(asked: Asked) -> Offer:
    answer = _estimate(asked, mode="agg", batch_size=64)
    tags = [tag for step in answer.per_ops_source.values() for tag in step.values()]
    return Offer(figure=tags.count("silicon"), unit="operations", of=f"of {len(tags)} timed from measurements")


OFFERS = {
    "measured-kernels": measured_kernels,
    "memory": memory,
    "kv-cache": kv_cache,
    "predicted-time": predicted_time,
    "serving": serving,
}


def _estimate(asked: Asked, **options: Any) -> Any:
    from aiconfigurator.cli.api import cli_estimate

    return cli_estimate(str(asked.folder), SYSTEM, isl=DENSE_TOKENS, osl=ANSWERED_TOKENS, **options)
