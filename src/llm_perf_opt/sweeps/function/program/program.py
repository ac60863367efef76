"""One program with sizes that are forms: what a phase runs, anywhere in the region in which it is this program.

`graph_at` gives the call graph of a point, equal to what a trace of that point would give. So every analysis of a call
graph can be asked at every point, and none of them has to know of forms.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from llm_perf_opt.core.callgraph.aggregates import (
    count_calls,
    count_edges,
    count_inputs,
    count_outputs,
    count_own_ops,
    count_root_calls,
    observations,
)
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import CallColumns, Coverage, Json, OpKind, StorageColumns, TensorMeta
from llm_perf_opt.sweeps.function.form import Form, Point, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import Parting, storages_of
from llm_perf_opt.sweeps.function.program.loop_memory import GIVEN_ORIGINS, Irregular, RowTensor, as_column, homes_of
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.sized import (
    Numbers,
    Size,
    SizedKind,
    SizedMeta,
    in_block,
    kind_in_block,
    kind_varies,
    meta_in_block,
    meta_varies,
)
from llm_perf_opt.sweeps.function.program.unfolding import TensorsOfRows, Unfolded, Unfolding, offsets_of, unfold

Tensors = tuple[Sequence[RowTensor], Sequence[RowTensor]]  # the inputs and the outputs of an op
KindAt = Callable[[int, int, Tensors | None], int]  # kind of the old row, block, lists -> kind of the new row
MetaAt = Callable[[int, int], int]  # tensor of the old row, block -> tensor of the new row


def assembled(graph: CallGraph, rows: Unfolded, kind_at: KindAt, meta_at: MetaAt) -> CallGraph:
    """The graph with these rows; its kinds, tensors and the bytes of its memory are left for the caller to fill."""
    old_ops, old_calls, old_storages = ops_of(graph), calls_of(graph), storages_of(graph)
    inputs_at, outputs_at = offsets_of(old_calls.input_count), offsets_of(old_calls.output_count)
    old_kinds, old_paths = np.asarray(old_ops.kind)[rows.ops.what], np.asarray(old_calls.path)[rows.calls.what].tolist()
    listed = _lists(rows)
    pairs = enumerate(zip(old_kinds.tolist(), rows.ops.block.tolist(), strict=True))
    kinds = (kind_at(kind, block, listed.get(new)) for new, (kind, block) in pairs)
    used = {old: new for new, old in enumerate(dict.fromkeys(old_paths))}
    paths = tuple(graph.paths[old] for old in used)
    ops = replace(
        old_ops,
        kind=array("q", kinds),
        call=rows.op_calls,
        input_storages=rows.op_inputs.storages,
        output_storages=rows.op_outputs.storages,
    )
    calls = replace(
        old_calls,
        path=array("q", map(used.__getitem__, old_paths)),
        parent=rows.parents,
        first_op=rows.first_op,
        end_op=rows.end_op,
        input_count=rows.call_inputs.counts,
        output_count=rows.call_outputs.counts,
        input_metas=_metas(rows, rows.call_inputs, old_calls.input_metas, inputs_at, meta_at),
        input_storages=rows.call_inputs.storages,
        output_metas=_metas(rows, rows.call_outputs, old_calls.output_metas, outputs_at, meta_at),
        output_storages=rows.call_outputs.storages,
    )
    return replace(
        graph,
        ops=ops,
        calls=calls,
        paths=paths,
        storages=StorageColumns(
            bytes=array("q", bytes(8 * len(rows.storages))),
            born_op=rows.born_op,
            freed_op=rows.freed_op,
            origin=tuple(map(old_storages.origin.__getitem__, rows.storages.where.tolist())),
        ),
        parameters=tuple(
            replace(parameter, storage=int(rows.new_storage[parameter.storage]))
            if parameter.storage >= 0
            else parameter
            for parameter in graph.parameters
        ),
        coverage=Coverage(ops=len(ops.kind), op_kinds=len(set(ops.kind))),
        call_counts=count_calls(paths, calls),
        root_calls=count_root_calls(paths, calls),
        edges=count_edges(paths, calls),
        op_call_counts=count_own_ops(paths, calls, ops),
        input_metadata={},
        output_metadata={},
    )


def _lists(rows: Unfolded) -> dict[int, Tensors]:
    """The tensors of new ops among which is a list over a loop."""
    inputs, outputs = rows.op_inputs, rows.op_outputs
    if not inputs.listed and not outputs.listed:
        return {}
    ops = list(rows.ops)
    rows_listed = {**inputs.listed, **outputs.listed}
    lists = {new: (inputs.of_row(new, ops[new]), outputs.of_row(new, ops[new])) for new in rows_listed}
    return {new: tensors for new, tensors in lists.items() if _is_list(tensors, ops[new].block)}


def _is_list(tensors: Tensors, block: int) -> bool:
    """Whether some places hold other tensors, or tensors of other blocks."""
    return any(entry.place != at or entry.block != block for entries in tensors for at, entry in enumerate(entries))


def _metas(
    rows: Unfolded, got: TensorsOfRows, old: Sequence[int], starts: Sequence[int], meta_at: MetaAt
) -> array[int]:
    metas = array("q")
    for new, (row, count) in enumerate(zip(rows.calls, got.counts, strict=True)):
        start, listed = starts[row.what], got.listed.get(new)
        if listed is None:
            metas.extend([meta_at(number, row.block) for number in old[start : start + count]])
        else:
            metas.extend([meta_at(old[start + entry.place], entry.block) for entry in listed])
    return metas


def with_places(kind: OpKind, tensors: Tensors) -> OpKind:
    """An op with other inputs and outputs."""

    def chosen(items: Sequence[Any], entries: Sequence[RowTensor]) -> tuple[Any, ...]:
        return tuple(items[entry.place] for entry in entries) if items else ()

    inputs, outputs = tensors
    return replace(
        kind,
        inputs=chosen(kind.inputs, inputs),
        input_names=chosen(kind.input_names, inputs),
        outputs=chosen(kind.outputs, outputs),
        output_aliases=chosen(kind.output_aliases, outputs),
    )


def refolded(graph: CallGraph, rows: Unfolded) -> CallGraph:
    """A traced graph with its loops run another number of times; sizes of blocks that were not traced are another's."""
    kinds = list(graph.op_kinds)

    def kind_at(number: int, block: int, tensors: Tensors | None) -> int:
        if tensors is None:
            return number
        kinds.append(with_places(kinds[number], tensors))
        return len(kinds) - 1

    result = assembled(graph, rows, kind_at, lambda number, block: number)
    sizes = as_column(np.asarray(storages_of(graph).bytes)[rows.storages.what])
    return replace(result, op_kinds=tuple(kinds), storages=replace(storages_of(result), bytes=sizes))


