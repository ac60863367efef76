"""Times of kernels from tables that others measured on GPUs: matrix products, attention, experts, exchanges."""
