"""Budgets: `prefill.flops<=+1%` says how much of a figure the right side may have, alone or against the left."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import eq, ge, gt, le, lt
from types import MappingProxyType

from llm_perf_opt.analyses.comparison.stage_pairs import StagePair
from llm_perf_opt.analyses.stage_costs import StageCost
from llm_perf_opt.errors import UsageError

Relation = Callable[[Fraction, Fraction], bool]

RELATIONS: MappingProxyType[str, Relation] = MappingProxyType({"<=": le, ">=": ge, "==": eq, "<": lt, ">": gt})
METRICS: MappingProxyType[str, Callable[[StageCost], int | None]] = MappingProxyType(
    {
        "flops": lambda cost: cost.flops,
        "macs": lambda cost: cost.macs,
        "bytes": lambda cost: cost.bytes_moved,
        "parameters": lambda cost: cost.parameters,
        "activation_bytes": lambda cost: cost.activation_bytes,
        "calls": lambda cost: cost.calls,
        "ops": lambda cost: cost.ops,
    }
)
_GRAMMAR = re.compile(
    r"\s*(?P<stage>[^<>=]+)\.(?P<metric>\w+)\s*(?P<relation><=|>=|==|<|>)"
    r"\s*(?P<sign>[+-]?)(?P<amount>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*(?P<percent>%?)\s*"
)
_EXAMPLES = '"prefill.flops<=+1%", "total.bytes<=1e12", "decode.calls<=+0", "sam.ops=="'


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit on one figure of the right side: an amount, or what the left side has plus an amount or a share of it."""

    text: str
    stage: str
    metric: str
    relation: str
    amount: Fraction
    share: Fraction  # of what the left side has

    def limit(self, left: int | None) -> Fraction | None:
        """The amount that the right side is held to; None where it depends on a left side that is not known."""
        if not self.share:
            return self.amount
        return None if left is None else self.share * left + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A budget and the figures it was held against. What is not known cannot be shown to hold, so it does not."""

    budget: Budget
    left: int | None
    right: int | None
    limit: Fraction | None

    @property
    def holds(self) -> bool:
        """Whether the right side keeps to the budget."""
        if self.right is None or self.limit is None:
            return False
        return RELATIONS[self.budget.relation](Fraction(self.right), self.limit)


def parse_budget(text: str) -> Budget:
    """Read a budget; its stage is looked up later, when the traces are known."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise _refusal(text, "a budget is STAGE.METRIC, a relation and an amount")
    _require_known("metric", match["metric"], METRICS)
    sign, amount, percent = match["sign"], match["amount"], match["percent"]
    if amount is None:
        if match["relation"] != "==" or sign or percent:
            raise _refusal(text, "only == may stand alone, for the same as the left side")
        value, share = Fraction(0), Fraction(1)
    elif percent and not sign:
        raise _refusal(text, f"{amount}% could mean a share or a change; write +{amount}% for a change")
    elif percent:
        value, share = Fraction(0), 1 + Fraction(sign + amount) / 100
    else:
        value, share = Fraction(sign + amount), Fraction(1 if sign else 0)
    return Budget(
        text=text.strip(),
        stage=match["stage"],
        metric=match["metric"],
        relation=match["relation"],
        amount=value,
        share=share,
    )


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is no budget.", why=why, fix=f"write it like one of {_EXAMPLES}")


def check_budget(budget: Budget, stages: Mapping[str, StagePair]) -> Verdict:
    """Hold a budget against the stages by name."""
    _require_known("stage", budget.stage, stages)
    pair = stages[budget.stage]
    figure = METRICS[budget.metric]
    left, right = (None if cost is None else figure(cost) for cost in (pair.left, pair.right))
    return Verdict(budget=budget, left=left, right=right, limit=budget.limit(left))


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise UsageError(
            f"No {kind} named {name!r} to hold a budget against.",
            why=f"known {kind}s: {', '.join(known)}",
            fix=f"did you mean {close[0]!r}?" if close else "pick one of the known names",
        )
