"""What a multimodal LLM runs and what it costs, from the model's own code: no weights, no GPU, no edits.

The names below are what scripts use. Each is loaded when it is first asked for: importing the package loads no torch.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as type checkers know it; `typing` would take most of the time of this import
if TYPE_CHECKING:
    from typing import Any

    from llm_perf_opt.api.advise import AdviceAnswer
    from llm_perf_opt.api.answer import Answer
    from llm_perf_opt.api.ask import AskAnswer, ask, study_page
    from llm_perf_opt.api.calibration import CalibrationAnswer, calibrate
    from llm_perf_opt.api.capacity import CapacityAnswer, capacity
    from llm_perf_opt.api.catalogue import InstallationAnswer, ModelsAnswer, doctor, known_models
    from llm_perf_opt.api.comparison import ComparisonAnswer
    from llm_perf_opt.api.cost import CostAnswer
    from llm_perf_opt.api.devices import ClusterAnswer, DeviceAnswer, DevicesAnswer, cluster, device, devices
    from llm_perf_opt.api.export import ExportAnswer, export
    from llm_perf_opt.api.graph import GraphAnswer
    from llm_perf_opt.api.join import JoinAnswer
    from llm_perf_opt.api.memory import MemoryAnswer
    from llm_perf_opt.api.pages import PagesAnswer, pages
    from llm_perf_opt.api.per_rank import RanksAnswer
    from llm_perf_opt.api.prediction import PredictionAnswer
    from llm_perf_opt.api.profile import ProfileAnswer, profile
    from llm_perf_opt.api.result_files import read_result
    from llm_perf_opt.api.serve import ServeAnswer, serve
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.static_analysis import (
        AnalysisConfig,
        DeepseekOCRStaticAnalyzer,
        StageAnalysisResult,
        StaticAnalyzer,
        StaticComputeReport,
        write_static_compute_fvcore_table,
        write_static_compute_json,
        write_static_compute_markdown,
    )
    from llm_perf_opt.api.study import StudyAnswer, study
    from llm_perf_opt.api.sweep import SweepAnswer
    from llm_perf_opt.api.trace import Trace
    from llm_perf_opt.api.trace_function import TraceFunction
    from llm_perf_opt.api.traced_step import StepAnswer, StepTrace
    from llm_perf_opt.api.tracing import cost, load, load_function, sweep, trace
    from llm_perf_opt.api.train import TrainAnswer, train
    from llm_perf_opt.api.what_if import AttentionAnswer
    from llm_perf_opt.api.whole_report import WholeReport
    from llm_perf_opt.core.hardware import device_template
    from llm_perf_opt.core.work_limits import limits
    from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession

__version__ = "0.1.0"

__all__ = [
    "trace",
    "load",
    "load_function",
    "read_result",
    "cost",
    "pages",
    "sweep",
    "study",
    "ask",
    "study_page",
    "serve",
    "train",
    "capacity",
    "export",
    "profile",
    "devices",
    "device",
    "cluster",
    "device_template",
    "limits",
    "calibrate",
    "known_models",
    "doctor",
    "Trace",
    "TraceFunction",
    "StepTrace",
    "Answer",
    "StepAnswer",
    "StagesAnswer",
    "CostAnswer",
    "PagesAnswer",
    "SweepAnswer",
    "TrainAnswer",
    "MemoryAnswer",
    "PredictionAnswer",
    "RanksAnswer",
    "StudyAnswer",
    "AskAnswer",
    "ServeAnswer",
    "CapacityAnswer",
    "AttentionAnswer",
    "AdviceAnswer",
    "GraphAnswer",
    "ExportAnswer",
    "JoinAnswer",
    "ComparisonAnswer",
    "ProfileAnswer",
    "WholeReport",
    "DevicesAnswer",
    "DeviceAnswer",
    "ClusterAnswer",
    "CalibrationAnswer",
    "ModelsAnswer",
    "InstallationAnswer",
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
    "trace": "api.tracing",
    "load": "api.tracing",
    "load_function": "api.tracing",
    "read_result": "api.result_files",
    "profile": "api.profile",
    "ProfileAnswer": "api.profile",
    "cost": "api.tracing",
    "pages": "api.pages",
    "PagesAnswer": "api.pages",
    "sweep": "api.tracing",
    "SweepAnswer": "api.sweep",
    "train": "api.train",
    "TrainAnswer": "api.train",
    "StepAnswer": "api.traced_step",
    "StepTrace": "api.traced_step",
    "study": "api.study",
    "StudyAnswer": "api.study",
    "ask": "api.ask",
    "AskAnswer": "api.ask",
    "study_page": "api.ask",
    "serve": "api.serve",
    "ServeAnswer": "api.serve",
    "capacity": "api.capacity",
    "CapacityAnswer": "api.capacity",
    "RanksAnswer": "api.per_rank",
    "export": "api.export",
    "devices": "api.devices",
    "device": "api.devices",
    "cluster": "api.devices",
    "ClusterAnswer": "api.devices",
    "device_template": "core.hardware",
    "limits": "core.work_limits",
    "calibrate": "api.calibration",
    "known_models": "api.catalogue",
    "doctor": "api.catalogue",
    "Trace": "api.trace",
    "TraceFunction": "api.trace_function",
    "Answer": "api.answer",
    "StagesAnswer": "api.stages",
    "CostAnswer": "api.cost",
    "MemoryAnswer": "api.memory",
    "PredictionAnswer": "api.prediction",
    "AttentionAnswer": "api.what_if",
    "AdviceAnswer": "api.advise",
    "GraphAnswer": "api.graph",
    "ExportAnswer": "api.export",
    "JoinAnswer": "api.join",
    "ComparisonAnswer": "api.comparison",
    "WholeReport": "api.whole_report",
    "DevicesAnswer": "api.devices",
    "DeviceAnswer": "api.devices",
    "CalibrationAnswer": "api.calibration",
    "ModelsAnswer": "api.catalogue",
    "InstallationAnswer": "api.catalogue",
    "DeepSeekOCRSession": "models.deepseek_ocr.session",
    "AnalysisConfig": "api.static_analysis",
    "StaticAnalyzer": "api.static_analysis",
    "DeepseekOCRStaticAnalyzer": "api.static_analysis",
    "StageAnalysisResult": "api.static_analysis",
    "StaticComputeReport": "api.static_analysis",
    "write_static_compute_json": "api.static_analysis",
    "write_static_compute_markdown": "api.static_analysis",
    "write_static_compute_fvcore_table": "api.static_analysis",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What scripts use; what this module itself needs is none of it."""
    return sorted(__all__)
