"""How near does the account of a rank's memory come to vLLM's own start-up? Writes docs/does-it-fit.md with --docs.

    python -m benchmarks.startup_memory [--docs] [--part developed|set-aside]

Reads the 72 records in tests/facts/serving, traces a decode step of each model without weights. About four minutes.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from benchmarks.pages import show_sections, table, write_data
from benchmarks.runner import parser
from benchmarks.startup_records import DEVELOPED_PART, MODELS, SET_ASIDE, StartUp, decode_step, start_ups
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engines import engine_of_version, total_bytes
from llm_perf_opt.serving.fit import rank_memory, serving_fit
from llm_perf_opt.serving.held_memory import engine_weights

GIB = 2**30
# The planner whose errors the newer records print: 95 % of 80 GiB, and constants by kind of model.
_PLANNER_SHARE_GIB = 0.95 * 80


@cache
def _traced(config: str, changes: str, dtype: str, weights: str | None) -> CallGraph:
    return decode_step(config, json.loads(changes), dtype, weights)


def _graph(start: StartUp, *, as_checkpoint: bool = False) -> CallGraph:
    """The decode step as it was served, or in the format of the checkpoint, from which the engine converts."""
    served = MODELS[start.model]
    dtype = "float32" if start.dtype == "f32" and not as_checkpoint else "bfloat16"  # float16 has the same sizes
    weights = "fp8" if start.quantization == "fp8" and not as_checkpoint else served.weights
    return _traced(served.config, json.dumps(dict(served.changes)), dtype, weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A record beside the account of its rank, in GiB."""

    start: StartUp
    weights_gib: float
    activation_gib: float
    moment: str
    outside_gib: float
    cache_gib: float
    measured_cache_gib: float
    is_derived: bool  # the measured cache follows from other figures of the record
    planner_cache_gib: float | None  # a second derivation, from the planner's own error
    tokens: int | None

    @property
    def cache_error(self) -> float:
        return self.cache_gib / self.measured_cache_gib - 1

    @property
    def activation_error(self) -> float | None:
        measured = self.start.activation_gib
        return None if measured is None else self.activation_gib / measured - 1


def judged(start: StartUp) -> Judged:
    """The account with the record's own memory and share of it, and our defaults for everything else."""
    served, device = MODELS[start.model], find_device("h100-sxm")
    plan, engine = ParallelPlan(tp=start.tp, pp=start.pp), engine_of_version(start.version)
    # Of a pipeline the records hold the log of a stage that does not sample: the first.
    needs = rank_memory([_graph(start)], device, plan=plan, engine=engine, encoder=served.image)
    assert needs.working is not None
    fit = serving_fit(
        weights_bytes=total_bytes(needs.weights) + served.beside_bytes // (start.tp * start.pp),
        working_bytes=needs.working.bytes,
        cache=needs.cache,
        device=device,
        batch=1,
        context=8192,
        utilisation=start.utilisation,
        outside_torch_bytes=engine.outside_torch(plan),
        memory_bytes=round(start.seen_gib * GIB),
    )
    assert fit.weights_bytes is not None
    assert fit.working_bytes is not None
    cache = start.cache_gib if start.cache_gib is not None else _derived_cache_gib(start)
    return Judged(
        start=start,
        weights_gib=fit.weights_bytes / GIB,
        activation_gib=fit.working_bytes / GIB,
        moment=needs.working.moment,
        outside_gib=(fit.outside_torch_bytes or 0) / GIB,
        cache_gib=(fit.room_bytes or 0) / GIB,
        measured_cache_gib=cache,
        is_derived=start.cache_gib is None,
        planner_cache_gib=_planner_cache_gib(start) if start.planner else None,
        tokens=fit.cache_tokens,
    )


def _checkpoint_gib(start: StartUp) -> float:
    """Of all ranks, as the checkpoint stores it: what the planner took for the weights."""
    device, engine = find_device("h100-sxm"), engine_of_version(start.version)
    stored, *_ = engine_weights(_graph(start, as_checkpoint=True), device, engine=engine, plan=ParallelPlan())
    return (stored.bytes + MODELS[start.model].beside_bytes) / GIB


def _derived_cache_gib(start: StartUp) -> float:
    """What vLLM computes: its share of the memory less weights, activation and what is outside PyTorch.

    Where the record does not have the weights, they follow from the checkpoint and the planner's error.
    """
    weights = start.weights_gib or _checkpoint_gib(start) / (start.tp * start.pp) / (1 + start.planner["weight"])
    return start.utilisation * start.seen_gib - weights - (start.activation_gib or 0) - (start.non_torch_gib or 0)


def _planner_cache_gib(start: StartUp) -> float:
    """From the planner's cache and its error: 95 % of 80 GiB on each GPU, less weights and its two constants.

    It takes the activation off once for all GPUs, and what is outside PyTorch on each of several tensor-parallel ones.
    """
    gpus, errors = start.tp * start.pp, start.planner
    activation = (start.activation_gib or 0) * (1 + errors["activation"])
    outside = (start.non_torch_gib or 0) * (1 + errors["non_torch"]) * start.tp
    planned = gpus * _PLANNER_SHARE_GIB - _checkpoint_gib(start) - activation - outside
    return planned / (1 + errors["kv"]) / gpus


