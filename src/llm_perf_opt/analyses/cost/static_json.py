"""`static_compute.json`: the whole answer as data, raw integers in base units, null for what is not known.

The schema is published beside this file as `static_compute.schema.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from llm_perf_opt.analyses.collectives import family_collectives
from llm_perf_opt.analyses.cost.coverage import known_sum
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
from llm_perf_opt.analyses.reconcile import Ledger
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.record_fields import all_filled, filled
from llm_perf_opt.core.source_figures import Method, SourceFigures

_CONVENTION = "one multiply-add is two FLOPs; causal attention is not halved"


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
    coverage = static.coverage
    unpriced = () if coverage is None else all_filled(UnpricedRow, coverage.unpriced)
    file = StaticFile(
        schema_version=STATIC_VERSION,
        metadata=filled(MetadataRow, static, tool_version=tool_version, flop_convention=_CONVENTION),
        total=_total(static),
        stages=tuple(map(_stage, static.stages)),
        sources=_by_source(figures for stage in static.stages for figures in stage.sources),
        whole_runs=_by_source(static.whole_runs),
        ledger=_ledger(static.ledger),
        coverage=None if coverage is None else filled(CoverageRow, coverage, unpriced=unpriced),
        memory=None if memory is None else dict(memory),
        notes=static.notes,
        collectives=tuple(_collectives(graphs)) or UNSET,
    )
    return plain_values(file)


def _collectives(graphs: Sequence[CallGraph]) -> Iterator[CollectivesRow]:
    for graph in graphs:
        for part in family_collectives(graph):
            ranks = part.collective.group
            named = {"phase": graph.phase, "stage": part.stage, "modules": part.family, "count": part.count}
            yield filled(CollectivesRow, part.collective, ranks=ranks.size, group=str(ranks), **named)


def _total(static: StaticCompute) -> TotalRow:
    return filled(
        TotalRow,
        static,
        is_complete=static.flops is not None,
        macs=_halved(static.flops),
        bytes_moved=known_sum(stage.first("bytes_moved") for stage in static.stages),
        **{name: static.last(name) for name in ("weight_bytes", "kv_cache_bytes", "kv_bytes_per_token")},
    )


def _stage(stage: StageCompute) -> StageRow:
    preferred, cost = stage.preferred, stage.cost
    of_sources = ("parameters", "active_parameters", "activations", "bytes_moved")
    of_trace = ("activation_bytes", "peak_live_bytes", "calls")
    return filled(
        StageRow,
        stage,
        is_complete=preferred is not None,
        macs=_halved(stage.flops),
        flops_source=None if preferred is None else preferred.source,
        flops_method=None if preferred is None else preferred.method,
        extracted_flops=stage.by_method(Method.EXTRACTED),
        analytic_flops=stage.by_method(Method.CLOSED_FORM),
        operators=all_filled(OperatorRow, stage.operators),
        notes=tuple(f"{source.source}: {note}" for source in stage.sources for note in source.notes),
        **{name: stage.first(name) for name in of_sources},
        **{name: None if cost is None else getattr(cost, name) for name in of_trace},
    )


def _by_source(found: Iterable[SourceFigures]) -> dict[str, tuple[SourceRow, ...]]:
    sources: dict[str, tuple[SourceRow, ...]] = {}
    for figures in found:
        sources[figures.source] = (*sources.get(figures.source, ()), _figures_of_source(figures))
    return sources


def _figures_of_source(figures: SourceFigures) -> SourceRow:
    modules = (
        filled(ModuleRow, one, counted_flops=one.flops, counted_macs=one.macs, operators=dict(one.operators))
        for one in figures.modules
    )
    return filled(
        SourceRow,
        figures,
        flops=figures.flops if figures.is_complete else None,
        counted_flops=figures.flops,
        counted_macs=_halved(figures.flops),
        operators=all_filled(OperatorRow, figures.operators),
        blind_spots=all_filled(BlindSpotRow, figures.blind_spots),
        modules=tuple(modules),
    )


def _ledger(ledger: Ledger) -> LedgerRow:
    entries = (
        filled(EntryRow, one, difference_flops=one.flops, explanations=all_filled(ExplanationRow, one.explanations))
        for one in ledger.entries
    )
    return LedgerRow(
        entries=tuple(entries),
        figures=all_filled(FigureRow, ledger.figures),
        missing=tuple(
            MissingRow(source=source, phase=phase, stage=stage, reason=reason)
            for source, phase, stage, reason in ledger.missing
        ),
        unexplained=len(ledger.unexplained),
        one_source_only=all_filled(SingleRow, ledger.single),
    )


def _halved(flops: int | None) -> int | None:
    return None if flops is None else flops // 2
