"""A recording of a GPU on the priced graph: each kernel to the op and module that the trace says launched it."""
