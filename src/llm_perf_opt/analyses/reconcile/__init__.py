"""Sources of figures held against each other: every difference with its cause, or marked as unexplained."""

from llm_perf_opt.analyses.reconcile.explain import CAUSES, Cause, Explanation
from llm_perf_opt.analyses.reconcile.ledger import Difference, Ledger, reconcile
from llm_perf_opt.analyses.reconcile.other_figures import FIGURES, FigureDifference, SingleSource

__all__ = [
    "CAUSES",
    "FIGURES",
    "Cause",
    "Difference",
    "Explanation",
    "FigureDifference",
    "Ledger",
    "SingleSource",
    "reconcile",
]
