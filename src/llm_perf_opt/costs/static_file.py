"""`static_compute.json`, object by object. `static_compute.schema.json` is generated from these records.

Integers in base units; null is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.reading import FileKind, all_filled, filled, read_json
from llm_perf_opt.core.report import stage_names
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.units import macs_of
from llm_perf_opt.costs.collectives import family_collectives
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.reconcile import FIGURES, Ledger
from llm_perf_opt.costs.static_figures import StageCompute, StaticCompute

STATIC_VERSION: Literal[4] = 4
STATIC_FILE = FileKind(
    name="file of static costs",
    fix="work it out again: llm-perf-opt cost MODEL --out DIR",
    schema_version=STATIC_VERSION,
    is_sealed=True,
)

Count = Annotated[int, Meta(ge=0)]
Texts = tuple[str, ...]
MethodName = Literal["isolated", "extracted", "closed form", "whole run"]
FamilyName = Literal["matmul", "convolution", "fused attention", "grouped matmul", "other"]
FlopsAtLeast = Annotated[
    Count | None,
    Meta(description="Equal to flops where that is known; otherwise what sources that left something out counted."),
]
IsComplete = Annotated[
    bool, Meta(description="Whether flops holds all matrix work; false where every source left something out.")
]
CountedFlops = Annotated[
    Count | None,
    Meta(description="What the source counted; no total where is_complete is false. A multiply-add is two."),
]
CompletedFlops = Annotated[
    Count | None,
    Meta(description="The same with formulas of ours for the operators in completed_with; null where a gap stays."),
]
FirstOfItsKind = Annotated[Count | None, Meta(description="Of the first source of this kind that left nothing out.")]


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class MetadataRow(_Object, frozen=True, kw_only=True):
    """What was analysed, and by what."""

    tool_version: str
    library_versions: dict[str, str]
    model: str
    workload: dict[str, Any]
    deployment: dict[str, Any] = field(default_factory=dict)
    analysis: Annotated[
        dict[str, Any] | None, Meta(description="The configuration of the static analyzer; null where none was given.")
    ] = None
    flop_convention: str


class TotalRow(_Object, frozen=True, kw_only=True):
    """The whole model."""

    params: Count | None
    active_params: Count | None
    flops: Count | None
    flops_at_least: FlopsAtLeast
    is_complete: IsComplete
    macs: Count | None
    bytes_moved: Count | None
    weight_bytes: Count | None
    kv_cache_bytes: Count | None
    kv_bytes_per_token: Count | None


class OperatorRow(_Object, frozen=True, kw_only=True):
    """One operator of a stage as the source names it."""

    name: str
    family: FamilyName
    flops: Count | None
    calls: Count | None
    activations: Count | None


class ModuleRow(_Object, frozen=True, kw_only=True):
    """One module with everything inside it, as the source counts it; of modules that are alike, all together."""

    path: str
    counted_flops: Count
    counted_macs: Count
    completed_flops: CompletedFlops
    activations: Count
    operators: Annotated[dict[str, Count], Meta(description="Operator -> FLOPs that the source counted.")]


class StageCostRow(_Object, frozen=True, kw_only=True):
    """One stage, with the preferred figure of each kind."""

    phase: str
    name: str
    params: Count | None
    active_params: Count | None
    flops: Annotated[
        Count | None, Meta(description="The preferred figure: isolated, then extracted, then closed form.")
    ]
    flops_at_least: FlopsAtLeast
    is_complete: IsComplete
    macs: Count | None
    flops_source: str | None
    flops_method: MethodName | None
    isolated_flops: Annotated[
        Count | None,
        Meta(description="Of the stage run by itself: by a source that left nothing out, or completed by us."),
    ]
    isolated_by: Annotated[str | None, Meta(description="The source of isolated_flops, and what we completed it with.")]
    extracted_flops: FirstOfItsKind
    analytic_flops: FirstOfItsKind
    activations: Annotated[Count | None, Meta(description="Elements put out by the counted operators.")]
    bytes_moved: Count | None
    activation_bytes: Count | None
    peak_live_bytes: Count | None
    calls: Count | None
    operators: tuple[OperatorRow, ...]
    notes: Texts


class BlindSpotRow(_Object, frozen=True, kw_only=True):
    """Work that the source saw and left out of its figure, or added to it."""

    cause: str
    operator: str
    calls: Count | None
    flops: Count | None
    is_bound: Annotated[bool, Meta(description="Whether flops is the most that it may have left out.")] = False


class SourceRow(_Object, frozen=True, kw_only=True):
    """What one source says of one stage, or of one phase as a whole."""

    phase: str
    stage: str
    method: MethodName
    unit: Annotated[
        str, Meta(description="What the source counts before conversion.", extra_json_schema={"enum": ["flop", "mac"]})
    ]
    routing: Annotated[
        str | None,
        Meta(description="Which policy routed the tokens to experts; null: none had to, or it is not known."),
    ] = None
    flops: Annotated[Count | None, Meta(description="Null where the source left something out, or added something.")]
    is_complete: Annotated[
        bool, Meta(description="False where blind_spots name work that is missing from counted_flops or added to it.")
    ]
    counted_flops: CountedFlops
    counted_macs: Annotated[Count | None, Meta(description="Half of counted_flops: what fvcore itself prints.")]
    left_out_ops: Annotated[Count, Meta(description="Calls of operators that counted_flops lacks.")]
    completed_flops: CompletedFlops
    completed_with: Texts
    tensors: Annotated[
        str | None,
        Meta(
            description="What the source ran on; null: it does not say.",
            extra_json_schema={"enum": ["weightless", "real", None]},
        ),
    ]
    params: Count | None
    active_params: Count | None = None
    activations: Count | None
    bytes_moved: Count | None = None
    weight_bytes: Count | None = None
    kv_cache_bytes: Count | None = None
    kv_bytes_per_token: Count | None = None
    failure: str | None
    seconds: float | None
    operators: tuple[OperatorRow, ...]
    blind_spots: tuple[BlindSpotRow, ...]
    modules: Annotated[
        tuple[ModuleRow, ...], Meta(description="By module and operator, where the source tells modules apart.")
    ]
    uncalled_modules: Annotated[Texts, Meta(description="Not called, or by their forward; they have no figures.")]
    notes: Texts


class ExplanationRow(_Object, frozen=True, kw_only=True):
    """One cause of a difference."""

    cause: str
    flops: Annotated[int, Meta(description="Negative where the cause makes the difference smaller.")]
    detail: str


class EntryRow(_Object, frozen=True, kw_only=True):
    """The FLOPs of two sources for one stage or one family of its operators."""

    phase: str
    stage: str
    family: Annotated[str | None, Meta(description="Null: the stage as a whole.")]
    left: str
    right: str
    left_flops: Count | None
    right_flops: Count | None
    difference_flops: int
    unexplained_flops: int
    one_source: Annotated[
        str | None,
        Meta(
            description="The only source that has a figure for these operators: the explanations say what the other "
            "leaves out, and nothing confirms the figure."
        ),
    ]
    explanations: tuple[ExplanationRow, ...]


class FigureRow(_Object, frozen=True, kw_only=True):
    """A figure other than FLOPs that two sources give of one stage."""

    phase: str
    stage: str
    figure: Annotated[str, Meta(extra_json_schema={"enum": list(FIGURES)})]
    left: str
    right: str
    left_value: Count
    right_value: Count
    difference: int
    cause: Annotated[str | None, Meta(description="Null: they agree, or nothing is known.")]
    detail: str


class MissingRow(_Object, frozen=True, kw_only=True):
    """A stage that a source has no figure for."""

    source: str
    phase: str
    stage: str
    reason: str


class SingleRow(_Object, frozen=True, kw_only=True):
    """A figure that one source alone gives: nothing was compared."""

    phase: str
    stage: str
    figure: str
    family: Annotated[str | None, Meta(description="Which operators, where the figure is flops.")]
    source: str
    value: Count


class LedgerRow(_Object, frozen=True, kw_only=True):
    """Every pair of sources, and what explains each difference."""

    entries: tuple[EntryRow, ...]
    figures: tuple[FigureRow, ...] = ()
    missing: tuple[MissingRow, ...]
    unexplained: Annotated[Count, Meta(description="Entries and figures that differ without a known cause.")]
    one_source_only: tuple[SingleRow, ...]


class UnpricedRow(_Object, frozen=True, kw_only=True):
    """An op without a price."""

    name: str
    count: Count | None
    flops_bound: Count | None


class PricingRow(_Object, frozen=True, kw_only=True):
    """How many ops have a price."""

    ops: Count | None
    priced_ops: Count | None
    flops_bound: Annotated[
        Count | None, Meta(description="The most that the totals may lack; null where one op has no bound.")
    ]
    unpriced: tuple[UnpricedRow, ...]


class ModuleCollectivesRow(_Object, frozen=True, kw_only=True):
    """Equal collectives of modules with paths that differ in numbers alone."""

    phase: str
    stage: str
    kind: str
    modules: str
    ranks: Count
    group: Annotated[str, Meta(description="Ranks as first-last, or first-last:stride.")]
    axis: Annotated[str | None, Meta(description="Of the plan: tp, ep, pp or fsdp; null where torch does not name it.")]
    count: Count
    payload_bytes: Annotated[Count, Meta(description="Of one: its largest tensor on this rank.")]


class StaticFile(_Object, frozen=True, kw_only=True):
    """What a model costs, stage by stage and source by source. Integers in base units; null is unknown, never zero."""

    schema_version: Literal[4]
    metadata: MetadataRow
    total: TotalRow
    stages: Annotated[
        dict[str, StageCostRow],
        Meta(description="Stage -> its figures; `stage (phase)` where several phases run it."),
    ]
    sources: Annotated[dict[str, tuple[SourceRow, ...]], Meta(description="Source name -> what it says of each stage.")]
    whole_runs: Annotated[
        dict[str, tuple[SourceRow, ...]],
        Meta(description="Source name -> what it says of each phase as one piece; part of no sum."),
    ]
    ledger: LedgerRow
    coverage: PricingRow | None
    memory: Annotated[
        dict[str, Any] | None,
        Meta(description="Weights, KV cache and live activations, from tensor lifetimes in the trace."),
    ]
    notes: Texts
    collectives: (
        Annotated[
            tuple[ModuleCollectivesRow, ...], Meta(description="Of one rank among several; absent on one device.")
        ]
        | UnsetType
    ) = UNSET


def read_static(path: Path) -> StaticFile:
    """The static costs in a file, as they were written."""
    return read_json(path, StaticFile, STATIC_FILE)


# `static_compute.json`: the whole answer as data, raw integers in base units, null for what is not known.
#
# The schema is published next to this file as `static_compute.schema.json`.

_CONVENTION = "one multiply-add is two FLOPs; causal attention is not halved"


def static_compute_json(
    static: StaticCompute,
    *,
    tool_version: str,
    memory: Mapping[str, Any] | None,
    graphs: Sequence[CallGraph] = (),
    analysis: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document that the schema describes.

    `memory` is the memory analysis of the same run, if there was one; the collectives come from `graphs`; `analysis`
    is the configuration of the analyzer that asked.
    """
    coverage = static.coverage
    unpriced = () if coverage is None else all_filled(UnpricedRow, coverage.unpriced)
    file = StaticFile(
        schema_version=STATIC_VERSION,
        metadata=filled(
            MetadataRow,
            static,
            tool_version=tool_version,
            flop_convention=_CONVENTION,
            analysis=None if analysis is None else dict(analysis),
        ),
        total=_total(static),
        stages=dict(zip(stage_names(static.stages), map(_stage, static.stages), strict=True)),
        sources=_by_source(figures for stage in static.stages for figures in stage.sources),
        whole_runs=_by_source(static.whole_runs),
        ledger=_ledger(static.ledger),
        coverage=None if coverage is None else filled(PricingRow, coverage, unpriced=unpriced),
        memory=None if memory is None else dict(memory),
        notes=static.notes,
        collectives=tuple(_collectives(graphs)) or UNSET,
    )
    return plain_values(file)


