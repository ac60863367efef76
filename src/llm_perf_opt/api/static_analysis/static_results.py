"""What the static analyzer hands back, and the files that can be made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.analyses.cost.coverage import known_sum
from llm_perf_opt.analyses.cost.static_figures import StageFigures, StaticCompute
from llm_perf_opt.analyses.cost.static_report import static_report
from llm_perf_opt.api.costing import CostRun, cost_json, fvcore_table
from llm_perf_opt.api.static_analysis.static_config import AnalysisInputs
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.protocols import REPORTERS
from llm_perf_opt.core.source_figures import Method, OperatorFigure, Testimony
from llm_perf_opt.core.units import format_flops

TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnalysisResult:
    """One stage, or the whole run as `total`. None is unknown, never zero.

    `flops` is the first figure that left nothing out: of the stage run by itself, then of its share in a whole run,
    then a closed form. Where every source left something out it is None, and `flops_at_least` is the most that one of
    them counted; otherwise the two are equal. `isolated_flops`, `extracted_flops` and `analytic_flops` are the first
    complete figure of each kind, None where every source of that kind left something out; `notes` say what.
    `activations` are elements put out by the counted operators. `operators` belong to `flops`, or else to
    `flops_at_least`. Every source's own words are in `sources`.
    """

    stage: str
    phase: str
    params: int | None
    flops: int | None
    flops_at_least: int | None
    activations: int | None
    operators: tuple[OperatorFigure, ...]
    isolated_flops: int | None
    extracted_flops: int | None
    analytic_flops: int | None
    notes: tuple[str, ...]
    sources: tuple[Testimony, ...]

    @property
    def macs(self) -> int | None:
        """Multiply-adds, each of which is two FLOPs."""
        return None if self.flops is None else self.flops // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticComputeReport:
    """Every stage by name, the run as a whole, and what the writers need."""

    inputs: AnalysisInputs
    total: StageAnalysisResult
    stages: Mapping[str, StageAnalysisResult]
    notes: tuple[str, ...]
    run: CostRun


def report_of_run(inputs: AnalysisInputs, run: CostRun) -> StaticComputeReport:
    """The report on a finished run."""
    return StaticComputeReport(
        inputs=inputs, total=total_of(run.static), stages=stages_of(run.static), notes=run.static.notes, run=run
    )


def stages_of(static: StaticCompute) -> dict[str, StageAnalysisResult]:
    """Every stage by its name, in the order in which they run."""
    return {stage.name: _stage_result(stage) for stage in static.stages}


def _stage_result(stage: StageFigures) -> StageAnalysisResult:
    return StageAnalysisResult(
        stage=stage.name,
        phase=stage.phase,
        params=stage.first("parameters"),
        flops=stage.flops,
        flops_at_least=stage.flops_at_least,
        activations=stage.first("activations"),
        operators=stage.operators,
        isolated_flops=stage.by_method(Method.ISOLATED),
        extracted_flops=stage.by_method(Method.EXTRACTED),
        analytic_flops=stage.by_method(Method.CLOSED_FORM),
        notes=tuple(_notes(stage)),
        sources=stage.sources,
    )


def isolated_only(stage: StageFigures) -> StageAnalysisResult:
    """The stage as those see it that ran it by itself."""
    seen = tuple(source for source in stage.sources if source.method is Method.ISOLATED)
    return _stage_result(replace(stage, sources=seen))


def _notes(stage: StageFigures) -> Iterator[str]:
    if stage.preferred is not None:
        yield f"FLOPs as {stage.preferred.source} has them ({stage.preferred.method.value})"
    elif stage.incomplete is not None:
        yield f"FLOPs unknown: {stage.incomplete.source} counted most and left something out"
    for source in stage.sources:
        if source.failure is not None:
            yield f"{source.source} failed: {source.failure}"
        yield from (f"{source.source}: {note}" for note in source.notes)
        for spot in source.blind_spots:
            work = "work" if spot.flops is None else format_flops(spot.flops)
            yield f"{source.source} {'adds' if spot.adds else 'leaves out'} {work} of {spot.operator} ({spot.cause})"


def total_of(static: StaticCompute) -> StageAnalysisResult:
    """All stages of all phases together; one unknown stage makes a sum unknown. Weights of two phases count once."""
    stages = tuple(stages_of(static).values())
    return StageAnalysisResult(
        stage=TOTAL,
        phase=TOTAL,
        params=static.parameters,
        flops=static.flops,
        flops_at_least=static.flops_at_least,
        activations=known_sum(stage.activations for stage in stages),
        operators=_merged(operator for stage in stages for operator in stage.operators),
        isolated_flops=known_sum(stage.isolated_flops for stage in stages),
        extracted_flops=known_sum(stage.extracted_flops for stage in stages),
        analytic_flops=known_sum(stage.analytic_flops for stage in stages),
        notes=static.notes,
        sources=tuple(source for stage in stages for source in stage.sources),
    )


def _merged(operators: Iterable[OperatorFigure]) -> tuple[OperatorFigure, ...]:
    """Operators of one name as one, the most expensive first."""
    by_name: dict[str, OperatorFigure] = {}
    for new in operators:
        if (known := by_name.get(new.name)) is None:
            by_name[new.name] = new
            continue
        by_name[new.name] = replace(
            known,
            flops=known_sum((known.flops, new.flops)),
            calls=known_sum((known.calls, new.calls)),
            activations=known_sum((known.activations, new.activations)),
        )
    return tuple(sorted(by_name.values(), key=lambda operator: -(operator.flops or 0)))


def without_fallback(run: CostRun) -> CostRun:
    """The run with no closed form as the figure of a stage; where it was, the stage has no figure and a note."""
    bare = [stage for stage in run.static.stages if stage.preferred and stage.preferred.method is Method.CLOSED_FORM]
    if not bare:
        return run
    stages = tuple(_without_closed_form(stage) if stage in bare else stage for stage in run.static.stages)
    notes = tuple(f"{stage.name}: only a closed form is known, and the fallback to it is off" for stage in bare)
    static = replace(run.static, stages=stages, notes=(*run.static.notes, *notes))
    made = static_report(static)
    return replace(run, static=static, summary=replace(made, chapters=()), stage_chapters=made.chapters)


def _without_closed_form(stage: StageFigures) -> StageFigures:
    return replace(stage, sources=tuple(source for source in stage.sources if source.method is not Method.CLOSED_FORM))


def write_static_compute_json(report: StaticComputeReport, path: Path | str) -> Path:
    """The document after `static_compute.schema.json`; a file that is there is replaced."""
    return _written(path, cost_json(report.run))


def write_static_compute_markdown(report: StaticComputeReport, path: Path | str) -> Path:
    """Configuration, totals, the table of stages and a section for each."""
    return _written(path, REPORTERS.get("markdown")().render(report.run.report))


def write_static_compute_fvcore_table(report: StaticComputeReport, path: Path | str) -> Path:
    """The tables that fvcore itself prints, stage after stage."""
    table = fvcore_table(report.run)
    if not table:
        raise PerfOptError(
            "There is no table of fvcore.",
            why="it was not asked, or could count no stage",
            fix="see the report's notes",
        )
    return _written(path, table)


def _written(path: Path | str, text: str) -> Path:
    file = Path(path)
    write_whole(file, [text.encode()])
    return file
