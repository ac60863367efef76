"""A function in a file: `NAME.function.json`, sealed, read without torch.

The file holds programs and forms, and no model. So it answers every point in its cells, and none outside.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations, islice
from math import lcm
from operator import sub
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from llm_perf_opt.core.callgraph.aggregates import count_calls, count_edges, count_own_ops, count_root_calls
from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.graph import CallGraph, shape_problems
from llm_perf_opt.core.callgraph.json_layout import column_from_deltas
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Coverage,
    Json,
    OpColumns,
    OracleAnswer,
    Parameter,
    StorageColumns,
    TensorMeta,
    require_safe,
)
from llm_perf_opt.core.output_files import plain_values, sealed_lines, split_seal, write_whole
from llm_perf_opt.core.reading import filled, naming_file, read_json
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.files.layout import (
    FORM_KEY,
    FUNCTION_FILE,
    TEXT_KEY,
    TIMES_KEY,
    CallsRow,
    FunctionFile,
    ModelRow,
    OpsRow,
    ParametersRow,
    ProgramRow,
    Tables,
    Writers,
    from_row,
    rows_of,
    to_row,
)
from llm_perf_opt.sweeps.function.form import Atom, Form, Point
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.alignment import storages_of
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.program import NoRule, Program
from llm_perf_opt.sweeps.function.program.sized import RepeatedItem, Size, SizedKind, SizedMeta, Worded
from llm_perf_opt.sweeps.function.search.sampling import Stride

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedFunction:
    """What a function file holds. `workload` is the workload of the trace that was varied."""

    name: str  # of the model, as it was given
    tool_version: str
    workload: Mapping[str, Json]
    deployment: Mapping[str, Json]
    media_tokens: int
    phases: tuple[PhaseFunction, ...]
    chunk: PhaseFunction | None = None  # a step of several new tokens after a cache


def write_function(function: SavedFunction, path: Path) -> None:
    """Write it whole or not at all."""
    write_whole(path, function_lines(function))


def function_lines(function: SavedFunction) -> Iterator[bytes]:
    """The text of the file in pieces."""
    header = {
        "schema_version": SCHEMA_VERSION,
        "function_of": function.name,
        "tool_version": function.tool_version,
        "workload": dict(function.workload),
        "deployment": dict(function.deployment),
        "media_tokens": function.media_tokens,
    }
    return sealed_lines(function_document(header, function.phases, function.chunk))


def read_function(path: Path) -> SavedFunction:
    """The function in a file, which agrees with itself."""
    file = read_json(path, FunctionFile, FUNCTION_FILE, hook=column_from_deltas)
    with naming_file(path):
        require_safe(file.workload, "workload", FUNCTION_FILE)
        require_safe(file.deployment, "deployment", FUNCTION_FILE)
        phases, chunk = phases_of(file)
        return filled(SavedFunction, file, name=file.function_of, phases=phases, chunk=chunk)


def own_function(raw: bytes) -> SavedFunction:
    """The function in a text that this program wrote; the caller has checked its digest. It is decoded once."""
    try:
        file = msgspec.json.decode(split_seal(raw)[0], type=FunctionFile, dec_hook=column_from_deltas)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FUNCTION_FILE.refusal("is not as it is written here", str(error)[:300]) from None
    phases, chunk = phases_of(file, is_own=True)
    return filled(SavedFunction, file, name=file.function_of, phases=phases, chunk=chunk)


# A function out of a file that nobody vouches for: one that can be evaluated, or an error that says where and why not.
#
# Every form of a program is evaluated at the first of its samples, and the call graph there must agree with itself.

_MOST_REGIONS = 4096  # of a phase
_MOST_OPS = 2**24  # of a loop at the first sample


def phases_of(file: FunctionFile, *, is_own: bool = False) -> tuple[tuple[PhaseFunction, ...], PhaseFunction | None]:
    """The phases of a file and its step of several new tokens; each can be evaluated anywhere in its cells.

    Programs that this program wrote, `is_own`, need not be shown to agree with themselves.
    """
    reader = _PhaseReader(file, is_own=is_own)
    phases = tuple(reader.phase(row, f"phases[{number}]") for number, row in enumerate(file.phases))
    return phases, None if file.chunk is None else reader.phase(file.chunk, "chunk")


class _PhaseReader:
    def __init__(self, file: FunctionFile, *, is_own: bool) -> None:
        self._file, self._is_own = file, is_own
        self._tables = Tables(file)
        self._read: dict[Form, None] = {}
        for row, model in enumerate(file.models):
            require_safe(model.deployment, f"models[{row}].deployment", FUNCTION_FILE)
            for path, params in model.constructor_params.items():
                require_safe(params, f"models[{row}].constructor_params[{path[:80]!r}]", FUNCTION_FILE)
        self._parameters = [
            self._parameters_of(row, f"parameters[{number}]") for number, row in enumerate(file.parameters)
        ]

    def phase(self, row: Any, where: str) -> PhaseFunction:
        self._read.clear()
        function = from_row(row, PhaseFunction, {Form: self._form, Program: self._program}, where)
        _require_tiling(function, where)
        for number, cell in enumerate(function.cells):
            at = f"{where}.cells[{number}]"
            _require_points((*cell.cell.checked, *cell.cell.program.samples), function.domain, at)
            if (cell.figures is None) == (cell.no_figures is None):
                raise FUNCTION_FILE.malformed(at, "figures, or the reason why there are none", None)
        if function.cells:
            with _evaluated(where):
                for form in self._read:
                    _number(form, function.cells[0].cell.program.samples[0])
        return function

    def _form(self, row: int, where: str) -> Form:
        """A form outside of the programs. Each is evaluated once."""
        form = self._tables.form(row, where)
        self._read[form] = None
        return form

    # A program: its graph at the first sample, and what of it varies.

    def _program(self, row: ProgramRow, where: str) -> Program:
        tables, sample = self._tables, row.samples[0]
        kinds = rows_of(tables.kinds, tables.column(row.kinds, where), f"{where}.kinds")
        metas = rows_of(tables.tensors, tables.column(row.metas, where), f"{where}.metas")
        blocks = tuple(tables.size(number, where) for number in tables.column(row.storages.bytes, where))
        workload, runtime = tables.values(row.workload, where), tables.values(row.runtime, where)
        counts = tuple(tables.size(oracle_answer.count, where) for oracle_answer in row.oracle_answers)
        with _evaluated(where):
            kinds = tuple(_placed(kind, sample) for kind in kinds)
            graph = replace(
                self._graph(row, where),
                op_kinds=tuple(kind.kind for kind in kinds),
                tensor_metas=tuple(_meta_at(meta, sample) for meta in metas),
                storages=self._storages(row, blocks, where),
                oracle_answers=tuple(
                    filled(OracleAnswer, answer, count=_number(count, sample))
                    for answer, count in zip(row.oracle_answers, counts, strict=True)
                ),
            )
        _refuse(islice(shape_problems(graph), 20), where)
        program = Program(
            skeleton=replace(_counted(graph), tensor_metas=()),
            kinds=kinds,
            metas=metas,
            block_bytes=blocks,
            loops=tuple(
                from_row(loop, Loop, {Form: self._form}, f"{where}.loops[{number}]")
                for number, loop in enumerate(row.loops)
            ),
            workload=workload,
            runtime=runtime,
            oracle_counts=counts,
            samples=row.samples,
        )
        if not self._is_own:
            self._require_sound(program, where)
        return program

    def _require_sound(self, program: Program, where: str) -> None:
        """The graph of the first sample agrees with itself, and the loops lie in it."""
        graph = program.skeleton
        ops, calls = len(ops_of(graph).kind), len(calls_of(graph).path)
        for loop in program.loops:
            blocks = len(loop.given) if loop.given else loop.blocks if loop.length else 0
            with _evaluated(where):
                times = loop.count.at(program.samples[0])
            if not 1 <= loop.blocks == blocks or loop.end_op > ops or loop.end_call > calls:
                raise FUNCTION_FILE.malformed(f"{where}.loops", f"loops over {ops} ops and {calls} calls", loop.end_op)
            if times * max(1, loop.length) > _MOST_OPS:
                raise FUNCTION_FILE.malformed(f"{where}.loops", f"loops of at most {_MOST_OPS:,} ops", times)
            if not all(0 <= row < len(program.block_bytes) for rows in loop.given for row in rows):
                raise FUNCTION_FILE.malformed(f"{where}.loops", "rows of memory", len(program.block_bytes))
        if any(loop.overlaps(later) for loop, later in combinations(program.loops, 2)):
            raise FUNCTION_FILE.malformed(f"{where}.loops", "loops that do not overlap", len(program.loops))
        with _evaluated(where):
            rebuilt = program.graph_at(program.samples[0])
        metas = (meta for kind in rebuilt.op_kinds for meta in (*kind.inputs, *kind.outputs))
        if any(size < 0 for meta in (*metas, *rebuilt.tensor_metas) for size in meta.shape):
            raise FUNCTION_FILE.malformed(where, "sizes of 0 or more at its first sample", dict(program.samples[0]))
        _refuse(rebuilt.problems(), where)

    def _graph(self, row: ProgramRow, where: str) -> CallGraph:
        """What does not vary."""
        model = rows_of(self._file.models, (row.model,), f"{where}.model")[0]
        tables = self._tables
        return CallGraph(
            **structs.asdict(model),
            phase=row.phase,
            stages=tuple((stage.name, stage.paths) for stage in row.stages),
            notes=row.notes,
            paths=rows_of(self._file.paths, tables.column(row.paths, where), f"{where}.paths"),
            parameters=rows_of(self._parameters, (row.parameters,), f"{where}.parameters")[0],
            ops=OpColumns(**self._columns(row.ops, f"{where}.ops")),
            calls=CallColumns(**self._columns(row.calls, f"{where}.calls")),
        )

    def _columns(self, row: OpsRow | CallsRow, where: str) -> dict[str, array[int]]:
        return {name: self._tables.column(getattr(row, name), f"{where}.{name}") for name in row.__struct_fields__}

    def _storages(self, row: ProgramRow, blocks: Sequence[Size], where: str) -> StorageColumns:
        origins = self._tables.column(row.storages.origin, where)
        return StorageColumns(
            bytes=array("q", (_number(size, row.samples[0]) for size in blocks)),
            born_op=self._tables.column(row.storages.born_op, where),
            freed_op=self._tables.column(row.storages.freed_op, where),
            origin=rows_of(ORIGINS, origins, f"{where}.storages.origin"),
        )

    def _parameters_of(self, row: ParametersRow, where: str) -> tuple[Parameter, ...]:
        lengths = [len(column) for column in (row.name, row.tensor, row.storage, row.is_buffer)]
        if len(set(lengths)) > 1:
            raise FUNCTION_FILE.malformed(where, f"columns of {lengths[0]} rows", lengths)
        tensors = rows_of(self._tables.tensors, row.tensor, f"{where}.tensor")
        are_buffers = rows_of((False, True), row.is_buffer, f"{where}.is_buffer")
        return tuple(
            Parameter(name=name, meta=_fixed(tensor, where), storage=storage, is_buffer=is_buffer)
            for name, tensor, storage, is_buffer in zip(row.name, tensors, row.storage, are_buffers, strict=True)
        )


@contextmanager
def _evaluated(where: str) -> Iterator[None]:
    """Forms that have no value at a point: of another variable, or beyond what a size can be."""
    try:
        yield
    except LookupError as error:
        raise FUNCTION_FILE.malformed(where, "forms of the variables of its domain", str(error)) from None
    except NoRule as refusal:
        raise FUNCTION_FILE.malformed(where, "loops that can be unfolded", str(refusal)) from None
    except ArithmeticError as error:
        raise FUNCTION_FILE.malformed(where, "forms with a value at its first sample", str(error)) from None


def _number(size: Size, point: Point) -> int:
    """The size at a point; what is another in each block of a loop, in the first of them."""
    if not isinstance(size, Form):
        return size
    return (size.bound(0) if size.varies_by_block else size).at(point)


def _values_at(value: Any, point: Point) -> Any:
    if isinstance(value, Mapping):
        return {key: _values_at(item, point) for key, item in value.items()}
    if isinstance(value, list):
        return [_values_at(item, point) for item in value]
    return _number(value, point) if isinstance(value, Form) else value


def _meta_at(meta: SizedMeta, point: Point) -> TensorMeta:
    return TensorMeta(tuple(_number(size, point) for size in meta.shape), meta.dtype, meta.device)


def _fixed(meta: SizedMeta, where: str) -> TensorMeta:
    """A weight; no workload changes its size."""
    if any(isinstance(size, Form) for size in meta.shape):
        raise FUNCTION_FILE.malformed(f"{where}.tensor", "a tensor with sizes that are numbers", meta.dtype)
    return _meta_at(meta, {})


def _placed(kind: SizedKind, sample: Point) -> SizedKind:
    """The op with what it is at the first sample."""
    parts = tuple(_placed(part, sample) for part in kind.parts)
    placed = replace(
        kind.kind,
        inputs=tuple(_meta_at(meta, sample) for meta in kind.inputs),
        outputs=tuple(_meta_at(meta, sample) for meta in kind.outputs),
        arguments=_values_at(kind.arguments, sample),
        parts=tuple(part.kind for part in parts),
    )
    return replace(kind, kind=placed, parts=parts)


def _counted(graph: CallGraph) -> CallGraph:
    """With the counts that its columns add up to."""
    paths, calls, ops = graph.paths, calls_of(graph), ops_of(graph)
    return replace(
        graph,
        coverage=Coverage(ops=len(ops.kind), op_kinds=len(set(ops.kind))),
        call_counts=count_calls(paths, calls),
        root_calls=count_root_calls(paths, calls),
        edges=count_edges(paths, calls),
        op_call_counts=count_own_ops(paths, calls, ops),
    )


def _refuse(problems: Iterator[str] | list[str], where: str) -> None:
    if listed := list(problems):
        more = f" (and {len(listed) - 3} more)" if len(listed) > 3 else ""
        why = "; ".join(problem[:300] for problem in listed[:3])
        raise FUNCTION_FILE.refusal(f"contradicts itself in {where}", why + more)


def _require_points(points: Sequence[Point], domain: Region, where: str) -> None:
    for point in points:
        if point.keys() != domain.keys():
            raise FUNCTION_FILE.malformed(where, f"points of {', '.join(domain)}", dict(point))


def _require_tiling(phase: PhaseFunction, where: str) -> None:
    """Cells and open regions lie in the domain, do not overlap, and leave nothing out."""
    parts = parts_of(phase)
    if len(parts) > _MOST_REGIONS:
        raise FUNCTION_FILE.malformed(where, f"at most {_MOST_REGIONS:,} regions", len(parts))
    if (problem := tiling_problem(phase.domain, parts)) is not None:
        raise FUNCTION_FILE.refusal(f"contradicts itself in {where}", f"regions do not tile the domain: {problem}")


_TABLES = ("atoms", "forms", "columns", "paths", "tensors", "kinds", "models", "parameters")


def function_document(
    header: Mapping[str, Json], phases: Sequence[PhaseFunction], chunk: PhaseFunction | None
) -> dict[str, Json]:
    """The document as plain dicts, lists and numbers, with the tables before the phases."""
    writer = _FunctionWriter()
    rows = {
        "phases": [writer.phase(phase) for phase in phases],
        "chunk": None if chunk is None else writer.phase(chunk),
    }
    return {**header, **writer.tables(), **rows}


class _Table:
    """Distinct rows in the order in which they were first met."""

    def __init__(self) -> None:
        self.rows: list[Json] = []
        self._known: dict[object, int] = {}

    def row(self, value: Json, key: object = None) -> int:
        """The number of a row; `key` is equal for equal rows, default: its JSON text."""
        name = json.dumps(value) if key is None else key
        if name not in self._known:
            self._known[name] = len(self.rows)
            self.rows.append(value)
        return self._known[name]

    def known(self, key: object) -> int | None:
        """The number of a row that is there already."""
        return self._known.get(key)


class _FunctionWriter:
    def __init__(self) -> None:
        self._tables = {name: _Table() for name in _TABLES}
        self._special: Writers = {Form: self.form, Program: self._program}

    def phase(self, phase: PhaseFunction) -> Json:
        return to_row(phase, PhaseFunction, self._special)

    def tables(self) -> dict[str, Json]:
        return {name: table.rows for name, table in self._tables.items()}

    # Forms. A form comes after every form that a step in it is of, so that a reader meets what it needs.

    def form(self, form: Form) -> int:
        known = self._tables["forms"].known(form)
        if known is not None:
            return known
        terms = [[coefficient, *map(self._atom, atoms)] for atoms, coefficient in form.terms.items()]
        return self._tables["forms"].row(terms, form)

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, str):
            return self._tables["atoms"].row(atom, atom)
        step = {"kind": str(atom.kind), "of": self.form(atom.of), "constants": list(atom.constants)}
        return self._tables["atoms"].row(step, atom)

    def size(self, size: Size) -> int:
        """The number itself, or below zero the form: -1 is the first."""
        return -1 - self.form(size) if isinstance(size, Form) else size

    def values(self, value: Any) -> Json:
        """Free values, in which a number may be a form."""
        if isinstance(value, Form):
            return {FORM_KEY: self.form(value)}
        if isinstance(value, RepeatedItem):
            return {TIMES_KEY: self.form(value.times), "item": self.values(value.item)}
        if isinstance(value, Worded):
            return {TEXT_KEY: [self.values(part) for part in value.parts]}
        if isinstance(value, Mapping):
            assert not any(key.startswith("$") for key in value), "no option or argument has such a name"
            return {key: self.values(item) for key, item in value.items()}
        return [self.values(item) for item in value] if isinstance(value, (list, tuple)) else value

    # What a program is made of.

    def _column(self, numbers: Sequence[int]) -> int:
        deltas = [*numbers[:1], *map(sub, islice(numbers, 1, None), numbers)]
        return self._tables["columns"].row(deltas, tuple(deltas))

    def _columns(self, record: Any, names: Sequence[str]) -> dict[str, int]:
        return {name: self._column(getattr(record, name)) for name in names}

    def _tensor(self, meta: SizedMeta) -> int:
        row = {"shape": [self.size(size) for size in meta.shape], "dtype": meta.dtype, "device": meta.device}
        return self._tables["tensors"].row(row, meta)

    def _kind(self, sized: SizedKind) -> int:
        kind = sized.kind
        row = {
            "name": kind.name,
            "inputs": [self._tensor(meta) for meta in sized.inputs],
            "outputs": [self._tensor(meta) for meta in sized.outputs],
            "arguments": self.values(sized.arguments),
            "input_names": list(kind.input_names),
            "output_aliases": list(kind.output_aliases),
            "mutates": kind.mutates,
            "parts": [self._kind(part) for part in sized.parts],
        }
        return self._tables["kinds"].row(row)

    def _path(self, path: str) -> int:
        return self._tables["paths"].row(path, path)

    def _model(self, graph: CallGraph) -> int:
        return self._tables["models"].row(plain_values(filled(ModelRow, graph)))

    def _parameters(self, graph: CallGraph) -> int:
        metas = [
            SizedMeta(parameter.meta.shape, parameter.meta.dtype, parameter.meta.device)
            for parameter in graph.parameters
        ]
        columns = {
            "tensor": [self._tensor(meta) for meta in metas],
            "storage": [parameter.storage for parameter in graph.parameters],
            "is_buffer": [int(parameter.is_buffer) for parameter in graph.parameters],
        }
        deltas = {name: [*column[:1], *map(sub, column[1:], column)] for name, column in columns.items()}
        return self._tables["parameters"].row({"name": [parameter.name for parameter in graph.parameters], **deltas})

    def _program(self, program: Program) -> dict[str, Json]:
        graph = program.skeleton
        assert graph.stopped_in is None, "a run that stopped has no function"
        ops, calls, storages = ops_of(graph), calls_of(graph), storages_of(graph)
        answers = zip(graph.oracle_answers, program.oracle_counts, strict=True)
        return {
            "phase": graph.phase,
            "model": self._model(graph),
            "parameters": self._parameters(graph),
            "stages": [{"name": name, "paths": list(paths)} for name, paths in graph.stages],
            "notes": list(graph.notes),
            "paths": self._column([self._path(path) for path in graph.paths]),
            "kinds": self._column([self._kind(kind) for kind in program.kinds]),
            "metas": self._column([self._tensor(meta) for meta in program.metas]),
            "ops": self._columns(ops, [field.name for field in fields(ops) if not field.name.endswith("_ns")]),
            "calls": self._columns(calls, [column.name for column in fields(calls) if not column.name.endswith("_ns")]),
            "storages": {
                "bytes": self._column(array("q", map(self.size, program.block_bytes))),
                **self._columns(storages, ("born_op", "freed_op")),
                "origin": self._column(array("q", map(ORIGINS.index, storages.origin))),
            },
            "loops": [to_row(loop, Loop, self._special) for loop in program.loops],
            "workload": self.values(program.workload),
            "runtime": self.values(program.runtime),
            "oracle_answers": [{**asdict(answer), "count": self.size(count)} for answer, count in answers],
            "samples": [dict(point) for point in program.samples],
        }


Part = tuple[Region, Stride | None]


def parts_of(function: PhaseFunction) -> list[Part]:
    """The cells and the open regions of a phase."""
    cells = [(cell.cell.region, cell.cell.stride) for cell in function.cells]
    return [*cells, *((open_region.region, open_region.stride) for open_region in function.open_regions)]


def tiling_problem(domain: Region, parts: Sequence[Part]) -> str | None:
    """Why parts do not tile a domain; None where they do."""
    for region, stride in ((domain, None), *parts):
        if region.keys() != domain.keys() or any(low > high for low, high in region.values()):
            return f"{_text(region)} is not a range of {', '.join(domain)}"
        if stride is not None and (stride.variable not in domain or stride.chunk < 1):
            return f"{stride} is not a rule for {', '.join(domain)}"
    full_domain: Part = (domain, None)
    for part in parts:
        if common_points(part, full_domain) != common_points(part):
            return f"{_text(part[0])} reaches beyond {_text(domain)}"
    for first, second in combinations(parts, 2):
        if common_points(first, second):
            return f"{_text(first[0])} and {_text(second[0])} overlap"
    missing = common_points(full_domain) - sum(map(common_points, parts))
    return f"{missing:,} points of {_text(domain)} are in no region" if missing else None


def common_points(*parts: Part) -> int:
    """How many points lie in all of these parts."""
    total = 1
    for name in parts[0][0]:
        low, high = max(region[name][0] for region, _ in parts), min(region[name][1] for region, _ in parts)
        total *= _values(low, high, [stride for _, stride in parts if stride is not None and stride.variable == name])
    return total


def _values(low: int, high: int, strides: Sequence[Stride]) -> int:
    """How many numbers of a range all strides hold: multiples of some chunks and of none of the others."""
    chunk = lcm(*(stride.chunk for stride in strides if stride.is_multiple))
    others = [stride.chunk for stride in strides if not stride.is_multiple]
    chosen = (some for count in range(len(others) + 1) for some in combinations(others, count))
    return sum((-1) ** len(some) * _multiples(low, high, lcm(chunk, *some)) for some in chosen)


def _multiples(low: int, high: int, of: int) -> int:
    return max(0, high // of - (low - 1) // of)


def _text(region: Region) -> str:
    return ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in region.items())
