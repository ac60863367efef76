"""Real runs of a session on a device: timed, profiled, watched from outside."""
