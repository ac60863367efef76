"""Capacity: how long requests wait, what the bottleneck is, what a fleet costs, and how small it can be."""
