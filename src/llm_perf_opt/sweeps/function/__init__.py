"""A trace as a function of its workload: one program, whose dimensions are exact expressions of batch and lengths."""
