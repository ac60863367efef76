"""Weightless execution: unmodified model code at full size, with no weights and no GPU."""

from llm_perf_opt.weightless.engine import Engine
from llm_perf_opt.weightless.ghost import Ghost
from llm_perf_opt.weightless.oracle import Limits, Oracle
from llm_perf_opt.weightless.refusal import Refusal
from llm_perf_opt.weightless.routing import (
    BalancedRouting,
    OneExpertRouting,
    RandomRouting,
    ReplayRouting,
    RoutingPolicy,
    UniformRouting,
    routing_policy,
)

__all__ = [
    "BalancedRouting",
    "Engine",
    "Ghost",
    "Limits",
    "OneExpertRouting",
    "Oracle",
    "RandomRouting",
    "Refusal",
    "ReplayRouting",
    "RoutingPolicy",
    "UniformRouting",
    "routing_policy",
]
