"""Sources of figures compared: every difference with its cause, or marked as unexplained."""

from llm_perf_opt.analyses.reconcile.explain import CAUSES, CountingCause, FlopsExplanation
from llm_perf_opt.analyses.reconcile.ledger import FlopsDifference, Ledger, reconcile
from llm_perf_opt.analyses.reconcile.other_figures import FIGURES, FigureDifference, SingleSource

__all__ = [
    "CAUSES",
    "FIGURES",
    "CountingCause",
    "FlopsDifference",
    "FlopsExplanation",
    "FigureDifference",
    "Ledger",
    "SingleSource",
    "reconcile",
]
