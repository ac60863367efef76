"""Rules for the ops that need values, or whose meta kernel is wrong, missing or slow: one file per family."""

from llm_perf_opt.weightless.rules import attention, casts, factories, indexing, layers, scalars, selection
from llm_perf_opt.weightless.rules.registry import REAL_RULES, SHAPE_RULES, VALUE_RULES

__all__ = [
    "REAL_RULES",
    "SHAPE_RULES",
    "VALUE_RULES",
    "attention",
    "casts",
    "factories",
    "indexing",
    "layers",
    "scalars",
    "selection",
]
