"""Is the schedule of a replay that of the real engine? Recorded runs of vLLM's engine for processors, replayed."""
