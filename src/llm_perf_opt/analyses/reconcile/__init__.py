"""Sources of figures compared: every difference with its cause, or marked as unexplained."""

from llm_perf_opt.analyses.reconcile.explain import CAUSES, CountingCause, FlopsExplanation
from llm_perf_opt.analyses.reconcile.ledger import (
    FIGURES,
    FigureDifference,
    FlopsDifference,
    Ledger,
    SingleSource,
    reconcile,
)

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
