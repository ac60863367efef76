"""Traces as functions of their workload, compared with fresh traces at many points."""
