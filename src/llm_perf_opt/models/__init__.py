"""One folder per model: each turns a workload into targets, and none knows another."""
