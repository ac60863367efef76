"""From graphs of one program at several points to the program: every size in it as a form.

One sample, the fullest, is the skeleton. Its loops, run as often as another sample's, must give just the rows of that
sample. Then each row is a row of the skeleton, and its dimensions at all samples are fitted; so are the tensors of
module calls, the blocks of memory and the numbers of the header.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.grouped_experts import tokens_for_all, touched_experts
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role
from llm_perf_opt.sweeps.function.fitting import BATCH, Fitter, Routed
from llm_perf_opt.sweeps.function.form import Form, Point, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import Parting, same_program, storages_of
from llm_perf_opt.sweeps.function.program.families import SamplePlace, SizeForms
from llm_perf_opt.sweeps.function.program.loop_memory import CUTS, Home, Irregular, Row, RowTensor, homes_of, with_given
from llm_perf_opt.sweeps.function.program.loops import Loop, Repeats, expert_repeats, find_loops
from llm_perf_opt.sweeps.function.program.program import NoRule, Program, Tensors, folded, refolded
from llm_perf_opt.sweeps.function.program.sized import Size, SizedKind, SizedMeta
from llm_perf_opt.sweeps.function.program.unfolding import TensorsOfRows, Unfolded, Unfolding


def program_of(graphs: Sequence[CallGraph], fitter: Fitter) -> Program:
    """The program of which these are the graphs at the fitter's points; `NoRule` where there is none."""
    fitter = replace(fitter, routed=routers(graphs, fitter))
    skeleton, loops = skeleton_of(graphs, fitter)
    try:
        return _sized(skeleton, loops, graphs, fitter)
    except NoRule:
        if not loops or same_program(graphs) is not None:
            raise
        return _sized(graphs[0], (), graphs, fitter)  # what looked like experts in a loop is none


def _sized(skeleton: CallGraph, loops: Sequence[Loop], graphs: Sequence[CallGraph], fitter: Fitter) -> Program:
    rows = _Skeleton(skeleton, loops)
    samples = [
        _Sample(number, graph, rows.rows(graph, point))
        for number, (graph, point) in enumerate(zip(graphs, fitter.points, strict=True))
    ]
    return _Sizing(skeleton, loops, samples, SizeForms(fitter)).program()


class _Skeleton:
    """A trace with its loops run as often as in each sample; samples that run them equally often share the rows."""

    def __init__(self, graph: CallGraph, loops: Sequence[Loop]) -> None:
        self._graph, self._loops = graph, loops
        self._known: dict[tuple[int, ...], tuple[Unfolded, CallGraph]] = {}

    @cached_property
    def _unfolding(self) -> Unfolding:
        return Unfolding(self._graph, self._loops)

    def rows(self, graph: CallGraph, point: Point) -> Unfolded:
        """The rows of a sample as rows of the skeleton."""
        counts = tuple(loop.count.at(point) for loop in self._loops)
        try:
            if counts not in self._known:
                rows = self._unfolding.rows(counts)
                self._known[counts] = rows, refolded(self._graph, rows)
        except Irregular as refusal:
            raise NoRule(Parting(what="loops", op=None, text=str(refusal))) from refusal
        rows, refold = self._known[counts]
        # The proof that the loops are loops: run as often as in this sample, they give its very ops, calls and memory.
        parting = same_program([refold, graph])
        if parting is not None:
            raise NoRule(parting)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    number: int
    graph: CallGraph
    rows: Unfolded


Family = dict[int, list[tuple[SamplePlace, int]]]  # row of the skeleton -> where it was seen, and as what


