"""A device and a cache of round sizes."""

from __future__ import annotations

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.serving.fit import ServingFit, serving_fit
from llm_perf_opt.serving.held_memory import CacheLayers, CachePerSequence

GIB = 2**30


def made_device(memory_bytes: int = 10 * GIB, *, units: int | None = 100, capability: str = "9.0") -> Device:
    """Its memory is nominal, so no reserve of the driver is taken off."""
    facts: dict[str, str | int | float] = {"compute_capability": capability}
    if units is not None:
        facts["compute_units"] = units
    return Device(
        id="made",
        name="Made",
        vendor="NVIDIA",
        arch="Made",
        peak_flops_per_s={},
        bandwidth_bytes_per_s=1,
        memory_bytes=memory_bytes,
        facts=facts,
    )


def made_cache(bytes_per_token: int = 1000, *, window: int | None = None, block_tokens: int = 1) -> CachePerSequence:
    return CachePerSequence(
        layers=(CacheLayers(bytes_per_token=bytes_per_token, window=window),), block_tokens=block_tokens
    )


def made_fit(
    *,
    memory_bytes: int = 10_000_000,
    cache: CachePerSequence | None = None,
    batch: int = 1,
    context: int = 1,
    weights_bytes: int | None = 2_000_000,
    working_bytes: int | None = 1_500_000,
    trained_context: int | None = None,
) -> ServingFit:
    """9,000,000 bytes in use, of which weights, working memory and 500,000 outside PyTorch leave 5,000,000."""
    return serving_fit(
        weights_bytes=weights_bytes,
        working_bytes=working_bytes,
        cache=cache or made_cache(),
        device=made_device(memory_bytes),
        batch=batch,
        context=context,
        utilisation=0.9,
        outside_torch_bytes=500_000,
        trained_context=trained_context,
    )
