"""Sources of figures compared: every difference with its cause, or marked as unexplained."""

from llm_perf_opt.costs.reconcile.ledger import (
    CAUSES,
    FIGURES,
    CountingCause,
    FigureDifference,
    FlopsDifference,
    FlopsExplanation,
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