def folded(graph: CallGraph, loops: Sequence[Loop], most: int) -> tuple[CallGraph, tuple[Loop, ...]]:
    """The graph with at most this many blocks in each loop of equal blocks."""
    counts = [loop.blocks if loop.routed is not None else min(loop.blocks, most) for loop in loops]
    if all(count == loop.blocks for count, loop in zip(counts, loops, strict=True)):
        return graph, tuple(loops)
    rows = unfold(graph, loops, counts)
    result = refolded(graph, rows)
    homes = homes_of(graph, loops)
    given: list[list[list[tuple[int, int]]]] = [[[] for _ in range(count)] for count in counts]
    for new, row in enumerate(rows.storages):
        if row.loop >= 0 and storages_of(graph).origin[row.where] in GIVEN_ORIGINS:
            given[row.loop][row.block].append((homes[row.where].place, new))
    return result, tuple(
        replace(
            loop,
            blocks=counts[number],
            first_op=rows.loop_ops[number],
            first_call=rows.loop_calls[number],
            given=tuple(tuple(new for _, new in sorted(of_block)) for of_block in given[number]) if loop.given else (),
        )
        for number, loop in enumerate(loops)
    )


_SHAPES = 16  # that are kept: one for each number of blocks that was asked for
NO_RULE = "no rule"


