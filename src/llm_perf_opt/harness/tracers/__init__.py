"""Tracers: each runs a target in its own way and fills the same call graph."""