def figures(found: Sequence[Judged]) -> dict[str, Any]:
    """Medians and 90th percentiles of the errors, without their signs."""
    caches = [abs(one.cache_error) for one in found]
    activations = [abs(error) for one in found if (error := one.activation_error) is not None]
    return {
        "records": len(found),
        "models": len({one.start.model for one in found}),
        "cache": {"judged": len(caches), "median": median(caches), "p90": _p90(caches)},
        "activation": {"judged": len(activations), "median": median(activations), "p90": _p90(activations)},
    }


def _p90(values: Sequence[float]) -> float:
    """The smallest value that nine tenths do not exceed."""
    return sorted(values)[max(0, math.ceil(0.9 * len(values)) - 1)]


def memory_data(parts: Sequence[str]) -> dict[str, Any]:
    """All that the page says."""
    found = [judged(start) for start in start_ups() if start.part in parts]
    by_part = {part: [one for one in found if one.start.part == part] for part in parts}
    derivations = [
        abs(one.planner_cache_gib / one.measured_cache_gib - 1) for one in found if one.planner_cache_gib is not None
    ]
    return {
        "parts": {**{part: figures(some) for part, some in by_part.items()}, "all": figures(found)},
        "derivations": {"records": len(derivations), "median": median(derivations), "p90": _p90(derivations)},
        "records": [_row(one) for one in found],
    }


def _row(one: Judged) -> dict[str, Any]:
    start, error = one.start, one.activation_error
    return {
        "model": start.model,
        "part": start.part,
        "vllm": start.version,
        "plan": ParallelPlan(tp=start.tp, pp=start.pp).describe(),
        "as": " ".join(filter(None, (start.dtype, start.quantization, start.cache_dtype.replace("auto", "")))),
        "weights_gib": round(one.weights_gib, 3),
        "activation_gib": round(one.activation_gib, 3),
        "moment": one.moment,
        "outside_gib": round(one.outside_gib, 3),
        "cache_gib": round(one.cache_gib, 3),
        "measured_activation_gib": start.activation_gib,
        "measured_outside_gib": start.non_torch_gib,
        "measured_cache_gib": round(one.measured_cache_gib, 3),
        "is_derived": one.is_derived,
        "cache_error": round(one.cache_error, 5),
        "activation_error": None if error is None else round(error, 5),
    }


TITLES = {DEVELOPED_PART: "developed on", SET_ASIDE: "set aside", "all": "**all**"}
_SHOWN = 12
_FORMS = {"cache": ".2%", "activation": ".1%"}


def sections(data: Mapping[str, Any]) -> dict[str, str]:
    """Name of a section of the page -> its text, from the data file alone."""
    return {"start-up": _errors(data), "start-up-largest": _largest(data)}


def _errors(data: Mapping[str, Any]) -> str:
    rows = []
    for part, one in data["parts"].items():
        errors = (f"{one[what][rank]:{form}}" for what, form in _FORMS.items() for rank in ("median", "p90"))
        rows.append((TITLES[part], one["models"], one["records"], *errors))
    twice = data["derivations"]
    said = (
        f"Two derivations of the measured cache, where both are possible ({twice['records']} records), differ by "
        f"{twice['median']:.2%} (median) and {twice['p90']:.2%} (p90)."
    )
    titles = ("records", "models", "number", "KV cache: median", "p90", "activation: median", "p90")
    return f"{table(titles, rows)}\n\n{said}"


def _largest(data: Mapping[str, Any]) -> str:
    """The records with the largest error of either figure."""

    def worst(row: Mapping[str, Any]) -> float:
        return max(abs(row["cache_error"]), abs(row["activation_error"] or 0))

    rows = []
    for row in sorted(data["records"], key=worst, reverse=True)[:_SHOWN]:
        names = (row["model"], row["plan"], row["as"], TITLES[row["part"]])
        rows.append((*names, *(_both(row, what) for what in _FORMS), row["moment"]))
    figures = (f"{what}, ours and measured" for what in ("KV cache", "activation"))
    return table(("model", "plan", "stored as", "records", *figures, "moment"), rows, "llllrrl")


def _both(row: Mapping[str, Any], what: str) -> str:
    if row[f"{what}_error"] is None:
        return "-"
    return f"{row[f'{what}_gib']:.2f} / {row[f'measured_{what}_gib']:.2f} ({row[f'{what}_error']:+.1%})"


def main() -> None:
    asked = parser(__doc__, docs="write the page's sections and its data file")
    asked.add_argument("--part", choices=(DEVELOPED_PART, SET_ASIDE), help="judge on these records alone")
    options = asked.parse_args()
    data = memory_data([options.part] if options.part else [DEVELOPED_PART, SET_ASIDE])
    show_sections("does-it-fit", sections(data), is_written=options.docs)
    if options.docs:
        write_data("startup_memory", data)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    main()
