"""Pricing: what one op costs, from its name, shapes and arguments alone."""

from llm_perf_opt.analyses.pricing.flops_bound import flops_bound
from llm_perf_opt.analyses.pricing.op_cost import OpCost
from llm_perf_opt.analyses.pricing.price import price

__all__ = ["OpCost", "price", "flops_bound"]
