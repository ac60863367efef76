"""

Sources of figures compared: every difference with its cause, or marked as unexplained.

The ledger lists each pair of sources, stage by stage and family by family, with what explains their difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from llm_perf_opt.core.source_figures import (
    BlindSpot,
    OperatorFigure,
    SourceFigures,
    WorkFamily,
    family_of,
    flops_in,
    operator_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A named reason for differences."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The cause of one difference, by name; `detail` says what shows it."""

    cause: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A difference that has an explanation, or none: then it is unexplained."""

    explanation: Explanation | None = None

    @property
    def cause(self) -> str | None:
        """The name of the cause; None: unexplained."""
        return None if self.explanation is None else self.explanation.cause

    @property
    def detail(self) -> str:
        """What shows the cause; empty where there is none."""
        return "" if self.explanation is None else self.explanation.detail


C = TypeVar("C", bound=Cause)


class CauseTable(Mapping[str, C]):
    """Causes by name, in the order in which they are tried; a name that is given twice raises."""

    def __init__(self, *causes: C) -> None:
        self._causes = {cause.name: cause for cause in causes}
        if len(self._causes) != len(causes):
            raise ValueError(f"two causes have one name: {', '.join(cause.name for cause in causes)}")

    def __getitem__(self, name: str) -> C:
        return self._causes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._causes)

    def __len__(self) -> int:
        return len(self._causes)


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
    single = tuple(figures for sources in stages.values() for figures in single_sources(sources))
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
    for alone in single:
        is_here = (alone.phase, alone.stage) == (entry.phase, entry.stage) and alone.source in (entry.left, entry.right)
        if is_here and alone.figure == "flops" and alone.family in families:
            return alone.source
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

    A source may run as matmuls what another runs fused, so where the stage agrees as a whole the families are not
    compared, and where it does not, fused work that one of them does in matmuls counts as matmuls.
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
    """Count a family that only one of them lists among its matmuls."""
    if (family in left) != (family in right):
        fused = left if family in left else right
        fused[WorkFamily.MATMUL] = fused.get(WorkFamily.MATMUL, 0) + fused.pop(family)


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


FIGURES = (
    "parameters",
    "active_parameters",
    "activations",
    "bytes_moved",
    "weight_bytes",
    "kv_cache_bytes",
    "kv_bytes_per_token",
)
_LEAVES_OUT = ("grouped-matmul-uncounted", "op-without-formula", "outside-isolated-modules")  # whole ops
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
    bytes_as_held = [side.bytes_moved if side.bytes_as_held is None else side.bytes_as_held for side in (left, right)]
    return bytes_as_held[0] == bytes_as_held[1]


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
    {"fused-attention-uncounted", "grouped-matmul-uncounted", "op-without-formula", "outside-isolated-modules"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSource:
    """One figure of one stage with one source. `family` is the family of operators, where the figure is FLOPs."""

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
    """Whether the figure of a source holds the work of these operators, fused or as the matmuls they stand for."""
    return source.flops is not None and not any(_hides(spot, family) for spot in source.blind_spots)


def _hides(spot: BlindSpot, family: WorkFamily) -> bool:
    """Whether the work that a source left out may be of this family; what it left out is of no size if that is zero."""
    if spot.cause not in _MISSING or spot.flops == 0:
        return False
    is_anything = spot.flops is None and family_of(spot.operator) is WorkFamily.OTHER
    return is_anything or WHOLE_FAMILY.get(spot.cause, family_of(spot.operator)) is family


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingCause(Cause):
    """Why two sources count differently.

    `tolerance` is the part of what this cause explains that may stay over; 0 means to the last FLOP. `limit` is the
    part of the larger figure that it may explain at most; None where its size is known by other means.
    """

    tolerance: float = 0.0
    limit: float | None = None


CAUSES = CauseTable(
    CountingCause(name="mac-not-flop", meaning="the source counts multiply-adds and calls them FLOPs: exactly half"),
    CountingCause(name="fused-attention-uncounted", meaning="the source has no formula for a fused attention kernel"),
    CountingCause(name="grouped-matmul-uncounted", meaning="the source has no formula for grouped matmuls of experts"),
    CountingCause(name="causal-half", meaning="the source halves attention under a causal mask", tolerance=0.01),
    CountingCause(name="head-on-all-positions", meaning="one source runs the output head on the last position only"),
    CountingCause(name="routing", meaning="the sources sent tokens to different experts", limit=0.05),
    CountingCause(
        name="stored-format", meaning="one source counts weights or cache in the format in which they are stored"
    ),
    CountingCause(name="op-without-formula", meaning="an op that one source saw and could not price"),
    CountingCause(name="outside-isolated-modules", meaning="work done between the modules that were run by themselves"),
    CountingCause(name="elementwise-counted", meaning="the source adds elementwise work, which is kept apart here"),
    CountingCause(
        name="broadcast-uncounted", meaning="the source reads the batch off the left operand of a matmul alone"
    ),
    CountingCause(name="router-uncounted", meaning="the source leaves out the matmuls that score experts"),
    CountingCause(
        name="latent-attention-expanded",
        meaning="the source prices a step on latent vectors as if the new token's keys and values were expanded",
    ),
    CountingCause(name="padded-experts", meaning="a kernel pads the matrices of experts, and the source does not"),
    CountingCause(
        name="whole-on-expert-ranks",
        meaning="the source counts dense and shared layers whole on each rank that holds experts of its own",
    ),
    CountingCause(name="rounded-down", meaning="the source gives an einsum in four digits, which is less than it did"),
    CountingCause(name="rounded-up", meaning="the source gives an einsum in four digits, which is more than it did"),
)


_ROUTED = (None, WorkFamily.MATMUL, WorkFamily.GROUPED)  # where experts do their work
WHOLE_FAMILY = {"fused-attention-uncounted": WorkFamily.ATTENTION, "grouped-matmul-uncounted": WorkFamily.GROUPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsExplanation(Explanation):
    """A cause and the part of a gap that it accounts for; negative where it makes the gap smaller."""

    flops: int


def explain(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, gap: int, context_tokens: int | None
) -> tuple[FlopsExplanation, ...]:
    """Explanations of why `more` counts `gap` FLOPs more than `less`; empty when none is known.

    `family` None means the stage as a whole. Blind spots come first: the sources declare what they left out or added,
    and each is taken for its whole size, so that one that is too large leaves the rest unexplained. Only a gap
    that none of them touches is compared with the ratios that other conventions produce. What is then left may be the
    doing of experts, if the sources sent tokens to different ones.
    """
    parts = [part for part in _declared(more, less, family) if part.flops]
    parts += _bounded(more, less, family, gap - _flops_of(parts))
    parts = parts or list(_by_convention(more, less, family, gap, context_tokens))
    return (*parts, *_routed(more, less, family, gap - _flops_of(parts)))


def is_of_any_family(spot: BlindSpot) -> bool:
    """Whether the name of the op does not show in which family another source counts its work."""
    return spot.cause == "op-without-formula" and spot.flops is not None


def _flops_of(parts: Sequence[FlopsExplanation]) -> int:
    return sum(part.flops for part in parts)


def _declared(more: SourceFigures, less: SourceFigures, family: WorkFamily | None) -> Iterator[FlopsExplanation]:
    """What either source declares of itself, with the sign that it gives to the gap."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if not spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
                yield _of(spot, (-sign if spot.adds else sign) * spot.flops)


