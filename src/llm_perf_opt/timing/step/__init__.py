"""One step of a serving engine: its blocks, its kernels, its time, and the table of it."""
