"""A function as one JSON document: tables of what occurs often, then the phases with their cells."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import islice
from operator import sub
from typing import Any

from llm_perf_opt.analyses.function.files.layout import FORM_KEY, TEXT_KEY, TIMES_KEY, ModelRow
from llm_perf_opt.analyses.function.files.records import Writers, to_row
from llm_perf_opt.analyses.function.form import Atom, Form
from llm_perf_opt.analyses.function.phase_function import PhaseFunction
from llm_perf_opt.analyses.function.program.alignment import storages_of
from llm_perf_opt.analyses.function.program.loops import Loop
from llm_perf_opt.analyses.function.program.program import Program
from llm_perf_opt.analyses.function.program.sized import RepeatedItem, Size, SizedKind, SizedMeta, Worded
from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.record_fields import filled

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
        found = json.dumps(value) if key is None else key
        if found not in self._known:
            self._known[found] = len(self.rows)
            self.rows.append(value)
        return self._known[found]

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
        metas = [SizedMeta(one.meta.shape, one.meta.dtype, one.meta.device) for one in graph.parameters]
        columns = {
            "tensor": [self._tensor(meta) for meta in metas],
            "storage": [one.storage for one in graph.parameters],
            "is_buffer": [int(one.is_buffer) for one in graph.parameters],
        }
        deltas = {name: [*column[:1], *map(sub, column[1:], column)] for name, column in columns.items()}
        return self._tables["parameters"].row({"name": [one.name for one in graph.parameters], **deltas})

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
            "ops": self._columns(ops, [one.name for one in fields(ops) if not one.name.endswith("_ns")]),
            "calls": self._columns(calls, [one.name for one in fields(calls) if not one.name.endswith("_ns")]),
            "storages": {
                "bytes": self._column(array("q", map(self.size, program.block_bytes))),
                **self._columns(storages, ("born_op", "freed_op")),
                "origin": self._column(array("q", map(ORIGINS.index, storages.origin))),
            },
            "loops": [to_row(loop, Loop, self._special) for loop in program.loops],
            "workload": self.values(program.workload),
            "runtime": self.values(program.runtime),
            "oracle_answers": [{**asdict(one), "count": self.size(count)} for one, count in answers],
            "samples": [dict(point) for point in program.samples],
        }
