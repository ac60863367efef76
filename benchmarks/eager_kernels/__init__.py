"""Eager PyTorch on real GPUs: recorded kernels beside those of a weightless trace, one by one."""