def _bounded(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, left_over: int
) -> Iterator[FlopsExplanation]:
    """What is known by an upper bound takes what is left, and no more than its bound."""
    for side, other, sign in ((less, more, 1), (more, less, -1)):
        for spot in side.blind_spots:
            if spot.is_bound and spot.flops is not None and _belongs(spot, other, family):
                part = min(max(0, sign * left_over), spot.flops)
                if part:
                    yield _of(spot, sign * part)
                    left_over -= sign * part


def _belongs(spot: BlindSpot, other: SourceFigures, family: WorkFamily | None) -> bool:
    """Whether the blind spot shows in this family when compared with `other`.

    Fused ops are a family of their own, unless the other source lists them as the plain matmuls they stand for.
    """
    if family is None:
        return True
    uncounted = WHOLE_FAMILY.get(spot.cause)
    if uncounted is None:
        return family is family_of(spot.operator)
    if flops_in(other, uncounted) or any(theirs.cause == spot.cause for theirs in other.blind_spots):
        return family is uncounted
    return family in (uncounted, WorkFamily.MATMUL)


def _of(spot: BlindSpot, flops: int) -> FlopsExplanation:
    return FlopsExplanation(
        cause=spot.cause, flops=flops, detail=f"{spot.operator} x {spot.calls:,}" if spot.calls else spot.operator
    )


def _by_convention(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, gap: int, context_tokens: int | None
) -> Iterator[FlopsExplanation]:
    if more.flops == 2 * (less.flops or 0):
        yield FlopsExplanation(
            cause="mac-not-flop", flops=gap, detail=f"{less.source} is exactly half of {more.source}"
        )
        return
    if family is WorkFamily.ATTENTION and _is_half(more, less):
        half = flops_in(more, WorkFamily.ATTENTION) // 2
        yield FlopsExplanation(
            cause="causal-half", flops=half, detail=f"{less.source} counts half of each score matrix"
        )
        return
    if context_tokens and context_tokens > 1:
        for operator in more.operators:
            if operator.flops and operator.flops * (context_tokens - 1) == gap * context_tokens:
                detail = f"{operator.name} on {context_tokens:,} positions against one"
                yield FlopsExplanation(cause="head-on-all-positions", flops=gap, detail=detail)
                return


def _is_half(more: SourceFigures, less: SourceFigures) -> bool:
    full, half = flops_in(more, WorkFamily.ATTENTION), flops_in(less, WorkFamily.ATTENTION)
    return bool(full) and abs(2 * half - full) <= CAUSES["causal-half"].tolerance * full


def _routed(
    more: SourceFigures, less: SourceFigures, family: WorkFamily | None, left_over: int
) -> Iterator[FlopsExplanation]:
    """The part of a rest that other experts may account for, where both sources name their routing."""
    if not left_over or family not in _ROUTED or not sent_apart(more, less):
        return
    figure = (more.flops or 0) if family is None else flops_in(more, family)
    part = min(abs(left_over), int((CAUSES["routing"].limit or 0) * figure))
    if part:
        yield FlopsExplanation(cause="routing", flops=part if left_over > 0 else -part, detail=policies(more, less))


def sent_apart(left: SourceFigures, right: SourceFigures) -> bool:
    """Whether both sources had tokens to send to experts, and did so by different policies."""
    return left.routing is not None and right.routing is not None and left.routing != right.routing


def policies(left: SourceFigures, right: SourceFigures) -> str:
    """Who sent the tokens how."""
    return f"{left.source} {left.routing}, {right.source} {right.routing}"
