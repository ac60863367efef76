"""One program with sizes that are forms: what a phase runs, anywhere in the region in which it is this program.

`graph_at` gives the call graph of a point, equal to what a trace of that point would give. So every analysis of a call
graph can be asked at every point, and none of them has to know of forms.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from llm_perf_opt.analyses.function.form import Form, Point, Step, StepKind
from llm_perf_opt.analyses.function.program.alignment import Parting, storages_of
from llm_perf_opt.analyses.function.program.assembly import Tensors, assembled, is_list, with_places
from llm_perf_opt.analyses.function.program.loop_memory import Irregular
from llm_perf_opt.analyses.function.program.loops import Loop
from llm_perf_opt.analyses.function.program.unfolding import unfold
from llm_perf_opt.core.callgraph.aggregates import ObservedTensors, count_inputs, count_outputs
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of
from llm_perf_opt.core.callgraph.records import Json, Observation, OpKind, TensorMeta

_SHAPES = 16  # that are kept: one for each number of blocks that was asked for
Size = int | Form
NO_RULE = "no rule"


class NoRule(Exception):
    """Sizes of several traces that no form gives.

    `wanted` is a point at which every expert has rows: with a sample there a rule may be found.
    """

    def __init__(self, parting: Parting, wanted: Point | None = None) -> None:
        super().__init__(str(parting))
        self.parting, self.wanted = parting, wanted


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of one thing so many times: what a header says of each sequence."""

    item: Json
    times: Form


@dataclass(frozen=True, slots=True)
class Worded:
    """A text with numbers in it: what a header says of all sequences."""

    parts: tuple[str | Size, ...]


