"""This project, through its Python API."""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked
from benchmarks.peer_probes.workloads import DENSE_TOKENS, OCR_WORKLOAD
from llm_perf_opt.core.workload import Workload

DEVICE, IN_FLIGHT, ANSWERED_TOKENS = "h100-sxm", 64, 128


def prepare(asked: Asked) -> None:
    importlib.import_module("llm_perf_opt.api.tracing")
    importlib.import_module("transformers" if asked.name.startswith("dense") else "torch")
    if asked.folder is None:
        _ = asked.subject


def count(asked: Asked) -> Count:
    from llm_perf_opt.analyses.cost.module_costs import module_costs
    from llm_perf_opt.analyses.cost.stage_costs import stage_costs

    (graph,) = _trace(asked).graphs
    total = stage_costs(graph).total
    return Count(
        printed=total.flops,
        unit="FLOPs",
        flops=total.flops,
        flops_by_module={path: cost.inclusive.flops for path, cost in module_costs(graph).by_path.items()},
        left_out=sorted({op.name for op in total.unpriced}),
    )


def memory(asked: Asked) -> Offer:
    from llm_perf_opt.analyses.memory.need import run_memory

    total = run_memory(_trace(asked).graphs).total_bytes
    assert total is not None
    return Offer(figure=total, unit="bytes", of="weights and what is alive at the peak")


def kv_cache(asked: Asked) -> Offer:
    from llm_perf_opt.analyses.memory.need import run_memory

    cache = run_memory(_trace(asked, decode_steps=1).graphs).cache
    assert cache is not None
    return Offer(figure=cache.bytes, unit="bytes", of=f"the cache of {DENSE_TOKENS} tokens")


def predicted_time(asked: Asked) -> Offer:
    from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates
    from llm_perf_opt.analyses.time.predict import predict
    from llm_perf_opt.core.hardware import find_device

    (graph,) = _trace(asked).graphs
    device = find_device(DEVICE)
    likely = sum(stage.device_time.middle for stage in predict(graph, DataSheetRates(device)))
    return Offer(figure=likely, unit="s", of=f"a prefill of {DENSE_TOKENS} tokens on an H100 SXM, the middle of a band")


def picture(asked: Asked) -> Offer:
    shown = _trace(asked).graph()
    with tempfile.TemporaryDirectory() as folder:
        svg = shown.save(Path(folder) / "picture.svg").read_text()
    assert "<svg" in svg
    return Offer(figure=len(shown.view.visible()), unit="boxes", of="an SVG drawing, equal modules folded")


def serving(asked: Asked) -> Offer:
    from llm_perf_opt.analyses.capacity.steady_state import MeanRequest
    from llm_perf_opt.api.origin import find_origin
    from llm_perf_opt.api.served_model import ServedModel
    from llm_perf_opt.core.hardware import find_device
    from llm_perf_opt.core.parallel_plan import ParallelPlan

    assert asked.folder is not None
    served = ServedModel(find_origin(asked.folder, torch_device="cuda"), asked.folder)
    mean = MeanRequest(prompt_tokens=DENSE_TOKENS, output_tokens=ANSWERED_TOKENS)
    replica = served.replica(find_device(DEVICE), ParallelPlan(), mean, None, max_sequences=IN_FLIGHT)
    assert replica is not None
    (state,) = (state for state in replica.considered.states if state.sequences == IN_FLIGHT)
    return Offer(
        figure=state.requests_per_s * ANSWERED_TOKENS,
        unit="tokens/s",
        of=f"{IN_FLIGHT} requests at once, batched in flight, per GPU, in a steady state",
    )


OFFERS = {
    "serving": serving,
    "memory": memory,
    "kv-cache": kv_cache,
    "predicted-time": predicted_time,
    "picture": picture,
}


def _trace(asked: Asked, decode_steps: int = 0) -> Any:
    import llm_perf_opt as lpo

    if asked.name == "ocr":
        return lpo.trace("deepseek-ocr", **asdict(replace(OCR_WORKLOAD, decode_steps=decode_steps)))
    if asked.folder is not None:
        attention = asked.name.removeprefix("dense-")
        options = Workload(prompt_tokens=DENSE_TOKENS, decode_steps=decode_steps, attention=attention)
        return lpo.trace(asked.folder, **asdict(options))
    return lpo.trace(asked.subject.module, asked.subject.inputs)
