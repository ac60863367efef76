"""One page in which a model's batch, context, users, GPU, plan and formats can be moved, and every figure follows.

The page has the forms of the function, the memory of a rank and the step tables in it, and recomputes them: it needs no
Python, no model and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt import __version__
from llm_perf_opt.api.sweep import SweepAnswer
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import hardware_id
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.tensor_formats import value_bits
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.stored_formats import can_store_cache
from llm_perf_opt.formats.explore_html import explore_page_text
from llm_perf_opt.models.huggingface.names import catalogue
from llm_perf_opt.serving.engines import ENGINE_NAMES
from llm_perf_opt.serving.explored_plans import ExploredPlans
from llm_perf_opt.serving.published_runs import SOURCE as PUBLISHED_SOURCE
from llm_perf_opt.serving.published_runs import published_runs
from llm_perf_opt.serving.served_model import ServedModel
from llm_perf_opt.serving.served_trace import served_origin
from llm_perf_opt.sweeps.explored_forms import function_data
from llm_perf_opt.sweeps.run_function import RunFunction
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_run import TracedRun

GPUS = ("h100-sxm", "h200-sxm", "a100-sxm-80g", "l40s")  # where none is named
_AS_STORED, _OTHER = "as stored", "fp8"
_SEPARATOR = " / "
_OF_RUNS = ("gpu", "weight_bits", "gpus", "input_tokens", "output_tokens", "users")


def explore_page(answer: SweepAnswer, path: str | Path, *, force: bool = False) -> Path:
    """Write the page of a sweep that was made from a model; one out of a function file has no model to serve."""
    path = Path(path)
    free_file(path, force=force)
    write_result(path, explore_page_text(explored(answer._function, answer.model, map(hardware_id, answer.gpus))))
    return path


def why_no_page(answer: SweepAnswer) -> str | None:
    """Why there is nothing to explore; None: there is."""
    function = answer._function
    if function.origin is None:
        return "a function file has no model to serve."
    try:
        served_origin(function.at(batch=_low(function, "batch"), context=_low(function, "context")))
    except PerfOptError as refusal:
        return refusal.what
    return None


def explored(function: RunFunction[TracedRun], name: str, gpus: Iterable[str | None] = ()) -> dict[str, Any]:
    """Everything that the page computes with, as plain values."""
    run = function.at(batch=_low(function, "batch"), context=_low(function, "context"))
    origin, _ = served_origin(run)
    formats = explored_formats(run)
    phases = function_data(function, formats)
    served = {label: ServedModel(_in_format(origin, wanted)) for label, wanted in formats.items()}
    known_gpus = [gpu for gpu in gpus if gpu is not None] or GPUS
    plans = ExploredPlans.of(served, known_gpus, _dtypes(phases))
    weights = list(dict.fromkeys(label.split(_SEPARATOR)[0] for label in formats))
    return {
        "model": name,
        "version": __version__,
        "weights": weights,
        "published": _published(name, known_gpus, {label: value_bits(label.split(",")[0]) for label in weights}),
        "caches": list(dict.fromkeys(label.split(_SEPARATOR)[1] for label in formats)),
        "phases": phases,
        **plans.data(),
    }


def _published(model: str, gpus: Sequence[str], bits: Mapping[str, int]) -> dict[str, Any]:
    """What others measured of servers of this model; a model by another name of the catalogue has the same shapes."""
    known = catalogue().get(model)
    runs = published_runs((known.shared_with if known else None) or model, gpus)
    return {
        "source": PUBLISHED_SOURCE,
        "bits": bits,
        "runs": [
            {
                **{name: getattr(run, name) for name in _OF_RUNS},
                "engine": ENGINE_NAMES[run.engine],
                "speed": round(run.tokens_per_s_per_user, 2),
                "tokens": round(run.output_tokens_per_s_per_gpu, 1),
            }
            for run in runs
            if run.weight_bits in bits.values()
        ],
    }


def _low(function: RunFunction[TracedRun], variable: str) -> int:
    return function.phases[0].domain[variable][0]


def explored_formats(run: TracedRun) -> dict[str, Deployment]:
    """`weights / cache` -> what that changes of the traced graphs: as stored, and each in eight bits."""
    deployment, dtype = run.graphs[0].deployment, run.graphs[0].workload.get("dtype", "as traced")
    stored = deployment.get("weights") or dtype
    weights = {_label(stored): None, **({} if _OTHER in str(stored) else {_OTHER: _OTHER})}
    cache = next((graph.deployment["cache"] for graph in run.graphs if "cache" in graph.deployment), None)
    has_other_cache = cache is None and can_store_cache(run.graphs)
    caches = {_label(cache or dtype): None, **({_OTHER: _OTHER} if has_other_cache else {})}
    return {
        f"{weights_label}{_SEPARATOR}{cache_label}": Deployment(weights=weights_format, cache=cache_format)
        for weights_label, weights_format in weights.items()
        for cache_label, cache_format in caches.items()
    }


def _label(stored: object) -> str:
    return f"{stored}, {_AS_STORED}"


def _in_format(origin: Origin, wanted: Deployment) -> Origin:
    """The model as a server stores it, on any device."""
    return replace(origin, deployment=replace(origin.deployment, device=None, **wanted.changed()))


def _dtypes(phases: Sequence[dict[str, Any]]) -> frozenset[str]:
    """The types in which the model multiplies, in any cell and format."""
    formats = (known for phase in phases for cell in phase["cells"] for known in cell["in"].values())
    return frozenset(dtype for known in formats for stage in known["necessary"] or () for dtype in stage["flops"])
