"""A trace as a function of its workload: one program with dimensions that are exact forms of batch and lengths."""
