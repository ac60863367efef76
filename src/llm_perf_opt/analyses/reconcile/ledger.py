"""The ledger: each pair of sources, stage by stage and family by family, with what explains their difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from llm_perf_opt.analyses.reconcile.explain import CAUSES, WHOLE_FAMILY, FlopsExplanation, explain, is_of_any_family
from llm_perf_opt.analyses.reconcile.other_figures import (
    FigureDifference,
    SingleSource,
    compared_figures,
    single_sources,
)
from llm_perf_opt.core.source_figures import BlindSpot, SourceFigures, WorkFamily, flops_in


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsDifference:
    """Two sources on one family of operators of one stage; `family` None means the stage as a whole.

    With no difference they agree. `one_source` names the only source that has a figure for these
    operators: the causes then name what the other leaves out, and nothing confirms the figure.
    """

    phase: str
    stage: str
    family: WorkFamily | None
    left: str
    right: str
    left_flops: int
    right_flops: int
    explanations: tuple[FlopsExplanation, ...]
    one_source: str | None = None

    @property
    def flops(self) -> int:
        """How much more the left source counts; negative where the right one does."""
        return self.left_flops - self.right_flops

    @property
    def unexplained_flops(self) -> int:
        """What is left when every explanation has taken its part; each may leave over a share of that part alone."""
        leftover = abs(self.flops) - sum(part.flops for part in self.explanations)
        allowed = sum(CAUSES[part.cause].tolerance * abs(part.flops) for part in self.explanations)
        return 0 if abs(leftover) <= allowed else leftover


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Every pair that could be compared, and the sources without figures, with the reason.

    `entries` are about FLOPs, `figures` about everything else that two sources give of one stage, and `single` about
    what one source alone gives.
    """

    entries: tuple[FlopsDifference, ...]
    figures: tuple[FigureDifference, ...]
    missing: tuple[tuple[str, str, str, str], ...]  # source, phase, stage, reason
    single: tuple[SingleSource, ...] = ()

    @property
    def differences(self) -> tuple[FlopsDifference, ...]:
        """The entries in which two sources do not agree."""
        return tuple(entry for entry in self.entries if entry.flops)

    @property
    def unexplained(self) -> tuple[FlopsDifference | FigureDifference, ...]:
        """Everything in which two sources differ and no cause accounts for it."""
        return (*self.unexplained_flops, *self.unexplained_figures)

    @property
    def unexplained_flops(self) -> tuple[FlopsDifference, ...]:
        """The entries on FLOPs with a rest that no cause accounts for."""
        return tuple(entry for entry in self.entries if entry.unexplained_flops)

    @property
    def unexplained_figures(self) -> tuple[FigureDifference, ...]:
        """The other figures that differ without a known cause."""
        return tuple(figure for figure in self.figures if figure.is_unexplained)


def reconcile(source_figures: Sequence[SourceFigures], *, context_tokens: int | None = None) -> Ledger:
    """Hold every pair of sources side by side, per stage; `context_tokens` is the length of the sequence, if known."""
    stages: dict[tuple[str, str], list[SourceFigures]] = {}
    missing = []
    for figures in source_figures:
        if figures.failure is not None:
            missing.append((figures.source, figures.phase, figures.stage, figures.failure))
        else:
            stages.setdefault((figures.phase, figures.stage), []).append(figures)
    pairs = [pair for sources in stages.values() for pair in combinations(_with_known_gaps(sources), 2)]
    single = tuple(found for sources in stages.values() for found in single_sources(sources))
    entries = (entry for left, right in pairs for entry in _entries(left, right, context_tokens))
    return Ledger(
        entries=tuple(replace(entry, one_source=_only_source(entry, single)) for entry in entries),
        single=single,
        figures=tuple(figure for left, right in pairs for figure in compared_figures(left, right)),
        missing=tuple(missing),
    )