def _collectives(graphs: Sequence[CallGraph]) -> Iterator[ModuleCollectivesRow]:
    for graph in graphs:
        for part in family_collectives(graph):
            ranks = part.collective.group
            named = {"phase": graph.phase, "stage": part.stage, "modules": part.family, "count": part.count}
            yield filled(ModuleCollectivesRow, part.collective, ranks=ranks.size, group=str(ranks), **named)


def _total(static: StaticCompute) -> TotalRow:
    return filled(
        TotalRow,
        static,
        **_params(static),
        is_complete=static.flops is not None,
        macs=macs_of(static.flops),
        bytes_moved=known_sum(stage.first("bytes_moved") for stage in static.stages),
        **{name: static.last(name) for name in ("weight_bytes", "kv_cache_bytes", "kv_bytes_per_token")},
    )


_PARAMS = {"params": "parameters", "active_params": "active_parameters"}  # key of the file -> field of our records


def _params(record: object) -> dict[str, int | None]:
    return {key: getattr(record, name) for key, name in _PARAMS.items()}


def _stage(stage: StageCompute) -> StageCostRow:
    preferred, cost = stage.preferred, stage.cost
    of_sources = {name: name for name in ("activations", "bytes_moved")} | _PARAMS
    of_trace = ("activation_bytes", "peak_live_bytes", "calls")
    return filled(
        StageCostRow,
        stage,
        is_complete=preferred is not None,
        macs=macs_of(stage.flops),
        flops_source=None if preferred is None else preferred.source,
        flops_method=None if preferred is None else preferred.method,
        extracted_flops=stage.by_method(Method.EXTRACTED),
        analytic_flops=stage.by_method(Method.CLOSED_FORM),
        operators=all_filled(OperatorRow, stage.operators),
        notes=tuple(f"{source.source}: {note}" for source in stage.sources for note in source.notes),
        **{key: stage.first(name) for key, name in of_sources.items()},
        **{name: None if cost is None else getattr(cost, name) for name in of_trace},
    )


def _by_source(all_figures: Iterable[SourceFigures]) -> dict[str, tuple[SourceRow, ...]]:
    sources: dict[str, tuple[SourceRow, ...]] = {}
    for figures in all_figures:
        sources[figures.source] = (*sources.get(figures.source, ()), _figures_of_source(figures))
    return sources


def _figures_of_source(figures: SourceFigures) -> SourceRow:
    modules = (
        filled(
            ModuleRow, module, counted_flops=module.flops, counted_macs=module.macs, operators=dict(module.operators)
        )
        for module in figures.modules
    )
    return filled(
        SourceRow,
        figures,
        **_params(figures),
        flops=figures.flops if figures.is_complete else None,
        counted_flops=figures.flops,
        counted_macs=macs_of(figures.flops),
        operators=all_filled(OperatorRow, figures.operators),
        blind_spots=all_filled(BlindSpotRow, figures.blind_spots),
        modules=tuple(modules),
    )


def _ledger(ledger: Ledger) -> LedgerRow:
    entries = (
        filled(
            EntryRow, entry, difference_flops=entry.flops, explanations=all_filled(ExplanationRow, entry.explanations)
        )
        for entry in ledger.entries
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
