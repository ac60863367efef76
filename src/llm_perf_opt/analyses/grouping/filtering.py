"""A picture of the modules that were asked for: what is left out stands in boxes of its own, so that nothing is lost.

A box stays if it is chosen, or if a chosen one is inside it. What goes is put together in one box for each stage,
`left out: 12 modules of prefill`, inside the box that called it. Figures, calls and members of all boxes still add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.grouping.boxes import sum_of, together
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_metric import Metric, inclusive, metric_named, own, share, total
from llm_perf_opt.core.graph_view import Arrow, Box, GraphView
from llm_perf_opt.core.module_selection import ModuleSelection, chosen_stages, unknown_terms
from llm_perf_opt.core.units import format_count, format_ratio

LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFilter:
    """Which boxes to show. A family is shown whole if one of its members is chosen."""

    only: ModuleSelection | None = None
    stages: tuple[str, ...] = ()
    min_share: float | None = None  # of the metric, from 0 to 1

    def text(self, metric: Metric) -> str:
        """As a caption says it: `linear, conv; stage sam; at least 0.5 % of FLOPs`."""
        parts = [str(self.only)] if self.only else []
        parts += [f"stage {', '.join(self.stages)}"] if self.stages else []
        parts += [f"at least {self.min_share * 100:g} % of {metric.words}"] if self.min_share is not None else []
        return "; ".join(parts)


def box_filter(
    view: GraphView,
    *,
    only: str | Iterable[str] | None = None,
    stage: str | Iterable[str] | None = None,
    min_share: float | str | None = None,
) -> BoxFilter | None:
    """The filter that was asked for, None for none; words that choose nothing are refused."""
    if only is None and stage is None and min_share is None:
        return None
    return BoxFilter(
        only=None if only is None else ModuleSelection.parse(only),
        stages=() if stage is None else chosen_stages(stage, view.stages),
        min_share=None if min_share is None else read_share(min_share),
    )


def read_share(given: float | str) -> float:
    """`0.5%` from the command line; a number from Python is a fraction of one."""
    text = given.strip() if isinstance(given, str) else ""
    try:
        fraction = float(text.removesuffix("%")) / 100 if isinstance(given, str) else float(given)
    except ValueError:
        fraction = -1.0
    if (isinstance(given, str) and not text.endswith("%")) or not 0 <= fraction <= 1:
        raise UsageError(
            f"{given!r} is not a share.",
            why="a share is a percentage with its sign, from 0% to 100%",
            fix="write --min-share 0.5%; in Python min_share=0.005",
        )
    return fraction


def filtered(view: GraphView, wanted: BoxFilter, graph: CallGraph, metric: str) -> GraphView:
    """The chosen boxes and those around them, in the order of before; roots always stay."""
    measure, whole = metric_named(metric), total(view, metric_named(metric))
    if wanted.min_share is not None and whole is None:
        raise UsageError(
            f"--min-share cannot be told: the {measure.words} of this trace are not known.",
            why="the tracer saw no ops with a price",
            fix="choose --metric calls, or trace with --tracer weightless",
        )
    _require_matches(view, wanted, graph)
    kept = _kept(view, _chooser(wanted, graph, measure, whole))
    if not kept:
        raise UsageError(
            f"Nothing in this picture is {wanted.text(measure)}.",
            why="no box passes the filter",
            fix="choose a wider one",
        )
    return replace(view, roots=tuple(_pruned(root, kept) for root in view.roots))


def filter_line(view: GraphView, wanted: BoxFilter, metric: str) -> str:
    """What was asked for, how much is left out, and where that stands."""
    measure = metric_named(metric)
    gone = [box for root in view.roots for box in root.walk() if box.is_left_out]
    if not gone:
        return f"Only {wanted.text(measure)}: that is all there is, nothing is left out."
    modules = {path for box in gone for path in box.members}
    costs = [own(box, measure) for box in gone]
    cost = None if None in costs else sum(value for value in costs if value is not None)
    part = share(cost, total(view, measure))
    of_metric = f"{measure.words} unknown" if part is None else f"{format_ratio(part)} of {measure.words}"
    return (
        f"Only {wanted.text(measure)}, with the boxes around. Left out: {format_count(len(modules))} modules, "
        f"{format_count(sum(box.calls for box in gone))} calls, {of_metric}; boxes named {LEFT_OUT} hold them."
    )


def _require_matches(view: GraphView, wanted: BoxFilter, graph: CallGraph) -> None:
    if wanted.only is None:
        return
    shown = {path: box.class_name for root in view.roots for box in root.walk() for path in box.members}
    classes = {**graph.module_types, **shown}  # what did not run is no mistake
    modules = [(path, name, graph.constructor_params.get(path, {})) for path, name in classes.items()]
    if missing := wanted.only.terms_without(modules):
        raise unknown_terms(missing, shown.values())


def _chooser(wanted: BoxFilter, graph: CallGraph, metric: Metric, whole: int | None) -> Callable[[Box], bool]:
    no_params: Mapping[str, object] = {}

    def is_chosen(box: Box) -> bool:
        if wanted.stages and box.stage not in wanted.stages:
            return False
        if wanted.min_share is not None:
            part = share(inclusive(box, metric), whole)
            if part is not None and part < wanted.min_share:  # what is not known is not small
                return False
        return wanted.only is None or any(
            wanted.only.takes(path, box.class_name, graph.constructor_params.get(path, no_params))
            for path in box.members
        )

    return is_chosen


def _kept(view: GraphView, is_chosen: Callable[[Box], bool]) -> set[str]:
    """Ids of the boxes that are chosen or hold a chosen one."""
    kept: set[str] = set()
    for root in view.roots:
        for box in reversed(list(root.walk())):  # inner before outer
            if is_chosen(box) or any(child.id in kept for child in box.children):
                kept.add(box.id)
    return kept


def _pruned(box: Box, kept: set[str]) -> Box:
    """The parts of a box that is told apart by cost stay together: they are its members."""
    stays = [child for child in box.children if box.is_split or child.id in kept]
    goes = [child for child in box.children if not box.is_split and child.id not in kept]
    children = (*(_pruned(child, kept) for child in stays), *_left_out(box, goes))
    return replace(box, children=children, arrows=_bridged(box.arrows, {child.id for child in goes}))


def _left_out(around: Box, goes: list[Box]) -> list[Box]:
    """One box for each stage, in the order of the calls."""
    by_stage: dict[str, list[Box]] = {}
    for gone in goes:
        for box in gone.walk():
            if not box.is_split:
                by_stage.setdefault(box.stage, []).append(box)
    return [_together(f"{around.id}-{number}", stage, boxes) for number, (stage, boxes) in enumerate(by_stage.items())]


def _together(box_id: str, stage: str, boxes: list[Box]) -> Box:
    calls: dict[str, int] = {}
    for box in boxes:
        for path, count in zip(box.members, box.member_calls, strict=True):
            calls[path] = calls.get(path, 0) + count
    figures = sum_of([box.own for box in boxes])
    asked = together(box.own_collectives for box in boxes)
    return Box(
        id=box_id,
        class_name=LEFT_OUT,
        path="",
        stage=stage,
        instances=len(calls),
        calls=sum(calls.values()),
        calls_per_instance=tuple(sorted(set(calls.values()))),
        loops=(),
        figures=figures,
        own=figures,
        collectives=asked,
        own_collectives=asked,
        members=tuple(calls),
        member_calls=tuple(calls.values()),
        is_left_out=True,
    )


def _bridged(arrows: tuple[Arrow, ...], goes: set[str]) -> tuple[Arrow, ...]:
    """Arrows between what stays. A way through boxes left out is one arrow, with the fewest calls on the way."""
    by_source: dict[str, list[Arrow]] = {}
    for arrow in arrows:
        by_source.setdefault(arrow.source, []).append(arrow)
    found: dict[tuple[str, str], int] = {}
    for source in (source for source in by_source if source not in goes):
        seen: set[str] = set()
        waiting = [(arrow.target, arrow.calls) for arrow in by_source[source]]
        while waiting:
            target, calls = waiting.pop(0)
            if target not in goes:
                if target != source:
                    found[source, target] = max(calls, found.get((source, target), 0))
            elif target not in seen:
                seen.add(target)
                waiting += [(arrow.target, min(calls, arrow.calls)) for arrow in by_source.get(target, ())]
    return tuple(Arrow(source=source, target=target, calls=calls) for (source, target), calls in found.items())