def _only_source(entry: FlopsDifference, single: Sequence[SingleSource]) -> str | None:
    """The one source behind what two of them differ in; of a whole stage, behind what a cause leaves out."""
    if not entry.flops:
        return None
    families = {entry.family, *(WHOLE_FAMILY.get(part.cause) for part in entry.explanations)} - {None}
    for found in single:
        is_here = (found.phase, found.stage) == (entry.phase, entry.stage) and found.source in (entry.left, entry.right)
        if is_here and found.figure == "flops" and found.family in families:
            return found.source
    return None


def _with_known_gaps(sources: Sequence[SourceFigures]) -> list[SourceFigures]:
    """Blind spots without a figure get the one that another source has for the same family of operators."""
    known: dict[WorkFamily, int] = {}
    for source in sources:
        for operator in source.operators:
            if operator.family in WHOLE_FAMILY.values() and operator.flops:
                known[operator.family] = max(known.get(operator.family, 0), flops_in(source, operator.family))
    return [replace(source, blind_spots=tuple(_filled(source, known))) for source in sources]


def _filled(source: SourceFigures, known: dict[WorkFamily, int]) -> Iterator[BlindSpot]:
    """One cause may name several ops of a family; the first takes the figure of all of them."""
    taken: set[WorkFamily] = set()
    for spot in source.blind_spots:
        family = WHOLE_FAMILY.get(spot.cause)
        if family is None or spot.flops is not None or family not in known:
            yield spot
            continue
        yield replace(spot, flops=0 if family in taken else known[family] - flops_in(source, family))
        taken.add(family)


def _entries(left: SourceFigures, right: SourceFigures, context_tokens: int | None) -> Iterator[FlopsDifference]:
    """Per family where both list operators, and on the whole stage otherwise.

    A source may run as products what another runs fused, so where the stage agrees as a whole the families are not
    compared, and where it does not, fused work that one of them does in products counts as products.
    Nor are they where an op without a formula may be in any of them, and would excuse each.
    """
    if left.flops is None or right.flops is None:
        return
    left_flops, right_flops = _by_family(left), _by_family(right)
    is_whole = any(map(is_of_any_family, (*left.blind_spots, *right.blind_spots)))
    if is_whole or left.flops == right.flops or not (left_flops and right_flops):
        yield _difference(left, right, None, left.flops, right.flops, context_tokens)
        return
    for cause, family in WHOLE_FAMILY.items():
        if not any(spot.cause == cause for spot in (*left.blind_spots, *right.blind_spots)):
            _unfuse(family, left_flops, right_flops)
    for family in dict.fromkeys((*left_flops, *right_flops)):
        yield _difference(left, right, family, left_flops.get(family, 0), right_flops.get(family, 0), context_tokens)


def _unfuse(family: WorkFamily, left: dict[WorkFamily, int], right: dict[WorkFamily, int]) -> None:
    """Count a family that only one of them lists among its products."""
    if (family in left) != (family in right):
        fused = left if family in left else right
        fused[WorkFamily.PRODUCT] = fused.get(WorkFamily.PRODUCT, 0) + fused.pop(family)


def _difference(
    left: SourceFigures,
    right: SourceFigures,
    family: WorkFamily | None,
    left_flops: int,
    right_flops: int,
    context_tokens: int | None,
) -> FlopsDifference:
    more, less = (left, right) if left_flops >= right_flops else (right, left)
    gap = abs(left_flops - right_flops)
    return FlopsDifference(
        phase=left.phase,
        stage=left.stage,
        family=family,
        left=left.source,
        right=right.source,
        left_flops=left_flops,
        right_flops=right_flops,
        explanations=explain(more, less, family, gap, context_tokens) if gap else (),
    )


def _by_family(figures: SourceFigures) -> dict[WorkFamily, int]:
    """FLOPs by family; empty unless the operators add up to the stage, since then they cannot be compared."""
    totals: dict[WorkFamily, int] = {}
    for operator in figures.operators:
        if operator.flops:
            totals[operator.family] = totals.get(operator.family, 0) + operator.flops
    return totals if sum(totals.values()) == figures.flops else {}
