"""Figures besides FLOPs: weights, activations, bytes, cache; and those that only one source gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.causes import Explained, Explanation
from llm_perf_opt.analyses.reconcile.explain import WHOLE_FAMILY, policies, sent_apart
from llm_perf_opt.core.source_figures import (
    BlindSpot,
    OperatorFigure,
    SourceFigures,
    WorkFamily,
    family_of,
    flops_in,
    operator_name,
)

FIGURES = (
    "parameters",
    "active_parameters",
    "activations",
    "bytes_moved",
    "weight_bytes",
    "kv_cache_bytes",
    "kv_bytes_per_token",
)
_LEAVES_OUT = ("grouped-product-uncounted", "op-without-formula", "outside-isolated-modules")  # whole ops
_BY_EXPERTS = ("active_parameters", "bytes_moved")  # they depend on which experts got tokens

_BY_STORAGE = ("bytes_moved", "weight_bytes", "kv_cache_bytes", "kv_bytes_per_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference(Explained):
    """Two sources on one figure of one stage, in its own unit; where they agree there is nothing to explain."""

    phase: str
    stage: str
    figure: str  # one of `FIGURES`
    left: str
    right: str
    left_value: int
    right_value: int

    @property
    def difference(self) -> int:
        """How much more the left source gives; negative where the right one does."""
        return self.left_value - self.right_value

    @property
    def is_unexplained(self) -> bool:
        """Whether they differ and no cause is known."""
        return self.difference != 0 and self.cause is None


def compared_figures(left: SourceFigures, right: SourceFigures) -> Iterator[FigureDifference]:
    """One entry per figure that both sources give."""
    for figure in FIGURES:
        left_value, right_value = getattr(left, figure), getattr(right, figure)
        if left_value is not None and right_value is not None:
            yield FigureDifference(
                phase=left.phase,
                stage=left.stage,
                figure=figure,
                left=left.source,
                right=right.source,
                left_value=left_value,
                right_value=right_value,
                explanation=None if left_value == right_value else _explanation(figure, left, right),
            )


def _explanation(figure: str, left: SourceFigures, right: SourceFigures) -> Explanation | None:
    if figure in _BY_STORAGE and left.stored_as != right.stored_as and _is_explained_by_formats(figure, left, right):
        detail = f"{left.source}: {_stored(left)}; {right.source}: {_stored(right)}"
        return Explanation(cause="stored-format", detail=detail)
    if figure in _BY_EXPERTS and sent_apart(left, right):
        return Explanation(cause="routing", detail=policies(left, right))
    if figure == "activations":
        more, less = (left, right) if (left.activations or 0) > (right.activations or 0) else (right, left)
        return _left_out(more, less)
    return None


def _is_explained_by_formats(figure: str, left: SourceFigures, right: SourceFigures) -> bool:
    """Bytes moved must agree once weights count as the code holds them; a format of the cache cannot be undone so."""
    is_cache = any("cache" in (side.stored_as or "") for side in (left, right))
    if figure != "bytes_moved" or is_cache or left.bytes_as_held is right.bytes_as_held is None:
        return True
    held = [side.bytes_moved if side.bytes_as_held is None else side.bytes_as_held for side in (left, right)]
    return held[0] == held[1]


def _stored(side: SourceFigures) -> str:
    return side.stored_as or "in the types of the workload"


def _left_out(more: SourceFigures, less: SourceFigures) -> Explanation | None:
    """Ops that `less` leaves out of its FLOPs are not in its activations: as many as `more` has for them may lack."""
    gap = (more.activations or 0) - (less.activations or 0)
    spots = [spot for spot in less.blind_spots if spot.cause in _LEAVES_OUT]
    lacking = [operator for operator in more.operators if any(_is_of(operator, spot) for spot in spots)]
    if not spots or gap > sum(operator.activations or 0 for operator in lacking):
        return None
    detail = f"{less.source} leaves out {', '.join(spot.operator for spot in spots)}"
    return Explanation(cause=spots[0].cause, detail=detail)


def _is_of(operator: OperatorFigure, spot: BlindSpot) -> bool:
    """Whether the op of a blind spot is one that another source lists, by its name or its family."""
    is_same_family = family_of(spot.operator) is operator.family is not WorkFamily.OTHER
    return is_same_family or operator_name(operator.name) == operator_name(spot.operator)


_MISSING = frozenset(
    {"fused-attention-uncounted", "grouped-product-uncounted", "op-without-formula", "outside-isolated-modules"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSource:
    """One figure of one stage with one source. `family` is that of the operators, where the figure is FLOPs."""

    phase: str
    stage: str
    figure: str  # "flops", or one of `FIGURES`
    family: WorkFamily | None
    source: str
    value: int


def single_sources(sources: Sequence[SourceFigures]) -> Iterator[SingleSource]:
    """Of the sources that speak of one stage: every family of operators and every other figure that one alone gives."""
    for family in dict.fromkeys(
        operator.family for source in sources for operator in source.operators if operator.flops
    ):
        telling = [source for source in sources if _tells(source, family)]
        if family is not WorkFamily.OTHER and len(telling) == 1:
            yield _single(telling[0], "flops", family, flops_in(telling[0], family))
    for figure in FIGURES:
        values = [(source, getattr(source, figure)) for source in sources if getattr(source, figure) is not None]
        if len(values) == 1:
            yield _single(values[0][0], figure, None, values[0][1])


def _single(source: SourceFigures, figure: str, family: WorkFamily | None, value: int) -> SingleSource:
    return SingleSource(
        phase=source.phase, stage=source.stage, figure=figure, family=family, source=source.source, value=value
    )


def _tells(source: SourceFigures, family: WorkFamily) -> bool:
    """Whether the figure of a source holds the work of these operators, fused or as the products they stand for."""
    return source.flops is not None and not any(_hides(spot, family) for spot in source.blind_spots)


def _hides(spot: BlindSpot, family: WorkFamily) -> bool:
    """Whether the work that a source left out may be of this family; what it left out is of no size if that is zero."""
    if spot.cause not in _MISSING or spot.flops == 0:
        return False
    is_anything = spot.flops is None and family_of(spot.operator) is WorkFamily.OTHER
    return is_anything or WHOLE_FAMILY.get(spot.cause, family_of(spot.operator)) is family
