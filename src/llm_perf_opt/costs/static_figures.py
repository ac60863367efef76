"""What is known of each stage from all sources, and which source each figure is taken from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.source_figures import Method, OperatorFigure, SourceFigures
from llm_perf_opt.costs.coverage import PriceCoverage, known_sum, merged_unpriced
from llm_perf_opt.costs.parameters import count_distinct_parameters
from llm_perf_opt.costs.reconcile import Ledger, reconcile
from llm_perf_opt.costs.stage_costs import StageCost, stage_costs

_PREFERENCE = (Method.ISOLATED, Method.EXTRACTED, Method.CLOSED_FORM)
_NO_PHASE = ("all", "total")  # what a source that can say nothing at all gives in place of a phase


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCompute:
    """One stage of one phase. `flops` comes from `preferred`; every source's own figure stays in `sources`.

    A source that left something out is no figure of the stage. Where there are only such, `flops` is unknown, and
    `flops_at_least` is the most that one of them counted. A cross-check, such as the exported graph, is the figure of a
    stage only where nothing that counts the run or knows a formula has one.
    """

    phase: str
    name: str
    sources: tuple[SourceFigures, ...]
    cost: StageCost | None  # None: nothing was traced

    @property
    def preferred(self) -> SourceFigures | None:
        """The most direct source that saw everything: isolated, extracted, closed form; any cross-check after these."""
        complete = [source for source in self.sources if source.is_complete and source.method in _PREFERENCE]
        order = {method: place for place, method in enumerate(_PREFERENCE)}
        return min(complete, key=lambda source: (source.is_cross_check, order[source.method]), default=None)

    @property
    def incomplete(self) -> SourceFigures | None:
        """Where no source saw everything, the one that counted most."""
        if self.preferred is not None:
            return None
        bounded = [source for source in self.sources if source.at_least_flops is not None]
        return max(bounded, key=lambda source: source.at_least_flops or 0, default=None)

    @property
    def flops(self) -> int | None:
        """The preferred figure."""
        return None if self.preferred is None else self.preferred.flops

    @property
    def flops_at_least(self) -> int | None:
        """The preferred figure, or what a source that left something out counted without it; None: nothing is known."""
        source = self.preferred or self.incomplete
        return None if source is None else source.at_least_flops

    @property
    def operators(self) -> tuple[OperatorFigure, ...]:
        """The operators behind the figure, the most expensive first, by the names of the run itself where it agrees."""
        shown = self.preferred or self.incomplete
        agreeing = [source for source in self.sources if shown and source.flops == shown.flops and source.operators]
        extracted = [source for source in agreeing if source.method is Method.EXTRACTED]
        operators = (extracted or agreeing)[0].operators if agreeing else ()
        return tuple(sorted(operators, key=lambda operator: -(operator.flops or 0)))

    def by_method(self, method: Method) -> int | None:
        """The figure of the first source that came about this way and saw everything; a cross-check last."""
        complete = [source for source in self.sources if source.method is method and source.is_complete]
        return min(complete, key=lambda source: source.is_cross_check).flops if complete else None

    @property
    def isolated(self) -> SourceFigures | None:
        """The source of `isolated_flops`: one that left nothing out, or else one that formulas of ours complete."""
        alone = [source for source in self.sources if source.method is Method.ISOLATED]
        complete = [source for source in alone if source.is_complete and not source.is_cross_check]
        completed = [source for source in alone if source.completed_flops is not None]
        return next(iter((*complete, *completed, *(source for source in alone if source.is_complete))), None)

    @property
    def isolated_flops(self) -> int | None:
        """Of the stage run by itself; `isolated_by` says by which source, and with which formulas of ours."""
        source = self.isolated
        return None if source is None else source.flops if source.is_complete else source.completed_flops

    @property
    def isolated_by(self) -> str | None:
        """`torch-counter`, or `fvcore with formulas of ours for aten::scaled_dot_product_attention`."""
        source = self.isolated
        if source is None or source.is_complete:
            return None if source is None else source.source
        return f"{source.source} with formulas of ours for {', '.join(source.completed_with) or 'what it rounds'}"

    def first(self, field: str) -> int | None:
        """The first source's value of a figure that not every source gives, such as `parameters`."""
        for source in self.sources:
            value: int | None = getattr(source, field)
            if value is not None:
                return value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCompute:
    """The whole answer, before any format. `coverage` is None where nothing was traced.

    `whole_runs` are what sources say of a phase as one piece; they are compared with the stages and are in no sum.
    """

    model: str
    workload: Mapping[str, Json]
    deployment: Mapping[str, Json]
    library_versions: Mapping[str, str]
    stages: tuple[StageCompute, ...]
    ledger: Ledger
    coverage: PriceCoverage | None
    parameters: int | None
    notes: tuple[str, ...] = ()
    whole_runs: tuple[SourceFigures, ...] = ()

    @property
    def flops(self) -> int | None:
        """All stages together; one unknown stage makes the sum unknown."""
        return known_sum(stage.flops for stage in self.stages)

    def phase_flops(self, phase: str) -> int | None:
        """All stages of one phase together; one unknown stage makes the sum unknown."""
        return known_sum(stage.flops for stage in self.stages if stage.phase == phase)

    @property
    def flops_at_least(self) -> int | None:
        """All stages together, those that no source saw in full with what is known of them; None: nothing is known."""
        known = [stage.flops_at_least for stage in self.stages if stage.flops_at_least is not None]
        return sum(known) if known else None

    @property
    def active_parameters(self) -> int | None:
        """Elements of weights that one decode step multiplies with, all its stages together; None without a decode."""
        return known_sum(stage.first("active_parameters") for stage in self.stages if stage.phase == "decode")

    @property
    def unpriced_ops(self) -> int | None:
        """Ops in no total; None where nothing was traced."""
        return None if self.coverage is None else self.coverage.unpriced_ops

    def last(self, field: str) -> int | None:
        """A figure of the run as a whole, from the last stage with sources that give it."""
        values = (stage.first(field) for stage in reversed(self.stages))
        return next((value for value in values if value is not None), None)


