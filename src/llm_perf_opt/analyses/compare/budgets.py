"""Budgets on a comparison, such as `prefill.flops<=+1%`, `decode.time<=12ms` and `cache<=+2GiB`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import eq, ge, gt, le, lt
from types import MappingProxyType

from llm_perf_opt.analyses.compare.budget_figures import CACHE, KINDS, METRICS, TIMES, BudgetFigures, SideFigure
from llm_perf_opt.analyses.compare.stage_pairs import TOTAL
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Kind

Relation = Callable[[Fraction, Fraction], bool]

RELATIONS: MappingProxyType[str, Relation] = MappingProxyType({"<=": le, ">=": ge, "==": eq, "<": lt, ">": gt})
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
UNITS: Mapping[Kind, Mapping[str, Fraction]] = MappingProxyType(  # as reports print them; no unit is the first of each
    {
        Kind.COUNT: {},
        Kind.FLOPS: {f"{prefix}FLOP": Fraction(size) for prefix, size in _DECIMAL.items()},
        Kind.MACS: {f"{prefix}MAC": Fraction(size) for prefix, size in _DECIMAL.items()},
        Kind.BYTES: {f"{prefix}B": Fraction(size) for prefix, size in (_DECIMAL | _BINARY).items()},
        Kind.SECONDS: {
            unit: Fraction(1, size) for unit, size in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
        },
    }
)
_GRAMMAR = re.compile(
    r"\s*(?:(?P<stage>[^<>=]+)\.)?(?P<metric>\w+)\s*(?P<relation><=|>=|==|<|>)"
    r"\s*(?P<sign>[+-]?)(?P<amount>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*(?P<unit>%|[A-Za-z]*)\s*"
)
_MOST_EXPONENT = 40  # beyond every figure there is; a larger one would only take time
_EXAMPLES = '"prefill.flops<=+1%", "total.bytes<=50GB", "decode.time<=+3%", "peak_memory<=20GiB", "sam.ops=="'


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit on one figure of the right side: an amount, or what the left side has plus an amount or a share of it."""

    text: str
    stage: str
    metric: str
    relation: str
    amount: Fraction  # in FLOPs, bytes, seconds or a count
    share: Fraction  # of what the left side has

    @property
    def kind(self) -> Kind:
        """What the figure is, hence its unit."""
        return KINDS[self.metric]

    @property
    def is_time(self) -> bool:
        """Whether a device must be known."""
        return self.metric in TIMES

    def limit(self, left: int | float | None) -> Fraction | None:
        """The most or least that the right side may have; None where it depends on a left side that is not known."""
        if not self.share:
            return self.amount
        return None if left is None else self.share * Fraction(left) + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck:
    """A budget and the figures it was checked on. What is not known cannot be shown to hold, so it does not.

    `why` says what is not known, and on which side; empty: everything that the budget needs is.
    """

    budget: Budget
    left: int | float | None
    right: int | float | None
    limit: Fraction | None
    why: str = ""

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
        raise _refusal(text, "a budget is STAGE.METRIC or METRIC, a relation and an amount")
    metric, stage = match["metric"], match["stage"] or TOTAL
    _require_known("metric", metric, METRICS)
    if metric == CACHE and stage != TOTAL:
        raise _refusal(text, "the cache belongs to the run and to no stage: write cache alone")
    value, share = _amount(text, match)
    return Budget(text=text.strip(), stage=stage, metric=metric, relation=match["relation"], amount=value, share=share)


def _amount(text: str, match: re.Match[str]) -> tuple[Fraction, Fraction]:
    """What is allowed beside a share of the left side, and that share."""
    sign, amount, unit = match["sign"], match["amount"], match["unit"]
    if amount is None:
        if match["relation"] != "==" or sign or unit:
            raise _refusal(text, "only == may stand alone, for the same as the left side")
        return Fraction(0), Fraction(1)
    if abs(int(re.split("[eE]", f"{amount}e0")[1])) > _MOST_EXPONENT:
        raise _refusal(text, f"the exponent of {amount} is beyond every figure")
    if unit == "%":
        if not sign:
            raise _refusal(text, f"{amount}% could mean a share or a change; write +{amount}% for a change")
        return Fraction(0), 1 + Fraction(sign + amount) / 100
    return Fraction(sign + amount) * _size_of(text, unit, match["metric"]), Fraction(1 if sign else 0)


def _size_of(text: str, unit: str, metric: str) -> Fraction:
    """How many FLOPs, bytes or seconds one of a unit is; a bare number is in these already."""
    known = UNITS[KINDS[metric]]
    if not unit:
        return Fraction(1)
    if unit not in known:
        named = f"units of {metric} are {', '.join(known)}" if known else f"{metric} has no unit"
        raise _refusal(text, f"{unit} is no unit of {metric}: {named}")
    return known[unit]


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is no budget.", why=why, fix=f"write it like one of {_EXAMPLES}")


def check_budget(budget: Budget, figures: BudgetFigures) -> BudgetCheck:
    """Check a budget on the figures of both sides."""
    _require_known("stage", budget.stage, figures.stages)
    left, right = figures.both(budget.metric, budget.stage)
    return BudgetCheck(
        budget=budget,
        left=left.value,
        right=right.value,
        limit=budget.limit(left.value),
        why="; ".join(_holes(budget, left, right)),
    )


def _holes(budget: Budget, left: SideFigure, right: SideFigure) -> Iterator[str]:
    """What is not known of those figures that the budget needs."""
    if right.value is None:
        yield f"B is not known: {right.why}"
    if left.value is None and budget.share:
        yield f"A is not known: {left.why}"


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise UsageError(
            f"No {kind} named {name!r} to hold a budget against.",
            why=f"known {kind}s: {', '.join(known)}",
            fix=f"did you mean {close[0]!r}?" if close else "pick one of the known names",
        )
