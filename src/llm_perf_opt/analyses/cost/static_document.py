"""`static_compute.json`: the whole answer as data, raw integers in base units, null for what is not known.

The schema is published beside this file as `static_compute.schema.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.analyses.cost.coverage import PriceCoverage, known_sum
from llm_perf_opt.analyses.cost.static_figures import StageFigures, StaticCompute
from llm_perf_opt.analyses.reconcile import FIGURES, Difference, FigureDifference, SingleSource
from llm_perf_opt.core.source_figures import Method, OperatorFigure, Testimony

SCHEMA_VERSION = 2


def static_compute_document(
    static: StaticCompute, *, tool_version: str, memory: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The document that the schema describes; `memory` is the memory analysis of the same run, if there was one."""
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "tool_version": tool_version,
            "library_versions": dict(static.library_versions),
            "model": static.model,
            "workload": dict(static.workload),
            "deployment": dict(static.deployment),
            "flop_convention": "one multiply-add is two FLOPs; causal attention is not halved",
        },
        "total": _total(static),
        "stages": [_stage(stage) for stage in static.stages],
        "sources": _sources(static),
        "ledger": {
            "entries": [_entry(entry) for entry in static.ledger.entries],
            "figures": [_figure(figure) for figure in static.ledger.figures],
            "missing": [
                dict(zip(("source", "phase", "stage", "reason"), entry, strict=True)) for entry in static.ledger.missing
            ],
            "unexplained": len(static.ledger.unexplained),
            "one_source_only": [_single(found) for found in static.ledger.single],
        },
        "coverage": _coverage(static.coverage),
        "memory": None if memory is None else dict(memory),
        "notes": list(static.notes),
    }


def _total(static: StaticCompute) -> dict[str, Any]:
    return {
        "parameters": static.parameters,
        "active_parameters": static.active_parameters,
        "flops": static.flops,
        "flops_at_least": static.flops_at_least,
        "is_complete": static.flops is not None,
        "macs": _halved(static.flops),
        "bytes_moved": known_sum(stage.first("bytes_moved") for stage in static.stages),
        "weight_bytes": static.last("weight_bytes"),
        "kv_cache_bytes": static.last("kv_cache_bytes"),
        "kv_bytes_per_token": static.last("kv_bytes_per_token"),
    }


def _stage(stage: StageFigures) -> dict[str, Any]:
    preferred, cost = stage.preferred, stage.cost
    return {
        "phase": stage.phase,
        "name": stage.name,
        "parameters": stage.first("parameters"),
        "active_parameters": stage.first("active_parameters"),
        "flops": stage.flops,
        "flops_at_least": stage.flops_at_least,
        "is_complete": preferred is not None,
        "macs": _halved(stage.flops),
        "flops_source": None if preferred is None else preferred.source,
        "flops_method": None if preferred is None else preferred.method.value,
        "isolated_flops": stage.by_method(Method.ISOLATED),
        "extracted_flops": stage.by_method(Method.EXTRACTED),
        "analytic_flops": stage.by_method(Method.CLOSED_FORM),
        "activations": stage.first("activations"),
        "bytes_moved": stage.first("bytes_moved"),
        "activation_bytes": None if cost is None else cost.activation_bytes,
        "peak_live_bytes": None if cost is None else cost.peak_live_bytes,
        "calls": None if cost is None else cost.calls,
        "operators": [_operator(operator) for operator in stage.operators],
        "notes": [f"{source.source}: {note}" for source in stage.sources for note in source.notes],
    }


def _sources(static: StaticCompute) -> dict[str, list[dict[str, Any]]]:
    sources: dict[str, list[dict[str, Any]]] = {}
    for stage in static.stages:
        for testimony in stage.sources:
            sources.setdefault(testimony.source, []).append(_testimony(testimony))
    return sources


def _testimony(testimony: Testimony) -> dict[str, Any]:
    return {
        "phase": testimony.phase,
        "stage": testimony.stage,
        "method": testimony.method.value,
        "unit": testimony.unit,
        "routing": testimony.routing,
        "flops": testimony.flops,
        "is_complete": testimony.is_complete,
        **{figure: getattr(testimony, figure) for figure in FIGURES},
        "failure": testimony.failure,
        "seconds": testimony.seconds,
        "operators": [_operator(operator) for operator in testimony.operators],
        "blind_spots": [
            {
                "cause": spot.cause,
                "operator": spot.operator,
                "calls": spot.calls,
                "flops": spot.flops,
                "is_bound": spot.is_bound,
            }
            for spot in testimony.blind_spots
        ],
    }


def _operator(operator: OperatorFigure) -> dict[str, Any]:
    return {
        "name": operator.name,
        "family": operator.family.value,
        "flops": operator.flops,
        "calls": operator.calls,
        "activations": operator.activations,
    }


def _entry(entry: Difference) -> dict[str, Any]:
    return {
        "phase": entry.phase,
        "stage": entry.stage,
        "family": None if entry.family is None else entry.family.value,
        "left": entry.left,
        "right": entry.right,
        "left_flops": entry.left_flops,
        "right_flops": entry.right_flops,
        "difference_flops": entry.flops,
        "unexplained_flops": entry.unexplained_flops,
        "one_source": entry.one_source,
        "explanations": [
            {"cause": part.cause, "flops": part.flops, "detail": part.detail} for part in entry.explanations
        ],
    }


def _figure(entry: FigureDifference) -> dict[str, Any]:
    return {
        "phase": entry.phase,
        "stage": entry.stage,
        "figure": entry.figure,
        "left": entry.left,
        "right": entry.right,
        "left_value": entry.left_value,
        "right_value": entry.right_value,
        "difference": entry.difference,
        "cause": entry.cause,
        "detail": entry.detail,
    }


def _single(found: SingleSource) -> dict[str, Any]:
    return {
        "phase": found.phase,
        "stage": found.stage,
        "figure": found.figure,
        "family": None if found.family is None else found.family.value,
        "source": found.source,
        "value": found.value,
    }


def _coverage(coverage: PriceCoverage | None) -> dict[str, Any] | None:
    if coverage is None:
        return None
    return {
        "ops": coverage.ops,
        "priced_ops": coverage.priced_ops,
        "flops_bound": coverage.flops_bound,
        "unpriced": [{"name": op.name, "count": op.count, "flops_bound": op.flops_bound} for op in coverage.unpriced],
    }


def _halved(flops: int | None) -> int | None:
    return None if flops is None else flops // 2
