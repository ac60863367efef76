"""Training: the work and the memory of one step of a model's own code."""
