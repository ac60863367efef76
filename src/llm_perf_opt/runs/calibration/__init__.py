"""Small measurements that tell how fast a machine is at each kind of work."""

from llm_perf_opt.runs.calibration.calibrate import calibrate, device_name

__all__ = ["calibrate", "device_name"]
