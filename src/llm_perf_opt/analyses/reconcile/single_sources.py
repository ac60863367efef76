"""Figures that only one source gives: nothing was compared, so nothing about them is explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.reconcile.explain import WHOLE_FAMILY
from llm_perf_opt.analyses.reconcile.other_figures import FIGURES
from llm_perf_opt.testimony import BlindSpot, Family, Testimony, family_of, flops_in

_MISSING = frozenset(
    {"fused-attention-uncounted", "grouped-product-uncounted", "op-without-formula", "outside-isolated-modules"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSource:
    """One figure of one stage with one source. `family` tells which operators, where the figure is FLOPs."""

    phase: str
    stage: str
    figure: str  # "flops", or one of `FIGURES`
    family: Family | None
    source: str
    value: int


def single_sources(sources: Sequence[Testimony]) -> Iterator[SingleSource]:
    """Of the sources that speak of one stage: every family of operators and every other figure that one alone gives."""
    for family in dict.fromkeys(
        operator.family for source in sources for operator in source.operators if operator.flops
    ):
        telling = [source for source in sources if _tells(source, family)]
        if family is not Family.OTHER and len(telling) == 1:
            yield _single(telling[0], "flops", family, flops_in(telling[0], family))
    for figure in FIGURES:
        values = [(source, getattr(source, figure)) for source in sources if getattr(source, figure) is not None]
        if len(values) == 1:
            yield _single(values[0][0], figure, None, values[0][1])


def _single(source: Testimony, figure: str, family: Family | None, value: int) -> SingleSource:
    return SingleSource(
        phase=source.phase, stage=source.stage, figure=figure, family=family, source=source.source, value=value
    )


def _tells(source: Testimony, family: Family) -> bool:
    """Whether the figure of a source holds the work of these operators, fused or as the products they stand for."""
    return source.flops is not None and not any(_hides(spot, family) for spot in source.blind_spots)


def _hides(spot: BlindSpot, family: Family) -> bool:
    """Whether the work that a source left out may be of this family; what it left out is of no size if that is zero."""
    if spot.cause not in _MISSING or spot.flops == 0:
        return False
    is_anything = spot.flops is None and family_of(spot.operator) is Family.OTHER
    return is_anything or WHOLE_FAMILY.get(spot.cause, family_of(spot.operator)) is family
