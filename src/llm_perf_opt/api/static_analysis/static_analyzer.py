"""The static compute report for scripts: a session goes in, figures per stage come out.

The analyzer looks at the session's adapter and changes nothing in it; no weights are needed or touched.
"""

from __future__ import annotations

from typing import Protocol

from llm_perf_opt.analyses.cost.counted import SOURCE as COUNTED
from llm_perf_opt.api.costing import QUICK_SOURCES, CostRequest, CostRun, cost_of
from llm_perf_opt.api.static_analysis.static_config import (
    AnalysisConfig,
    AnalysisInputs,
    adapter_with_sizes,
    prepared,
    released_mode,
)
from llm_perf_opt.api.static_analysis.static_results import (
    StageAnalysisResult,
    StaticComputeReport,
    isolated_only,
    report_of_run,
    stages_of,
    total_of,
    without_fallback,
)
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import ModelAdapter

ISOLATED_SOURCES = ("torch-counter", "fvcore")


class HasAdapter(Protocol):
    """A session, as far as it must be one; its `dtype` and `attention` are taken over where it has any."""

    @property
    def adapter(self) -> ModelAdapter:
        """What gives the targets of the session's model, without weights."""
        ...


class StaticAnalyzer:
    """Asks every source but the export about the model of a session; what was asked once is not asked again.

    Prepare inputs first, or give each method a configuration.
    """

    def __init__(self, session: HasAdapter) -> None:
        self.session = session
        self._inputs: AnalysisInputs | None = None
        self._runs: dict[tuple[str, ...], CostRun] = {}

    def prepare_inputs(self, config: AnalysisConfig) -> AnalysisInputs:
        """The targets that the other methods then look at; what the model cannot mean is refused here."""
        adapter, mode = self._adapter_and_mode(config)
        self._inputs = prepared(config, adapter, mode, self.session)
        self._runs.clear()
        return self._inputs

    def analyze_full_model(self, config: AnalysisConfig | None = None) -> StageAnalysisResult:
        """The whole run as one, counted from a weightless trace of it."""
        return total_of(self._run((COUNTED,), config).static)

    def analyze_stage_isolated(self, stage: str, config: AnalysisConfig | None = None) -> StageAnalysisResult:
        """One stage by itself, with the shapes of the whole run, under torch's counter and fvcore."""
        if config is not None:
            self.prepare_inputs(config)
        run = self._runs.get(QUICK_SOURCES) or self._run(ISOLATED_SOURCES, None)
        stages = {figures.name: figures for figures in run.static.stages}
        if stage not in stages:
            raise UsageError(f"No stage {stage!r} ran.", why=f"stages: {', '.join(stages)}", fix="choose one of these")
        return isolated_only(stages[stage])

    def analyze_all_stages(self, config: AnalysisConfig | None = None) -> dict[str, StageAnalysisResult]:
        """Every stage by name, from every source but the export."""
        return stages_of(self._run(QUICK_SOURCES, config).static)

    def generate_report(self, config: AnalysisConfig | None = None) -> StaticComputeReport:
        """Everything that is known, ready to be written."""
        run = self._run(QUICK_SOURCES, config)
        return report_of_run(self._prepared(), run)

    def _adapter_and_mode(self, config: AnalysisConfig) -> tuple[ModelAdapter, str | None]:
        return adapter_with_sizes(config, self.session.adapter)

    def _prepared(self) -> AnalysisInputs:
        if self._inputs is None:
            raise UsageError(
                "Nothing is prepared.",
                why="the analyzer was not told what to run",
                fix="call prepare_inputs(AnalysisConfig(...)) first, or give a configuration",
            )
        return self._inputs

    def _run(self, sources: tuple[str, ...], config: AnalysisConfig | None) -> CostRun:
        inputs = self._prepared() if config is None else self.prepare_inputs(config)
        if sources not in self._runs:
            request = CostRequest(model=inputs.targets[0].model, workload=inputs.workload)
            run = cost_of(inputs.adapter, request, sources)
            self._runs[sources] = run if inputs.config.use_analytic_fallback else without_fallback(run)
        return self._runs[sources]


class DeepseekOCRStaticAnalyzer(StaticAnalyzer):
    """The same for DeepSeek-OCR; a folder that runs its own code has the image modes of the released inference."""

    def _adapter_and_mode(self, config: AnalysisConfig) -> tuple[ModelAdapter, str | None]:
        return released_mode(config, self.session.adapter, "deepseek-ocr")
