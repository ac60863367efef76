"""A call graph folded into families of modules, `for N` and `parfor N`, that still adds up."""

from llm_perf_opt.analyses.grouping.conservation import check_conservation
from llm_perf_opt.analyses.grouping.view import MAX_BOXES, group

__all__ = ["MAX_BOXES", "check_conservation", "group"]