def static_compute(
    *,
    model: str,
    workload: Mapping[str, Json],
    graphs: Sequence[CallGraph],
    source_figures: Sequence[SourceFigures],
) -> StaticCompute:
    """Put the figures of all sources together, stage by stage, and compare them with each other.

    A stage of which every source failed stays, without figures, and makes the totals unknown.
    """
    whole_runs = tuple(figures for figures in source_figures if figures.method is Method.WHOLE_RUN)
    source_figures = [figures for figures in source_figures if figures.method is not Method.WHOLE_RUN]
    costs = {(graph.phase, cost.name): cost for graph in graphs for cost in stage_costs(graph).stages}
    by_stage: dict[tuple[str, str], list[SourceFigures]] = {}
    for figures in source_figures:
        by_stage.setdefault((figures.phase, figures.stage), []).append(figures)
    stages = tuple(
        StageCompute(phase=phase, name=name, sources=tuple(sources), cost=costs.get((phase, name)))
        for (phase, name), sources in by_stage.items()
        if any(source.failure is None for source in sources) or _may_have_run(phase, name, source_figures, costs)
    )
    context = workload.get("context_tokens")
    return StaticCompute(
        model=model,
        workload=workload,
        deployment=graphs[0].deployment if graphs else {},
        library_versions={
            **(graphs[0].library_versions if graphs else {}),
            **{figures.source: figures.version for figures in source_figures if figures.version is not None},
        },
        stages=stages,
        ledger=reconcile(source_figures, context_tokens=context if isinstance(context, int) else None),
        coverage=_coverage(list(costs.values())),
        parameters=count_distinct_parameters(graphs) if graphs else _sum_of_parameters(stages),
        whole_runs=whole_runs,
    )


def _may_have_run(
    phase: str, name: str, source_figures: Sequence[SourceFigures], costs: Mapping[tuple[str, str], StageCost]
) -> bool:
    """Of a stage that no source could count: not if a source, or the trace, has figures of its phase without it.

    A source that cannot even begin names every stage that the phase declares, also those that another phase runs.
    """
    if phase in _NO_PHASE:
        return False
    naming = {figures.source for figures in source_figures if (figures.phase, figures.stage) == (phase, name)}
    counting = {figures.source for figures in source_figures if figures.phase == phase and figures.failure is None}
    cost = costs.get((phase, name))
    was_traced = any(traced == phase for traced, _ in costs)
    ran = cost is not None and bool(cost.calls or cost.ops)
    return counting <= naming and (ran or not was_traced)


def _coverage(costs: Sequence[StageCost]) -> PriceCoverage | None:
    """Stages hold every op once; None where nothing was traced, or a tracer sees no ops."""
    ops = known_sum(cost.ops for cost in costs)
    if ops is None:
        return None
    return PriceCoverage(ops=ops, unpriced=merged_unpriced(op for cost in costs for op in cost.unpriced))


def _sum_of_parameters(stages: Sequence[StageCompute]) -> int | None:
    """Of the stages of the first phase: later phases run the same weights."""
    phase = stages[0].phase if stages else None
    return known_sum(stage.first("parameters") for stage in stages if stage.phase == phase)