class _Sizing:
    def __init__(
        self, skeleton: CallGraph, loops: Sequence[Loop], samples: Sequence[_Sample], sizes: SizeForms
    ) -> None:
        self._skeleton, self._loops, self._samples, self._sizes = skeleton, loops, samples, sizes

    def program(self) -> Program:
        kinds, kind_column = self._kinds()
        calls = calls_of(self._skeleton)
        metas: list[SizedMeta] = []
        inputs = self._metas(metas, "input")
        outputs = self._metas(metas, "output")
        skeleton = replace(
            self._skeleton,
            op_kinds=tuple(kind.kind for kind in kinds),
            ops=replace(ops_of(self._skeleton), kind=array("q", kind_column)),
            tensor_metas=(),
            calls=replace(calls, input_metas=array("q", inputs), output_metas=array("q", outputs)),
            input_metadata={},
            output_metadata={},
        )
        graphs = [sample.graph for sample in self._samples]
        everywhere = [SamplePlace(sample.number, -1) for sample in self._samples]
        sizes = self._sizes
        return Program(
            skeleton=skeleton,
            kinds=tuple(kinds),
            metas=tuple(metas),
            block_bytes=self._block_sizes(kinds, kind_column),
            loops=tuple(self._loops),
            workload=sizes.json(everywhere, [g.workload for g in graphs], None, "the workload of the header"),
            runtime=sizes.json(everywhere, [g.runtime for g in graphs], None, "the runtime of the header"),
            oracle_counts=self._oracle_counts(graphs, everywhere),
            samples=tuple(dict(point) for point in sizes.fitter.points),
        )

    def _routed(self, loop: int) -> Routed | None:
        return None if loop < 0 else self._loops[loop].routed

    def _first(self, row: Row, spans: Sequence[tuple[int, int]]) -> int:
        """The row of the first block that stands for a row of a loop."""
        if row.loop < 0:
            return row.what
        first, length = spans[row.loop]
        return first + (row.what - first) % length

    def _kinds(self) -> tuple[list[SizedKind], list[int]]:
        """The distinct ops, and which of them each row of the skeleton is."""
        spans = [(loop.first_op, loop.length) for loop in self._loops]
        families: Family = {}
        loops: dict[int, int] = {}
        for sample in self._samples:
            column = ops_of(sample.graph).kind
            for new, row in enumerate(sample.rows.ops):
                first = self._first(row, spans)
                families.setdefault(first, []).append((SamplePlace(sample.number, row.block), column[new]))
                loops[first] = row.loop
        entries = self._lists(spans)
        known: dict[tuple[object, ...], int] = {}
        numbers: dict[int, int] = {}
        kinds: list[SizedKind] = []
        for first, seen in families.items():
            lists = entries.get(first)
            slots = () if lists is None else tuple((entry.slot, entry.block) for entry in chain(*chain(*lists)))
            key = loops[first], tuple(seen), slots
            if key not in known:
                known[key] = len(kinds)
                kind = self._kind(seen, lists, loops[first])
                # What is not a size, such as names and aliases, is the skeleton's: its columns refer to this op.
                kinds.append(replace(kind, kind=self._skeleton.op_kinds[ops_of(self._skeleton).kind[first]]))
            numbers[first] = known[key]
        rows = range(len(ops_of(self._skeleton).kind))
        return kinds, [numbers[self._first(self._row(row, spans), spans)] for row in rows]

    def _lists(self, spans: Sequence[tuple[int, int]]) -> dict[int, list[Tensors]]:
        """Ops with lists over a loop among their tensors: row of the skeleton -> the tensors wherever it was seen."""
        lists_of_row: dict[int, list[Tensors]] = {}
        for rows in (sample.rows for sample in self._samples):
            listed = {**rows.op_inputs.listed, **rows.op_outputs.listed}
            for row in (Row(*(int(column[new]) for column in rows.ops.columns)) for new in listed):
                lists_of_row[self._first(row, spans)] = []
        for rows in (sample.rows for sample in self._samples if lists_of_row):
            for new, row in enumerate(rows.ops):
                first = self._first(row, spans)
                if first in lists_of_row:
                    lists_of_row[first].append((rows.op_inputs.of_row(new, row), rows.op_outputs.of_row(new, row)))
        return {first: lists for first, lists in lists_of_row.items() if not all(map(_is_plain, chain(*lists)))}

    def _row(self, row: int, spans: Sequence[tuple[int, int]]) -> Row:
        for number, (first, length) in enumerate(spans):
            if first <= row < first + length * self._loops[number].blocks:
                return Row(row, row, number, (row - first) // length)
        return Row(row, row, -1, -1)

    def _kind(self, seen: Sequence[tuple[SamplePlace, int]], entries: Sequence[Tensors] | None, loop: int) -> SizedKind:
        places = [place for place, _ in seen]
        kinds = [self._samples[place.sample].graph.op_kinds[number] for place, number in seen]
        if entries is None:
            return self._sizes.kind(places, kinds, self._routed(loop))
        name = kinds[0].name
        inputs = self._listed(
            places, [entry[0] for entry in entries], [kind.inputs for kind in kinds], f"{name}, an input"
        )
        outputs = self._listed(
            places, [entry[1] for entry in entries], [kind.outputs for kind in kinds], f"{name}, an output"
        )
        return self._sizes.kind(places, kinds, self._routed(loop), (inputs, outputs))

    def _listed(
        self,
        places: Sequence[SamplePlace],
        entries: Sequence[Sequence[RowTensor]],
        rows: Sequence[Sequence[TensorMeta]],
        what: str,
    ) -> list[SizedMeta]:
        """Tensors among which is a list over a loop, in the places of the skeleton."""
        slots: dict[int, tuple[int, list[SamplePlace], list[TensorMeta]]] = {}
        spots: dict[int, int] = {}
        for place, row, got in zip(places, rows, entries, strict=True):
            for entry, meta in zip(got, row, strict=True):
                _, where, metas = slots.setdefault(entry.slot, (entry.loop, [], []))
                where.append(SamplePlace(place.sample, entry.block))
                metas.append(meta)
                spots[entry.place] = entry.slot
        sized = {
            slot: self._sizes.meta(where, metas, self._routed(of), what) for slot, (of, where, metas) in slots.items()
        }
        return [sized[spots[place]] for place in range(max(spots, default=-1) + 1)]

    def _metas(self, metas: list[SizedMeta], side: str) -> list[int]:
        """Which of `metas` each tensor of the skeleton's calls is; those that are new are added."""
        spans = [(loop.first_call, loop.calls) for loop in self._loops]
        families: dict[tuple[int, int], list[tuple[SamplePlace, int]]] = {}
        of_loop: dict[tuple[int, int], int] = {}
        spots: dict[tuple[int, int], int] = {}
        for sample in self._samples:
            column, at = getattr(calls_of(sample.graph), f"{side}_metas"), 0
            tensors: TensorsOfRows = getattr(sample.rows, f"call_{side}s")
            for new, row in enumerate(sample.rows.calls):
                first = self._first(row, spans)
                for entry in tensors.of_row(new, row):
                    slot = first, entry.slot
                    families.setdefault(slot, []).append((SamplePlace(sample.number, entry.block), column[at]))
                    of_loop[slot] = entry.loop
                    spots[first, entry.place] = entry.slot
                    at += 1
        known: dict[tuple[object, ...], int] = {}
        numbers: dict[tuple[int, int], int] = {}
        for place, seen in families.items():
            key = of_loop[place], tuple(seen)
            if key not in known:
                known[key] = len(metas)
                seen_metas = [self._samples[at.sample].graph.tensor_metas[number] for at, number in seen]
                metas.append(self._sizes.meta([at for at, _ in seen], seen_metas, self._routed(of_loop[place])))
            numbers[place] = known[key]
        counts = getattr(calls_of(self._skeleton), f"{side}_count")
        firsts = [self._first(self._row(row, spans), spans) for row in range(len(counts))]
        return [
            numbers[first, spots[first, place]]
            for first, count in zip(firsts, counts, strict=True)
            for place in range(count)
        ]

    def _block_sizes(self, kinds: Sequence[SizedKind], column: Sequence[int]) -> tuple[Size, ...]:
        """A form for each block of memory: the form of the tensor that was written there, or one from its bytes."""
        homes = homes_of(self._skeleton, self._loops)
        seen: dict[tuple[int, ...], list[tuple[SamplePlace, int]]] = {}
        for sample in self._samples:
            for at, size_bytes in zip(sample.rows.storages, storages_of(sample.graph).bytes, strict=True):
                place = SamplePlace(sample.number, at.block)
                seen.setdefault(self._memory_key(at.where, homes), []).append((place, size_bytes))
        written = self._written(kinds, column, homes)
        size_of: dict[tuple[object, ...], Size] = {}
        sizes: list[Size] = []
        for row in range(len(storages_of(self._skeleton).origin)):
            key = self._memory_key(row, homes)
            values = tuple(seen[key])
            places, numbers = zip(*values, strict=True)
            # The form of a tensor in it is preferred: its dimensions were fitted one by one, while bytes are a matmul
            # and need more samples. It has to give the bytes of every sample, as memory may be larger than a tensor.
            form = next((tried for tried in written.get(key, ()) if self._sizes.gives(tried, places, numbers)), None)
            if form is None and values not in size_of:
                routed = self._routed(homes[row].loop) if row in homes else None
                size_of[values] = self._sizes.bytes_of(places, numbers, routed, lambda: "the size of a block of memory")
            size = size_of[values] if form is None else form
            sizes.append(size.constant if isinstance(size, Form) and size.constant is not None else size)
        return tuple(sizes)

    def _memory_key(self, row: int, homes: Mapping[int, Home]) -> tuple[int, ...]:
        home = homes.get(row)
        return (row,) if home is None else (home.loop, home.place)

    def _written(
        self, kinds: Sequence[SizedKind], column: Sequence[int], homes: Mapping[int, Home]
    ) -> dict[tuple[int, ...], list[Form]]:
        """Memory -> the bytes of the tensors that ops leave in it."""
        ops, starts = ops_of(self._skeleton), tensor_offsets(self._skeleton)[1]
        sizes = [[_meta_bytes(meta) for meta in kind.outputs] for kind in kinds]
        forms_of: dict[tuple[int, ...], list[Form]] = {}
        for row, kind in enumerate(column):
            for place, form in enumerate(sizes[kind]):
                storage = ops.output_storages[starts[row] + place]
                if storage >= 0:
                    forms = forms_of.setdefault(self._memory_key(storage, homes), [])
                    if form not in forms:
                        forms.append(form)
        return forms_of

    def _oracle_counts(self, graphs: Sequence[CallGraph], everywhere: Sequence[SamplePlace]) -> tuple[Size, ...]:
        """How often each value was guessed; the values of the skeleton where the model asks for others elsewhere."""
        answers = [
            [(oracle_answer.op, oracle_answer.policy, oracle_answer.site) for oracle_answer in graph.oracle_answers]
            for graph in (self._skeleton, *graphs)
        ]
        if any(answer != answers[0] for answer in answers):
            return tuple(answer.count for answer in self._skeleton.oracle_answers)
        rows = zip(*(graph.oracle_answers for graph in graphs), strict=True)
        what = "the count of guessed values"
        return tuple(self._sizes.size(everywhere, [answer.count for answer in row], None, lambda: what) for row in rows)


def _is_plain(entries: Sequence[RowTensor]) -> bool:
    return all(entry.slot == at == entry.place for at, entry in enumerate(entries))


def _meta_bytes(meta: SizedMeta) -> Form:
    total = Form.of(1)
    for size in meta.shape:
        total = total * size
    # Sixteen elements tell the bytes of one, also of types that pack several into a byte.
    sixteen = tensor_bytes(TensorMeta((16,), meta.dtype, meta.device))
    return Form.sum_of((term, coefficient * sixteen // 16) for term, coefficient in total.terms.items())


# Which of several traces of one phase stands for all of them, and which of its ops are a loop.
#
# The fullest trace is the skeleton. What it repeats is a loop only if the other traces repeat it as often as their
# workload says: this many more sequences, tokens or chunks must be this many more ops.

_BLOCKS = 4  # of a loop of equal blocks: the first two, one of the middle, the last


def skeleton_of(graphs: Sequence[CallGraph], fitter: Fitter) -> tuple[CallGraph, tuple[Loop, ...]]:
    """The sample that has most ops, and its loops; a trace in which no loop varies has only loops over experts."""
    parting = same_program(graphs)
    sizes = [len(ops_of(graph).kind) for graph in graphs]
    # One program: every sample has the same rows, so any will do.
    number = 0 if parting is None else max(range(len(graphs)), key=sizes.__getitem__)
    graph, point = graphs[number], fitter.points[number]
    experts = [expert_repeats(routed) for routed in fitter.routed]
    lists = list[Repeats]()
    loops = find_loops(graph, experts)
    if parting is not None and len(set(sizes)) > 1:
        # Experts without rows do not run, and a block that is not in the skeleton cannot be unfolded from it.
        fuller = _fuller(point, fitter)
        if fuller is not None:
            raise NoRule(parting, wanted=fuller)
        lists = [Repeats(count=Form.atom(name), times=point[name]) for name in fitter.variables]
        loops = _with_scans(graph, experts, fitter, sizes, point)
    loops = with_given(graph, loops, lists)
    try:
        return folded(graph, loops, _BLOCKS)
    except Irregular as refusal:
        if parting is None:
            return graph, ()  # what looked like experts in a loop is none
        raise NoRule(parting) from refusal


def _with_scans(
    graph: CallGraph, experts: Sequence[Repeats], fitter: Fitter, sizes: Sequence[int], point: Point
) -> tuple[Loop, ...]:
    """The loops of experts, and those over one variable that explain how many ops the samples have; else any."""
    for count in _counts(fitter):
        ops_per_block = _slope(count, sizes, fitter.points)
        if ops_per_block is None:
            continue
        times = (1, *_list_lengths(graph, count.at(point)))
        wanted = [repeat for factor in times for repeat in _repeats(count * factor, point)]
        loops = find_loops(graph, [*experts, *wanted])
        scans = _of_length([loop for loop in loops if loop.routed is None], count, ops_per_block)
        if scans:
            return tuple(loop for loop in loops if loop.routed is not None or loop in scans)
    names = [name for name in fitter.variables if _may_loop_over(name, sizes, fitter.points)]
    return find_loops(graph, [*experts, *(repeat for name in names for repeat in _repeats(Form.atom(name), point))])


def _counts(fitter: Fitter) -> Iterator[Form]:
    """How often something may run: once for each sequence, token or chunk."""
    for name in fitter.variables:
        plain = Form.atom(name)
        yield plain
        if name != BATCH:
            yield from (Form.atom(Step(StepKind.CEIL, plain, (chunk,))) for chunk in dict.fromkeys(fitter.chunks))


def _list_lengths(graph: CallGraph, count: int) -> list[int]:
    """How many windows each of something has: an op cuts a tensor into as many parts."""
    cuts = {len(kind.outputs) for kind in graph.op_kinds if kind.name.startswith(CUTS) and len(kind.outputs) > count}
    return sorted(parts // count for parts in cuts if not parts % count)


def _repeats(count: Form, point: Point) -> tuple[Repeats, Repeats]:
    """Once for each, or for each but one: a scan with a first step of another type."""
    times = count.at(point)
    return Repeats(count=count, times=times), Repeats(count=count - 1, times=times - 1)


def _slope(count: Form, sizes: Sequence[int], points: Sequence[Point]) -> int | None:
    """How many ops one more block is; None where it is not as many everywhere."""
    seen = sorted({(count.at(point), size) for size, point in zip(sizes, points, strict=True)})
    slopes = {(y - x) / (b - a) if b > a else 0 for (a, x), (b, y) in pairwise(seen)}
    slope = slopes.pop() if len(slopes) == 1 else 0
    return int(slope) if slope > 0 and slope == int(slope) else None


def _of_length(loops: Sequence[Loop], count: Form, ops: int) -> list[Loop]:
    """Those with most ops for one of what is counted, which together are exactly that number; else nothing."""
    # Too few loops would miss ops and too many would count some twice, so the sum has to be exact.
    (of,) = count.terms
    lengths = [(loop.length * loop.count.terms.get(of, 0), number) for number, loop in enumerate(loops)]
    taken: list[Loop] = []
    for length, number in sorted(lengths, reverse=True):
        if length <= ops:
            taken.append(loops[number])
            ops -= length
    return [] if ops else taken


def _may_loop_over(name: str, sizes: Sequence[int], points: Sequence[Point]) -> bool:
    """Whether no two samples that differ in this variable alone have as many ops as each other."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for size, point in zip(sizes, points, strict=True):
        others = tuple(value for key, value in sorted(point.items()) if key != name)
        counts.setdefault(others, []).append(size)
    return all(len(set(count)) == len(count) for count in counts.values())


def _fuller(point: Point, fitter: Fitter) -> Point | None:
    """A point at which every expert has rows; None where that is so already."""
    for routed in fitter.routed:
        if touched_experts(routed.experts, routed.chosen, routed.tokens.at(point)) < routed.experts:
            return _with_tokens_for_all(point, routed)
    return None


def _with_tokens_for_all(point: Point, routed: Routed) -> Point:
    name, enough = _longest(routed.tokens), tokens_for_all(routed.experts, routed.chosen)
    more = range(point[name], 2**20)  # tokens never fall as a length rises: the first that is enough is bisected
    return {**point, name: more[bisect_left(more, enough, key=lambda size: routed.tokens.at({**point, name: size}))]}


def _longest(tokens: Form) -> str:
    """The variable that is raised to have more tokens: a length, if there is one."""
    names = [atom for atom in tokens.atoms() if isinstance(atom, str)]
    return next((name for name in names if name != BATCH), BATCH)


def routers(graphs: Sequence[CallGraph], fitter: Fitter) -> tuple[Routed, ...]:
    """Where rows choose experts: the best `chosen` of `experts` scores for each of this many rows."""
    choices = [_choices(graph) for graph in graphs]
    result: list[Routed] = []
    for chosen, experts in choices[0]:
        rows = [of_graph.get((chosen, experts), set()) for of_graph in choices]
        if any(len(row) != 1 for row in rows):
            continue
        tokens = fitter.dimension(tuple(next(iter(rows_chosen)) for rows_chosen in rows))
        if tokens is not None and tokens.constant is None:
            result.append(Routed(tokens=tokens, chosen=chosen, experts=experts))
    return tuple(result)


def _choices(graph: CallGraph) -> dict[tuple[int, int], set[int]]:
    """How many of how many are chosen -> for how many rows."""
    tokens: dict[tuple[int, int], set[int]] = {}
    for kind in graph.op_kinds:
        if op_role(kind) is OpRole.CHOICE and kind.outputs and kind.outputs[0].shape and len(kind.inputs[0].shape) > 1:
            chosen, experts = kind.outputs[0].shape[-1], kind.inputs[0].shape[-1]
            if 0 < chosen < experts:
                tokens.setdefault((chosen, experts), set()).add(math.prod(kind.inputs[0].shape[:-1]))
    return tokens