class NoRule(Exception):
    """Sizes of several traces that no form gives.

    `wanted` is a point at which every expert has rows: with a sample there a rule may be found.
    """

    def __init__(self, parting: Parting, wanted: Point | None = None) -> None:
        super().__init__(str(parting))
        self.parting, self.wanted = parting, wanted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramShape:
    """A program with its loops run this many times: `ops.kind` counts in `kinds`, the tensors of calls in `metas`."""

    graph: CallGraph
    kinds: tuple[SizedKind, ...]
    metas: tuple[SizedMeta, ...]
    block_bytes: tuple[Size, ...]
    fixed: tuple[OpKind | None, ...]  # per kind the op, where it is the same at every point


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A phase as a function of its workload.

    `skeleton` is the graph of one sample; its columns hold at every point but for the number of blocks of `loops`.
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
    _shapes: dict[tuple[int, ...], ProgramShape] = field(default_factory=dict, init=False)
    _unfoldings: list[Unfolding] = field(default_factory=list, init=False)  # one, made when first asked for
    _kinds_in_blocks: dict[tuple[int, int], SizedKind] = field(default_factory=dict, init=False)
    _metas_in_blocks: dict[tuple[int, int], SizedMeta] = field(default_factory=dict, init=False)

    def graph_at(self, point: Point, *, with_observations: bool = True) -> CallGraph:
        """The call graph of one point; `NoRule` where a loop cannot run as often as it would have to there.

        `with_observations` counts the tensors that each module saw.
        """
        shape = self.shape(tuple(loop.count.at(point) for loop in self.loops))
        number, graph = Numbers(point), shape.graph
        metas, calls = _distinct(tuple(map(number.meta, shape.metas)), calls_of(graph))
        answers = zip(graph.oracle_answers, self.oracle_counts, strict=True)
        inputs = count_inputs(graph.paths, metas, calls) if with_observations else {}
        outputs = count_outputs(graph.paths, metas, calls) if with_observations else {}
        return replace(
            graph,
            calls=calls,
            op_kinds=tuple(fixed or number.kind(kind) for kind, fixed in zip(shape.kinds, shape.fixed, strict=True)),
            tensor_metas=metas,
            storages=replace(storages_of(graph), bytes=array("q", map(number, shape.block_bytes))),
            workload=number.json(self.workload),
            runtime=number.json(self.runtime),
            oracle_answers=tuple(replace(answer, count=number(count)) for answer, count in answers),
            input_metadata=observations(inputs),
            output_metadata=observations(outputs),
        )

    def stage_counts(self, counts: tuple[int, ...]) -> Mapping[tuple[str, int], int]:
        """Stage and kind -> how often it runs there when loops run this many times; the kinds are the shape's."""
        graph = self.shape(counts).graph
        names = stage_names(graph)
        pairs = zip(stage_of_ops(graph), ops_of(graph).kind, strict=True)
        return {(names[stage], kind): count for (stage, kind), count in Counter(pairs).items()}

    @property
    def has_steps(self) -> bool:
        """Whether a size counts chunks of a length."""
        forms = (form for kind in self.kinds for form in kind.forms())
        return any(isinstance(atom, Step) and atom.kind is StepKind.CEIL for form in forms for atom in form.atoms())

    def shape(self, counts: tuple[int, ...]) -> ProgramShape:
        """The program with its loops run this many times."""
        if counts not in self._shapes:
            # A shape may hold a million rows. All are dropped at once: points are asked in order, so that an old shape
            # seldom comes back.
            if len(self._shapes) >= _SHAPES:
                for known in (self._shapes, self._kinds_in_blocks, self._metas_in_blocks):
                    known.clear()
            try:
                self._shapes[counts] = _unfolded(self, counts)
            except Irregular as refusal:
                raise NoRule(Parting(what="loops", op=None, text=str(refusal))) from refusal
        return self._shapes[counts]

    def rows(self, counts: tuple[int, ...]) -> Unfolded:
        """Which rows there are when loops run this many times."""
        if not self._unfoldings:
            self._unfoldings.append(Unfolding(self.skeleton, self.loops))
        return self._unfoldings[0].rows(counts)


