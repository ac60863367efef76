"""`static_compute.json`: the whole answer as data, raw integers in base units, null for what is not known.

The schema is published beside this file as `static_compute.schema.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import UNSET

from llm_perf_opt.analyses.collectives import family_collectives
from llm_perf_opt.analyses.cost.coverage import PriceCoverage, known_sum
from llm_perf_opt.analyses.cost.static_figures import StageCompute, StaticCompute
from llm_perf_opt.analyses.cost.static_file import (
    STATIC_VERSION,
    BlindSpotRow,
    CollectivesRow,
    CoverageRow,
    EntryRow,
    ExplanationRow,
    FigureRow,
    LedgerRow,
    MetadataRow,
    MissingRow,
    ModuleRow,
    OperatorRow,
    SingleRow,
    SourceRow,
    StageRow,
    StaticFile,
    TotalRow,
    UnpricedRow,
)
from llm_perf_opt.analyses.reconcile import FIGURES, FigureDifference, FlopsDifference
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.source_figures import Method, ModuleFigure, SourceFigures


def static_compute_json(
    static: StaticCompute,
    *,
    tool_version: str,
    memory: Mapping[str, Any] | None,
    graphs: Sequence[CallGraph] = (),
) -> dict[str, Any]:
    """The document that the schema describes.

    `memory` is the memory analysis of the same run, if there was one; the collectives are those of `graphs`.
    """
    ledger = static.ledger
    file = StaticFile(
        schema_version=STATIC_VERSION,
        metadata=MetadataRow(
            tool_version=tool_version,
            library_versions=dict(static.library_versions),
            model=static.model,
            workload=dict(static.workload),
            deployment=dict(static.deployment),
            flop_convention="one multiply-add is two FLOPs; causal attention is not halved",
        ),
        total=_total(static),
        stages=tuple(map(_stage, static.stages)),
        sources=_by_source(figures for stage in static.stages for figures in stage.sources),
        whole_runs=_by_source(static.whole_runs),
        ledger=LedgerRow(
            entries=tuple(map(_entry, ledger.entries)),
            figures=tuple(map(_figure, ledger.figures)),
            missing=tuple(
                MissingRow(source=source, phase=phase, stage=stage, reason=reason)
                for source, phase, stage, reason in ledger.missing
            ),
            unexplained=len(ledger.unexplained),
            one_source_only=tuple(SingleRow(**asdict(single)) for single in ledger.single),
        ),
        coverage=_coverage(static.coverage),
        memory=None if memory is None else dict(memory),
        notes=tuple(static.notes),
        collectives=tuple(_collectives(graphs)) or UNSET,
    )
    return plain_values(file)


def _collectives(graphs: Sequence[CallGraph]) -> Iterator[CollectivesRow]:
    for graph in graphs:
        for part in family_collectives(graph):
            asked = part.collective
            yield CollectivesRow(
                phase=graph.phase,
                stage=part.stage,
                kind=str(asked.kind),
                modules=part.family,
                ranks=asked.group.size,
                group=str(asked.group),
                axis=asked.axis,
                count=part.count,
                payload_bytes=asked.payload_bytes,
            )


def _total(static: StaticCompute) -> TotalRow:
    return TotalRow(
        parameters=static.parameters,
        active_parameters=static.active_parameters,
        flops=static.flops,
        flops_at_least=static.flops_at_least,
        is_complete=static.flops is not None,
        macs=_halved(static.flops),
        bytes_moved=known_sum(stage.first("bytes_moved") for stage in static.stages),
        weight_bytes=static.last("weight_bytes"),
        kv_cache_bytes=static.last("kv_cache_bytes"),
        kv_bytes_per_token=static.last("kv_bytes_per_token"),
    )


def _stage(stage: StageCompute) -> StageRow:
    preferred, cost = stage.preferred, stage.cost
    return StageRow(
        phase=stage.phase,
        name=stage.name,
        parameters=stage.first("parameters"),
        active_parameters=stage.first("active_parameters"),
        flops=stage.flops,
        flops_at_least=stage.flops_at_least,
        is_complete=preferred is not None,
        macs=_halved(stage.flops),
        flops_source=None if preferred is None else preferred.source,
        flops_method=None if preferred is None else preferred.method.value,
        isolated_flops=stage.isolated_flops,
        isolated_by=stage.isolated_by,
        extracted_flops=stage.by_method(Method.EXTRACTED),
        analytic_flops=stage.by_method(Method.CLOSED_FORM),
        activations=stage.first("activations"),
        bytes_moved=stage.first("bytes_moved"),
        activation_bytes=None if cost is None else cost.activation_bytes,
        peak_live_bytes=None if cost is None else cost.peak_live_bytes,
        calls=None if cost is None else cost.calls,
        operators=tuple(OperatorRow(**asdict(operator)) for operator in stage.operators),
        notes=tuple(f"{source.source}: {note}" for source in stage.sources for note in source.notes),
    )


def _by_source(found: Iterable[SourceFigures]) -> dict[str, tuple[SourceRow, ...]]:
    sources: dict[str, tuple[SourceRow, ...]] = {}
    for figures in found:
        sources[figures.source] = (*sources.get(figures.source, ()), _figures_of_source(figures))
    return sources


def _figures_of_source(figures: SourceFigures) -> SourceRow:
    return SourceRow(
        phase=figures.phase,
        stage=figures.stage,
        method=figures.method.value,
        unit=figures.unit,
        routing=figures.routing,
        flops=figures.flops if figures.is_complete else None,
        is_complete=figures.is_complete,
        counted_flops=figures.flops,
        counted_macs=_halved(figures.flops),
        left_out_ops=figures.left_out_ops,
        completed_flops=figures.completed_flops,
        completed_with=figures.completed_with,
        tensors=figures.tensors,
        **{figure: getattr(figures, figure) for figure in FIGURES},
        failure=figures.failure,
        seconds=figures.seconds,
        operators=tuple(OperatorRow(**asdict(operator)) for operator in figures.operators),
        blind_spots=tuple(BlindSpotRow(**asdict(spot)) for spot in figures.blind_spots),
        modules=tuple(map(_module, figures.modules)),
        uncalled_modules=figures.uncalled_modules,
        notes=figures.notes,
    )


def _module(module: ModuleFigure) -> ModuleRow:
    return ModuleRow(
        path=module.path,
        counted_flops=module.flops,
        counted_macs=module.macs,
        completed_flops=module.completed_flops,
        activations=module.activations,
        operators=dict(module.operators),
    )


def _entry(entry: FlopsDifference) -> EntryRow:
    return EntryRow(
        phase=entry.phase,
        stage=entry.stage,
        family=None if entry.family is None else entry.family.value,
        left=entry.left,
        right=entry.right,
        left_flops=entry.left_flops,
        right_flops=entry.right_flops,
        difference_flops=entry.flops,
        unexplained_flops=entry.unexplained_flops,
        one_source=entry.one_source,
        explanations=tuple(ExplanationRow(**asdict(one)) for one in entry.explanations),
    )


def _figure(entry: FigureDifference) -> FigureRow:
    return FigureRow(
        phase=entry.phase,
        stage=entry.stage,
        figure=entry.figure,
        left=entry.left,
        right=entry.right,
        left_value=entry.left_value,
        right_value=entry.right_value,
        difference=entry.difference,
        cause=entry.cause,
        detail=entry.detail,
    )


def _coverage(coverage: PriceCoverage | None) -> CoverageRow | None:
    if coverage is None:
        return None
    return CoverageRow(
        ops=coverage.ops,
        priced_ops=coverage.priced_ops,
        flops_bound=coverage.flops_bound,
        unpriced=tuple(UnpricedRow(**asdict(op)) for op in coverage.unpriced),
    )


def _halved(flops: int | None) -> int | None:
    return None if flops is None else flops // 2
