"""Times of kernels from tables that others measured on GPUs: matmuls, attention, experts, collectives."""
