"""Many points at once: a trace as a function of its workload, grids and studies."""
