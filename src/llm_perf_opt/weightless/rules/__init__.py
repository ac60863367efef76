"""Rules for ops that need values, or have a wrong, missing or slow meta kernel: one file per family."""

import llm_perf_opt.weightless.rules.attention
import llm_perf_opt.weightless.rules.casts
import llm_perf_opt.weightless.rules.factories
import llm_perf_opt.weightless.rules.indexing
import llm_perf_opt.weightless.rules.scalars
import llm_perf_opt.weightless.rules.selection  # noqa: F401  each registers its rules
from llm_perf_opt.weightless.rules.registry import REAL_RULES, SHAPE_RULES, VALUE_RULES

__all__ = ["REAL_RULES", "SHAPE_RULES", "VALUE_RULES"]
