"""A grouped picture of a run, ready for any drawing: a tree of boxes with loops, and arrows between siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.witness import Witness


class LoopKind(StrEnum):
    """How a box repeats: `for`, one instance feeding the next; `parfor`, uses that do not depend on each other."""

    FOR = "for"
    PARFOR = "parfor"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLoop:
    """`for 12`, `parfor 2`, `parfor 60 of 64`, `parfor 57-62 of 64`: what repeats within one call of the caller.

    `over` tells instances of a family from uses of one instance.
    """

    kind: LoopKind
    count: int
    least: int | None = None  # the smallest count, where the calls of the caller differ; `count` is then the largest
    of: int | None = None  # how many there are, where the run did not touch all of them
    over: str = "instances"  # or "calls"

    @property
    def text(self) -> str:
        """As it is drawn."""
        counts = f"{self.count}" if self.least is None else f"{self.least}-{self.count}"
        return f"{self.kind} {counts}" + (f" of {self.of}" if self.of is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a box costs, with everything inside it. `None` is unknown, never zero.

    `activation_bytes` is all memory that its ops brought to life, whether or not it lived at the same time.

    With `unpriced_ops` above zero the FLOPs, MACs and bytes moved are lower bounds: only ops with a price count.
    Where no op with a price adds anything, they are unknown.
    """

    flops: int | None
    macs: int | None
    bytes_moved: int | None
    parameters: int | None
    activation_bytes: int | None
    unpriced_ops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """One distinct set of tensors that went in or came out, and in how many calls."""

    tensors: tuple[str, ...]  # "bfloat16[1, 924, 1280]"
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveGroup:
    """Equal collectives of a box, all its calls together: which one, how many bytes, between how many ranks."""

    kind: str  # "all-reduce"
    payload_bytes: int  # of one
    ranks: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A module instance or a family of instances, with the boxes it calls inside."""

    id: str  # unique in the view, the same every time the same trace is grouped
    class_name: str
    path: str  # "model.layers.[1-11]"
    stage: str
    instances: int
    calls: int  # over all instances
    calls_per_instance: tuple[int, ...]  # the distinct values, ascending: (2,) or (0, 1)
    loops: tuple[BoxLoop, ...]
    figures: Figures  # inclusive
    own: Figures  # of the ops that run directly in it
    collectives: tuple[CollectiveGroup, ...] = ()  # with those inside, the most bytes first; none on one device
    own_collectives: tuple[CollectiveGroup, ...] = ()  # those that it asks for itself
    constructor_params: Mapping[str, object] = field(default_factory=dict)  # those that all instances share
    layer_context: Mapping[str, object] = field(
        default_factory=dict
    )  # of an expert: what its layer says of all experts
    inputs: tuple[TensorGroup, ...] = ()
    outputs: tuple[TensorGroup, ...] = ()
    members: tuple[str, ...] = ()  # paths of every instance, those that the run did not touch among them
    member_calls: tuple[int, ...] = ()  # calls of each member in this box: a shared module also stands in others
    children: tuple[Box, ...] = ()
    arrows: tuple[Arrow, ...] = ()  # between the children
    is_open: bool = True  # whether the default picture shows what is inside
    is_split: bool = False  # its children are its own members again, told apart by cost; they add no calls
    is_left_out: bool = False  # stands for all modules that a filter took out of the box around it; has no path
    witness: Callable[[str], Witness | None] | None = field(default=None, compare=False, repr=False)  # of an own figure

    @property
    def label(self) -> str:
        """`Class @ path`, or `left out: 12 modules of prefill`."""
        if self.is_left_out:
            modules = f"{self.instances:,} module{'' if self.instances == 1 else 's'}"
            return f"{self.class_name}: {modules} of {self.stage}"
        return f"{self.class_name} @ {self.path or '(root)'}"

    def walk(self) -> Iterator[Box]:
        """The box and everything inside it, outer before inner."""
        waiting = [self]
        while waiting:
            box = waiting.pop()
            yield box
            waiting.extend(reversed(box.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A tensor made in one box and used in its sibling, with the number of calls that did so."""

    source: str
    target: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """The whole picture. The boxes shown by default are the roots and, below open boxes, their children."""

    title: str
    caption: tuple[str, ...]
    roots: tuple[Box, ...]
    totals: Figures
    stages: tuple[str, ...]
    is_ungrouped: bool = False  # each module is a box of its own; a shared one stands under each of its callers

    def visible(self) -> list[Box]:
        """The boxes of the default picture, outer before inner."""
        shown: list[Box] = []
        waiting = list(reversed(self.roots))
        while waiting:
            box = waiting.pop()
            shown.append(box)
            if box.is_open:
                waiting.extend(reversed(box.children))
        return shown


class Metric(StrEnum):
    """A word for `--metric`."""

    FLOPS = "flops"
    BYTES = "bytes"  # moved
    PARAMETERS = "parameters"
    ACTIVATIONS = "activations"  # bytes of memory that ops brought to life
    CALLS = "calls"

    @property
    def words(self) -> str:
        """As a heading says it."""
        return {"flops": "FLOPs", "bytes": "bytes moved", "activations": "activation bytes"}.get(self.value, self.value)


def metric_named(name: str) -> Metric:
    """The metric a person asked for; another word is refused with the known ones."""
    if name not in list(Metric):
        raise UsageError(
            f"No metric named {name!r}.",
            why="a drawing weighs by what adds up",
            fix=f"pick one of: {', '.join(Metric)}",
        )
    return Metric(name)


def inclusive(box: Box, metric: Metric) -> int | None:
    """With everything inside the box."""
    return _calls(box.walk()) if metric is Metric.CALLS else _figure(box.figures, metric)


def own(box: Box, metric: Metric) -> int | None:
    """Without the boxes inside."""
    return _calls([box]) if metric is Metric.CALLS else _figure(box.own, metric)


def total(view: GraphView, metric: Metric) -> int | None:
    """Over the whole view."""
    if metric is not Metric.CALLS:
        return _figure(view.totals, metric)
    return _calls(box for root in view.roots for box in root.walk())


def share(part: int | None, whole: int | None) -> float | None:
    """`part` of `whole`, from 0 to 1; unknown where either is, or where there is nothing to share."""
    return None if part is None or not whole else part / whole


def _calls(boxes: Iterable[Box]) -> int:
    """A box split by cost adds none: its parts have its calls."""
    return sum(box.calls for box in boxes if not box.is_split)


def _figure(figures: Figures, metric: Metric) -> int | None:
    match metric:
        case Metric.FLOPS:
            return figures.flops
        case Metric.BYTES:
            return figures.bytes_moved
        case Metric.ACTIVATIONS:
            return figures.activation_bytes
        case _:
            return figures.parameters