def _unfolded(program: Program, counts: tuple[int, ...]) -> ProgramShape:
    if not program.loops:
        return ProgramShape(
            graph=program.skeleton,
            kinds=program.kinds,
            metas=program.metas,
            block_bytes=program.block_bytes,
            fixed=tuple(map(_fixed, program.kinds)),
        )
    rows = program.rows(counts)
    kinds = _Bound(program.kinds, program._kinds_in_blocks, kind_in_block, kind_varies)
    metas = _Bound(program.metas, program._metas_in_blocks, meta_in_block, meta_varies)

    def kind_at(number: int, block: int, tensors: Tensors | None) -> int:
        if tensors is None:
            return kinds(number, block)
        kind = program.kinds[number]
        inputs, outputs = tensors
        listed = replace(
            kind,
            kind=with_places(kind.kind, tensors),
            inputs=tuple(meta_in_block(kind.inputs[entry.place], entry.block) for entry in inputs),
            outputs=tuple(meta_in_block(kind.outputs[output.place], output.block) for output in outputs),
        )
        return kinds.add(kind_in_block(listed, block))

    graph = assembled(program.skeleton, rows, kind_at, metas)
    pairs = zip(rows.storages.what.tolist(), rows.storages.block.tolist(), strict=True)
    sizes = tuple(in_block(program.block_bytes[what], block) for what, block in pairs)
    return ProgramShape(
        graph=graph,
        kinds=tuple(kinds.items),
        metas=tuple(metas.items),
        block_bytes=sizes,
        fixed=tuple(map(_fixed, kinds.items)),
    )


def _distinct(metas: tuple[TensorMeta, ...], calls: CallColumns) -> tuple[tuple[TensorMeta, ...], CallColumns]:
    """The table of tensors with one row for each: sizes that differ elsewhere may be equal at a point."""
    rows = {meta: row for row, meta in enumerate(dict.fromkeys(metas))}
    if len(rows) == len(metas):
        return metas, calls
    inputs, outputs = (
        array("q", (rows[metas[row]] for row in column)) for column in (calls.input_metas, calls.output_metas)
    )
    return tuple(rows), replace(calls, input_metas=inputs, output_metas=outputs)


def _fixed(kind: SizedKind) -> OpKind | None:
    return None if any(isinstance(leaf, Form) for leaf in kind.leaves()) else kind.at({})


Item = TypeVar("Item")


class _Bound(Generic[Item]):
    """Items by number and block; those that are the same in every block are there once."""

    def __init__(
        self,
        items: Sequence[Item],
        known: dict[tuple[int, int], Item],
        bind: Callable[[Item, int], Item],
        varies: Callable[[Item], bool],
    ) -> None:
        self._given, self._known, self._bind = items, known, bind
        self._varies = [varies(item) for item in items]
        self._numbers: dict[tuple[int, int], int] = {}
        self.items: list[Item] = []

    def __call__(self, number: int, block: int) -> int:
        key = number, block if self._varies[number] else -1  # -1: one item serves every block
        known = self._numbers.get(key)
        if known is None:
            if key not in self._known:
                self._known[key] = self._bind(self._given[number], block) if key[1] >= 0 else self._given[number]
            self._numbers[key] = known = self.add(self._known[key])
        return known

    def add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1
