"""The real engine on this machine's processor next to a replay with the step times of its calibration."""
