"""Is the schedule of a replay equal to the real engine's? Recorded runs of vLLM's engine for processors, replayed."""
