"""Closed forms of what a decode step needs, beside what traces of 33 configurations say, and what their code runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.bounds.closed_form import ClosedWork, closed_form
from benchmarks.pages import FACTS, facts
from llm_perf_opt.core.callgraph import CallGraph, TensorMeta
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import FOLDERS, TRACERS
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import Reason, necessary_by_stage
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.tracing.deployed_traces import deployed

CONFIGS = FACTS / "deployment" / "configs"
TRACED_PROMPT = 64
TABLE_PROMPT = 1024

# Where the file's closed form is wrong, and why. The right value is that of `closed_form`, which knows windows.
CORRECTIONS = {
    "gpt-oss-20b": "every second layer attends to the last 128 tokens only; the file counts the whole context in all",
    "gpt-oss-120b": "every second layer attends to the last 128 tokens only; the file counts the whole context in all",
    "llama4-scout": "three of four layers attend within chunks of 8,192 tokens: the token at position 8,192 begins a "
    "new chunk and sees only itself there; the file counts the whole context in all",
}


def truth() -> Any:
    """The file of closed forms, as it came."""
    return facts("deployment/truth.json")


def stated_flops(record: dict[str, Any]) -> int:
    """Of one step; with a latent cache in the absorbed form."""
    flops: int = record.get("decode_flops_at_context") or record["decode_flops_absorbed"]
    return flops


def formula(record: dict[str, Any]) -> ClosedWork:
    """Our own closed form at the record's point."""
    return closed_form(CONFIGS / record["model"]).step(batch=record["batch"], context=record["prompt_tokens"] + 1)


def is_corrected(record: dict[str, Any]) -> bool:
    """Whether the file's figure is replaced by the right one."""
    return record["model"] in CORRECTIONS and formula(record).flops != stated_flops(record)


def expected(record: dict[str, Any]) -> tuple[float, int]:
    """Bytes and FLOPs that a trace is held to."""
    if is_corrected(record):
        work = formula(record)
        return work.bytes, work.flops
    return record["decode_bytes_read_once_bf16"], stated_flops(record)


@cache
def traced(model: str) -> DecoderNeeds:
    """From one decode step of the model's own code, in 16 bits."""
    return decoder_needs(_trace(_targets(model, TRACED_PROMPT)[-1]))


def record_row(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the file, what its trace makes necessary, and what the code runs at that point as it is written."""
    needs = traced(record["model"])
    work = needs.step(batch=record["batch"], context=record["prompt_tokens"] + 1)
    bytes_read, flops = expected(record)
    written = stage_costs(_trace(_targets(record["model"], record["prompt_tokens"], record["batch"])[-1])).total
    return {
        "model": record["model"],
        "prompt_tokens": record["prompt_tokens"],
        "batch": record["batch"],
        "is_corrected": is_corrected(record),
        "active": record["matrix_parameters_active"],
        "stated_bytes": record["decode_bytes_read_once_bf16"],
        "stated_flops": stated_flops(record),
        "bytes": round(bytes_read),
        "flops": flops,
        "traced_active": needs.active_matrix_parameters,
        "traced_bytes": work.bytes,
        "traced_flops": work.flops,
        "written_bytes": written.bytes_moved,
        "written_flops": written.flops,
    }


def configuration_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each phase: stored weights, and what runs beside what is necessary."""
    published = {row["model"]: row["parameters_published_approx"] for row in truth()["parameters"]}
    adapter = FOLDERS.get("huggingface")(folder, False)
    graphs = [_trace(target) for target in _targets(folder.name, TABLE_PROMPT)]
    for graph in deployed(adapter, graphs, Deployment()):
        written = stage_costs(graph).total
        works = list(necessary_by_stage(graph).values())
        reasons: Counter[Reason] = Counter()
        for work in works:
            reasons.update(work.saved)
        yield {
            "configuration": folder.name,
            "phase": graph.phase,
            "prompt_tokens": graph.workload.get("prompt_tokens"),
            "parameters": _by_storage(graph, lambda meta: math.prod(meta.shape)),
            "published_parameters": published.get(folder.name),
            "weights": graph.deployment.get("weights", "as traced"),
            "stored_bytes": _by_storage(graph, tensor_bytes),
            "written_flops": written.flops,
            "necessary_flops": sum(work.flops for work in works),
            "written_bytes": written.bytes_moved,
            "necessary_bytes": sum(work.bytes or 0 for work in works),
            "reason": _main_reason(reasons, written.flops or 0),
        }


def _main_reason(saved: dict[Reason, int], written_flops: int) -> str | None:
    """Why the code runs more, where that is a tenth or more of what it runs."""
    reason, most = max(saved.items(), key=lambda item: item[1], default=(None, 0))
    return str(reason) if reason is not None and 10 * most >= written_flops else None


def _targets(model: str, prompt_tokens: int, batch: int = 1) -> tuple[Target, ...]:
    adapter = FOLDERS.get("huggingface")(CONFIGS / model, False)
    try:
        return adapter.targets(Workload(prompt_tokens=prompt_tokens, batch=batch))
    except UsageError:  # a model without a prompt, or with a shorter one: its own default
        return adapter.targets(Workload(batch=batch))


def _trace(target: Target) -> CallGraph:
    return TRACERS.get("weightless")().trace(target)


def _by_storage(graph: CallGraph, size: Callable[[TensorMeta], int]) -> int:
    """A size of all parameters, those that share a storage once."""
    sizes: dict[int, int] = {}
    for parameter in graph.parameters:
        if not parameter.is_buffer:
            sizes[parameter.storage] = max(sizes.get(parameter.storage, 0), size(parameter.meta))
    return sum(sizes.values())
