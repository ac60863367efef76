"""How cost, memory and time change with batch and context, from the name of a model: `lpo.sweep(...)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.api.sweep import DEFAULT_BATCH, DEFAULT_CONTEXT, refuse_rows
from llm_perf_opt.api.sweep_answer import SweepAnswer
from llm_perf_opt.api.tracing import load_function, trace
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.named_hardware import Hardware, find_hardware
from llm_perf_opt.core.number_ranges import POINTS, Given, NumberRange, read_range
from llm_perf_opt.sweeps.function.sweep.points import BATCH, CONTEXT
from llm_perf_opt.sweeps.function.sweep.report import range_text
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.tracing.traced_run import media_tokens

log = logging.getLogger(__name__)


def sweep(
    model: str | Path,
    *,
    batch: Given | None = None,
    context: Given | None = None,
    points: int = POINTS,
    device: str | Hardware | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    traces: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> SweepAnswer:
    """How cost, memory and time change with batch and context, exact at every point.

    - `model`: as in `lpo.trace`; or a function that was saved, which needs neither torch nor the model.
    - `batch`, `context`: a range `"1..512"` or `(1, 512)`, a list `"1,8,64"` or `[1, 8, 64]`, or one number. In a text
      k is 1,024. Of a range at most `points` round numbers are shown. Default: 1..64 and 1k..8k, or all of a function.
    - `device`, `execution`: for times and for what fits, as in `Trace.predict`. Default: neither.
    - `traces`: at most so many for each phase. Default: 40.
    - `weights`, `cache`, `routing` and the rest of the workload are those of `lpo.trace`.
    """
    hardware = None if device is None else find_hardware(device, devices_file)
    asked: dict[str, Any] = {"points": points, "device": hardware, "execution": execution}
    if Path(model).is_file():
        formats = {"weights": weights, "cache": cache, "routing": routing, "traces": traces}
        _refuse_with_function({**workload, **{name: value for name, value in formats.items() if value is not None}})
        return load_function(model).sweep(batch=batch, context=context, **asked)
    batches = read_range(DEFAULT_BATCH if batch is None else batch, BATCH, points=points)
    contexts = read_range(DEFAULT_CONTEXT if context is None else context, CONTEXT, points=points)
    refuse_rows(batches, contexts)
    _refuse_workload(workload)
    traced = trace(
        model,
        device=hardware,
        weights=weights,
        cache=cache,
        routing=routing,
        trust_remote_code=trust_remote_code,
        batch=batches.low,
        **workload,
    )
    _refuse_short(traced.graphs[0], contexts)
    log.info(
        "Making a function of batch %s and context %s: some traces of small points, and some that check it",
        range_text(batches),
        range_text(contexts),
    )
    function = traced.over(batch=batches.ends, context=contexts.ends, traces=traces)
    return function.sweep(batch=batches, context=contexts, **asked)


def _refuse_with_function(given: Mapping[str, Any]) -> None:
    for name in given:
        raise UsageError(
            f"A saved function takes no {name}.",
            why="its workload and its formats are those that it was made with",
            fix=f"leave {name} out, or name the model",
        )


def _refuse_workload(workload: dict[str, Any]) -> None:
    if "prompt_tokens" in workload:
        raise UsageError(
            "A sweep takes no prompt_tokens.", why="its context is the prompt and the image tokens", fix="give context"
        )
    if workload.get("decode_steps", 1) > 1:
        raise UsageError(
            "A sweep takes at most one decode step.",
            why="each point is one step at one context",
            fix="leave decode_steps out; a later step is a point with a longer context",
        )


def _refuse_short(graph: CallGraph, contexts: NumberRange) -> None:
    """A context that the images alone exceed."""
    media = media_tokens(graph)
    if contexts.low < media:
        raise UsageError(
            f"A context of {contexts.low:,} tokens is too short.",
            why=f"images and sound take {media:,} of it",
            fix=f"begin at {media + 1:,} or more",
        )
