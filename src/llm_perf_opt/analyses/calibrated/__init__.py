"""Times predicted from a trace and the calibration of a machine."""

from llm_perf_opt.analyses.calibrated.calibrated_report import calibrated_report
from llm_perf_opt.analyses.calibrated.predict import OpTime, StageTime, predict_stages

__all__ = ["OpTime", "StageTime", "calibrated_report", "predict_stages"]
