"""What a multimodal LLM runs and what it costs, from the model's own code: no weights, no GPU, no edits.

The names below are what scripts use. Each is loaded when it is first asked for: importing the package loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_perf_opt.api.static_analysis.static_analyzer import DeepseekOCRStaticAnalyzer, StaticAnalyzer
    from llm_perf_opt.api.static_analysis.static_config import AnalysisConfig
    from llm_perf_opt.api.static_analysis.static_results import (
        StageAnalysisResult,
        StaticComputeReport,
        write_static_compute_fvcore_table,
        write_static_compute_json,
        write_static_compute_markdown,
    )
    from llm_perf_opt.api.traces import Trace, load, trace
    from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession

__version__ = "0.1.0"

__all__ = [
    "trace",
    "load",
    "Trace",
    "DeepSeekOCRSession",
    "AnalysisConfig",
    "StaticAnalyzer",
    "DeepseekOCRStaticAnalyzer",
    "StageAnalysisResult",
    "StaticComputeReport",
    "write_static_compute_json",
    "write_static_compute_markdown",
    "write_static_compute_fvcore_table",
    "__version__",
]

_HOMES = {
    "trace": "api.traces",
    "load": "api.traces",
    "Trace": "api.traces",
    "DeepSeekOCRSession": "models.deepseek_ocr.session",
    "AnalysisConfig": "api.static_analysis.static_config",
    "StaticAnalyzer": "api.static_analysis.static_analyzer",
    "DeepseekOCRStaticAnalyzer": "api.static_analysis.static_analyzer",
    "StageAnalysisResult": "api.static_analysis.static_results",
    "StaticComputeReport": "api.static_analysis.static_results",
    "write_static_compute_json": "api.static_analysis.static_results",
    "write_static_compute_markdown": "api.static_analysis.static_results",
    "write_static_compute_fvcore_table": "api.static_analysis.static_results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