@dataclass(frozen=True, slots=True)
class SizedMeta:
    """A tensor whose dimensions may be forms."""

    shape: tuple[Size, ...]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizedKind:
    """An op whose dimensions and arguments may be forms; `kind` is the op at the first sample."""

    kind: OpKind
    inputs: tuple[SizedMeta, ...]
    outputs: tuple[SizedMeta, ...]
    arguments: Mapping[str, Json]  # ints may be forms, at any depth
    parts: tuple[SizedKind, ...] = ()

    def at(self, point: Point) -> OpKind:
        """The op at one point."""
        return _Numbers(point).kind(self)

    def forms(self) -> Iterator[Form]:
        """Every form in it, its arguments' and parts' too."""
        for meta in (*self.inputs, *self.outputs):
            yield from (size for size in meta.shape if isinstance(size, Form))
        yield from _forms_in(self.arguments)
        for part in self.parts:
            yield from part.forms()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """A program with its loops run so many times: `ops.kind` counts in `kinds`, the tensors of calls in `metas`."""

    graph: CallGraph
    kinds: tuple[SizedKind, ...]
    metas: tuple[SizedMeta, ...]
    block_bytes: tuple[Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A phase as a function of its workload.

    `skeleton` is the graph of one sample, whose columns hold at every point but for the number of blocks of `loops`.
    """

    skeleton: CallGraph
    kinds: tuple[SizedKind, ...]
    metas: tuple[SizedMeta, ...]
    block_bytes: tuple[Size, ...]
    loops: tuple[Loop, ...]
    workload: Mapping[str, Json]
    runtime: Mapping[str, Json]
    oracle_counts: tuple[Size, ...] = ()
    samples: tuple[Mapping[str, int], ...] = field(default=())
    _shapes: dict[tuple[int, ...], Shape] = field(default_factory=dict, init=False)

    def graph_at(self, point: Point, *, with_observations: bool = True) -> CallGraph:
        """The call graph of one point; `NoRule` where a loop cannot run as often as it would have to there.

        `with_observations` counts the tensors that each module saw.
        """
        shape = self.shape(tuple(loop.count.at(point) for loop in self.loops))
        number, graph = _Numbers(point), shape.graph
        metas = tuple(map(number.meta, shape.metas))
        answers = zip(graph.oracle_answers, self.oracle_counts, strict=True)
        seen: dict[str, Any] = {"input_metadata": {}, "output_metadata": {}}
        if with_observations:
            calls = calls_of(graph)
            seen["input_metadata"] = _observations(count_inputs(graph.paths, metas, calls))
            seen["output_metadata"] = _observations(count_outputs(graph.paths, metas, calls))
        return replace(
            graph,
            op_kinds=tuple(map(number.kind, shape.kinds)),
            tensor_metas=metas,
            storages=replace(storages_of(graph), bytes=array("q", map(number, shape.block_bytes))),
            workload=number.json(self.workload),
            runtime=number.json(self.runtime),
            oracle_answers=tuple(replace(answer, count=number(count)) for answer, count in answers),
            **seen,
        )

    @property
    def has_steps(self) -> bool:
        """Whether a size counts chunks of a length."""
        forms = (form for kind in self.kinds for form in kind.forms())
        return any(isinstance(atom, Step) and atom.kind is StepKind.CEIL for form in forms for atom in form.atoms())

    def shape(self, counts: tuple[int, ...]) -> Shape:
        """The program with its loops run so many times."""
        if counts not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            try:
                self._shapes[counts] = _unfolded(self, counts)
            except Irregular as refusal:
                raise NoRule(Parting(what="loops", op=None, text=str(refusal))) from refusal
        return self._shapes[counts]


def _unfolded(program: Program, counts: tuple[int, ...]) -> Shape:
    if not program.loops:
        return Shape(graph=program.skeleton, kinds=program.kinds, metas=program.metas, block_bytes=program.block_bytes)
    rows = unfold(program.skeleton, program.loops, counts)
    kinds = _Bound(program.kinds, _kind_in_block, lambda kind: any(form.varies_by_block for form in kind.forms()))
    metas = _Bound(program.metas, _meta_in_block, lambda meta: any(map(_varies, meta.shape)))

    def kind_at(number: int, block: int, tensors: Tensors) -> int:
        kind = program.kinds[number]
        if not is_list(tensors, kind.kind, block):
            return kinds(number, block)
        inputs, outputs = tensors
        listed = replace(
            kind,
            kind=with_places(kind.kind, tensors),
            inputs=tuple(_meta_in_block(kind.inputs[one.place], one.block) for one in inputs),
            outputs=tuple(_meta_in_block(kind.outputs[one.place], one.block) for one in outputs),
        )
        return kinds.add(_kind_in_block(listed, block))

    graph = assembled(program.skeleton, rows, kind_at, metas)
    sizes = tuple(_in_block(program.block_bytes[row.what], row.block) for row in rows.storages)
    return Shape(graph=graph, kinds=tuple(kinds.items), metas=tuple(metas.items), block_bytes=sizes)


Item = TypeVar("Item")


class _Bound(Generic[Item]):
    """Items by number and block; those that are the same in every block are there once."""

    def __init__(
        self, items: Sequence[Item], bind: Callable[[Item, int], Item], varies: Callable[[Item], bool]
    ) -> None:
        self._given, self._bind = items, bind
        self._varies = [varies(item) for item in items]
        self._numbers: dict[tuple[int, int], int] = {}
        self.items: list[Item] = []

    def __call__(self, number: int, block: int) -> int:
        key = number, block if self._varies[number] else -1
        if key not in self._numbers:
            item = self._given[number]
            self._numbers[key] = self.add(self._bind(item, block) if key[1] >= 0 else item)
        return self._numbers[key]

    def add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1


def _varies(size: Size) -> bool:
    return isinstance(size, Form) and size.varies_by_block


def _in_block(size: Size, block: int) -> Size:
    if not isinstance(size, Form) or block < 0 or not size.varies_by_block:
        return size
    form = size.bound(block)
    return form if form.constant is None else form.constant


def _meta_in_block(meta: SizedMeta, block: int) -> SizedMeta:
    return SizedMeta(tuple(_in_block(size, block) for size in meta.shape), meta.dtype, meta.device)


def _kind_in_block(kind: SizedKind, block: int) -> SizedKind:
    return replace(
        kind,
        inputs=tuple(_meta_in_block(meta, block) for meta in kind.inputs),
        outputs=tuple(_meta_in_block(meta, block) for meta in kind.outputs),
        arguments=_json_in_block(kind.arguments, block),
        parts=tuple(_kind_in_block(part, block) for part in kind.parts),
    )


def _json_in_block(value: Any, block: int) -> Any:
    match value:
        case Form():
            return _in_block(value, block)
        case Mapping():
            return {key: _json_in_block(item, block) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_json_in_block(item, block) for item in value)
        case _:
            return value


def _forms_in(value: Any) -> Iterator[Form]:
    if isinstance(value, Form):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _forms_in(item)


class _Numbers:
    """Forms turned into numbers at one point; each form once."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._known: dict[Form, int] = {}

    def __call__(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in self._known:
            self._known[size] = size.at(self._point)
        return self._known[size]

    def meta(self, meta: SizedMeta) -> TensorMeta:
        return TensorMeta(tuple(map(self, meta.shape)), meta.dtype, meta.device)

    def kind(self, sized: SizedKind) -> OpKind:
        return replace(
            sized.kind,
            inputs=tuple(map(self.meta, sized.inputs)),
            outputs=tuple(map(self.meta, sized.outputs)),
            arguments=self.json(sized.arguments),
            parts=tuple(map(self.kind, sized.parts)),
        )

    def json(self, value: Any) -> Any:
        match value:
            case Form():
                return self(value)
            case Listed():
                return [self.json(value.item)] * self(value.times)
            case Worded():
                return "".join(part if isinstance(part, str) else str(self(part)) for part in value.parts)
            case Mapping():
                return {key: self.json(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(self.json(item) for item in value)
            case _:
                return value


def _observations(seen: ObservedTensors) -> dict[str, tuple[Observation, ...]]:
    return {
        path: tuple(Observation(tensors=tensors, calls=calls) for tensors, calls in by_tensors.items())
        for path, by_tensors in seen.items()
    }
