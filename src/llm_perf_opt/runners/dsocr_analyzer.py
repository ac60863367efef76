"""`DeepseekOCRStaticAnalyzer` and `AnalysisConfig` live in `llm_perf_opt`."""

from llm_perf_opt.api.static_analysis import (
    AnalysisConfig,
    DeepseekOCRStaticAnalyzer,
    StageAnalysisResult,
    StaticComputeReport,
)

__all__ = ["AnalysisConfig", "DeepseekOCRStaticAnalyzer", "StageAnalysisResult", "StaticComputeReport"]
