"""Runs with a clock: stages, operators, peak memory, and Nsight around a process of its own."""
