"""Small measurements that tell how fast a machine is at each kind of work."""

from llm_perf_opt.labs.calibrate.calibrate import calibrate, combined, device_name

__all__ = ["calibrate", "combined", "device_name"]
