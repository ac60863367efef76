"""Small measurements that tell how fast a machine is at each kind of work."""

from llm_perf_opt.runs.calibration.calibrate import calibrate, device_name
from llm_perf_opt.runs.calibration.combine import combined

__all__ = ["calibrate", "combined", "device_name"]
