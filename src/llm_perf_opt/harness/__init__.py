"""Running a target: on ghosts or real tensors, watched by a tracer, timed by a clock."""
