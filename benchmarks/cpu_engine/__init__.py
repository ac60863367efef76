"""The real engine on this machine's processor beside a replay with the step times of its calibration."""
