"""From a trace and a device: how long each stage would take, as a bound and a band, never as a bare number."""

from llm_perf_opt.analyses.prediction.band import Band
from llm_perf_opt.analyses.prediction.predict import Execution, StagePrediction, predict_stages, total_wall
from llm_perf_opt.analyses.prediction.prediction_report import prediction_report
from llm_perf_opt.analyses.prediction.works import StageWork, stage_works

__all__ = [
    "Band",
    "Execution",
    "StagePrediction",
    "StageWork",
    "predict_stages",
    "prediction_report",
    "stage_works",
    "total_wall",
]
