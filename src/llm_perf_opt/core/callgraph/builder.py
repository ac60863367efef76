"""The one way a call graph comes into being: a tracer reports what happens, in order, and the builder counts.

`op` is called up to a million times, so it appends integers to flat columns and makes no object that outlives the call:
the garbage collector never has more to walk, and the millionth op costs what the first did. All looking up, merging and
adding up is left to `finish`, where equal kinds of ops become one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from llm_perf_opt import __version__
from llm_perf_opt.core.callgraph import aggregates
from llm_perf_opt.core.callgraph.event_logs import CallLog, StorageLog, StorageRows
from llm_perf_opt.core.callgraph.graph import CallGraph, StagePaths
from llm_perf_opt.core.callgraph.records import (
    Coverage,
    Json,
    Observation,
    OpColumns,
    OpKind,
    OracleAnswer,
    Parameter,
    TensorMeta,
    canonical_text,
    json_safe,
)


class KindTable:
    """Numbers kinds in the order of first use. The caller keeps its own map from object to row for the hot path."""

    def __init__(self) -> None:
        self._by_content: dict[tuple[object, ...], OpKind] = {}
        self._rows: dict[OpKind, int] = {}

    def row_of(self, kind: OpKind) -> int:
        """The row of the kind with this content. Parts get no row: they did not run as ops of their own."""
        canonical = self._canonical(kind)
        return self._rows.setdefault(canonical, len(self._rows))

    def kinds(self) -> tuple[OpKind, ...]:
        """Every kind that has a row, by row."""
        return tuple(self._rows)

    def _canonical(self, kind: OpKind) -> OpKind:
        parts = tuple(self._canonical(part) for part in kind.parts)
        arguments = json_safe(kind.arguments)
        content = (
            kind.name,
            kind.inputs,
            kind.outputs,
            canonical_text(arguments),
            kind.input_names,
            kind.output_aliases,
            kind.mutates,
            parts,
        )
        known = self._by_content.get(content)
        if known is None:
            known = self._by_content[content] = replace(kind, arguments=arguments, parts=parts)
        return known


_PENDING_LIMIT = 1 << 16


class CallGraphBuilder:
    """Collects one run. Modules and weights are declared in any order, at the latest before `finish`."""

    def __init__(self) -> None:
        self._module_types: dict[str, str] = {}
        self._module_children: dict[str, tuple[str, ...]] = {}
        self._constructor_params: dict[str, Mapping[str, Json]] = {}
        self._shared_params: dict[str, Mapping[str, Json]] = {}
        self._metas: dict[tuple[tuple[int, ...], str, str], TensorMeta] = {}
        self._meta_rows: dict[TensorMeta, int] = {}
        self._parameters: dict[str, tuple[TensorMeta, int, bool]] = {}
        self._kinds = KindTable()
        self._row_of_kind: dict[OpKind, int] = {}
        self._storages = StorageLog()
        self._calls = CallLog()
        self._answers: Counter[tuple[str, str, str]] = Counter()
        self._op_kind = array("q")
        self._op_call = array("q")
        self._op_inputs = array("q")
        self._op_outputs = array("q")
        self._op_duration_ns = array("q")
        self._op_device_ns = array("q")
        self._named_ops: Counter[tuple[str | None, str]] = Counter()
        # A list takes a short tuple several times faster than an array does; it is moved over at the end of a call.
        self._pending_inputs: list[int] = []
        self._pending_outputs: list[int] = []
        self._current_call = -1

    # ---- declarations

    def meta(self, shape: tuple[int, ...], dtype: str, device: str) -> TensorMeta:
        """The one `TensorMeta` of this content."""
        key = (shape, dtype, device)
        meta = self._metas.get(key)
        if meta is None:
            meta = self._metas[key] = TensorMeta(tuple(shape), dtype, device)
        return meta

    def module(
        self, path: str, class_name: str, children: tuple[str, ...], constructor_params: Mapping[str, Json]
    ) -> None:
        """Declare a module under its one path. A child shared by several parents keeps that path under each of them."""
        if path in self._module_types:
            raise ValueError(f"module {path!r} was declared twice")
        self._module_types[path] = class_name
        self._module_children[path] = tuple(dict.fromkeys(children))  # one module under two names is one child
        params = json_safe(constructor_params)
        # Thousands of experts are built alike: they share one mapping.
        self._constructor_params[path] = self._shared_params.setdefault(canonical_text(params), params)

    def parameter(self, name: str, meta: TensorMeta, token: int, bytes: int, *, is_buffer: bool) -> None:
        """Declare a weight or buffer; names with the same token are tied and occupy their storage once."""
        if name in self._parameters:
            raise ValueError(f"parameter {name!r} was declared twice")
        self._meta_row(meta)
        self._parameters[name] = (meta, token, is_buffer)
        self._storages.declare(token, bytes, "buffer" if is_buffer else "parameter")

    def given(self, token: int, bytes: int) -> None:
        """Declare memory that was prepared for the run and lives from its beginning on: an input, an earlier cache."""
        self._storages.give(token, bytes)

    # ---- events, in the order in which they happen

    def allocate(self, token: int, bytes: int, origin: str = "activation") -> None:
        """A storage is born; report it before the op that writes it. A token is never used again for another one."""
        self._storages.allocate(token, bytes, origin, len(self._op_kind))

    def free(self, token: int) -> None:
        """The storage died; a token that is not part of this run is ignored."""
        self._storages.free(token, len(self._op_kind))

    def op(self, kind: OpKind, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """An op ran; one token per tensor of its kind. A token never allocated becomes memory from outside the run."""
        row = self._row_of_kind.get(kind)
        if row is None:
            row = self._new_kind(kind)
        if len(inputs) != len(kind.inputs) or len(outputs) != len(kind.outputs):
            raise ValueError(
                f"{kind.name} takes {len(kind.inputs)} tensors and gives {len(kind.outputs)}; "
                f"got {len(inputs)} and {len(outputs)} tokens"
            )
        self._op_kind.append(row)
        self._op_call.append(self._current_call)
        self._pending_inputs.extend(inputs)
        self._pending_outputs.extend(outputs)

    def timed_op(self, kind: OpKind, *, duration_ns: int, device_ns: int | None = None) -> None:
        """An op of which a profiler knows the time and not the memory: its kind has no tensors. All ops, or none."""
        self.op(kind, (), ())
        self._op_duration_ns.append(duration_ns)
        if device_ns is not None:
            self._op_device_ns.append(device_ns)

    def named_op(self, path: str | None, name: str) -> None:
        """An op of which only the name and the module are known: it is counted there, and its cost stays unknown."""
        self._named_ops[path, name] += 1

    def enter(self, path: str, tensors: Sequence[tuple[TensorMeta, int]], time_ns: int | None = None) -> None:
        """A module's forward began, with these tensors and the tokens of their storages."""
        rows = [self._meta_row(meta) for meta, _ in tensors]
        self._current_call = self._calls.enter(path, rows, [token for _, token in tensors], len(self._op_kind))
        if time_ns is not None:
            self._calls.started(time_ns)

    def leave(self, tensors: Sequence[tuple[TensorMeta, int]], time_ns: int | None = None) -> None:
        """The forward entered last returned these tensors."""
        if time_ns is not None:
            self._calls.ended(time_ns)
        rows = [self._meta_row(meta) for meta, _ in tensors]
        self._current_call = self._calls.leave(rows, [token for _, token in tensors], len(self._op_kind))
        if len(self._pending_inputs) > _PENDING_LIMIT:
            self._settle_pending()

    def storage_rows(self, tokens: Iterable[int]) -> frozenset[int]:
        """The rows that storages of these tokens have in the finished graph; a token without a storage has none."""
        rows = self._storages.rows(len(self._op_kind))
        return frozenset(row for token in tokens if (row := rows.row_of(token)) is not None)

    @property
    def current_path(self) -> str | None:
        """The module that is running its forward, or None outside any."""
        return self._calls.current_path

    def answer(self, op: str, policy: str, site: str) -> None:
        """An oracle stood in for a value that no tensor holds."""
        self._answers[op, policy, site] += 1

    # ---- the result

    def finish(
        self,
        *,
        model: str,
        phase: str,
        tracer: str,
        workload: Mapping[str, Json],
        stages: Sequence[StagePaths],
        runtime: Mapping[str, Json],
        library_versions: Mapping[str, str],
        notes: Sequence[str] = (),
        stopped_in: str | None = None,
    ) -> CallGraph:
        """Close the run. Calls may be open only if it stopped half-way, in `stopped_in`; they end here."""
        if stopped_in is None and self.current_path is not None:
            raise ValueError(f"the call of {self.current_path!r} was never left, and the run is not said to be partial")
        while self.current_path is not None:
            self.leave(())
        return replace(
            self._counted(),
            tool_version=__version__,
            library_versions=dict(library_versions),
            model=model,
            workload=json_safe(workload),
            phase=phase,
            tracer=tracer,
            stages=tuple((name, tuple(claimed)) for name, claimed in stages),
            runtime=json_safe(runtime),
            oracle_answers=tuple(
                OracleAnswer(op=op, policy=policy, site=site, count=count)
                for (op, policy, site), count in self._answers.items()
            ),
            stopped_in=stopped_in,
            notes=tuple(notes),
        )

    def _counted(self) -> CallGraph:
        """The graph without its header: the columns, and the contract keys counted from them."""
        self._settle_pending()
        kinds, paths, metas = self._kinds.kinds(), self._calls.paths(), tuple(self._meta_rows)
        storages = self._storages.rows(len(self._op_kind))
        ops = self._op_columns(kinds, storages) if self._op_kind else None
        calls = self._calls.columns(storages, metas)
        parameters = tuple(
            Parameter(name=name, meta=meta, storage=storages.of_token(token), is_buffer=is_buffer)
            for name, (meta, token, is_buffer) in self._parameters.items()
        )
        return CallGraph(
            coverage=self._coverage(),
            call_counts=aggregates.count_calls(paths, calls),
            root_calls=aggregates.count_root_calls(paths, calls),
            edges=aggregates.count_edges(paths, calls),
            op_call_counts=aggregates.count_own_ops(paths, calls, ops) if ops else self._count_named_ops(paths),
            module_children=self._module_children,
            module_types=self._module_types,
            constructor_params=self._constructor_params,
            input_metadata=_observations(aggregates.count_inputs(paths, metas, calls)),
            output_metadata=_observations(aggregates.count_outputs(paths, metas, calls)),
            paths=paths,
            tensor_metas=metas,
            op_kinds=kinds,
            ops=ops,
            calls=calls,
            storages=storages.columns(),
            parameters=parameters,
        )

    def _op_columns(self, kinds: tuple[OpKind, ...], storages: StorageRows) -> OpColumns:
        return OpColumns(
            kind=self._op_kind,
            call=self._op_call,
            input_storages=storages.of_tokens(self._op_inputs, _MetaAt(self._op_kind, [kind.inputs for kind in kinds])),
            output_storages=storages.of_tokens(
                self._op_outputs, _MetaAt(self._op_kind, [kind.outputs for kind in kinds])
            ),
            duration_ns=self._times(self._op_duration_ns),
            device_ns=self._times(self._op_device_ns),
        )

    def _times(self, column: array[int]) -> array[int]:
        if column and len(column) != len(self._op_kind):
            raise ValueError(f"{len(column)} of {len(self._op_kind)} ops have a time: all of them, or none")
        return column

    def _coverage(self) -> Coverage | None:
        if self._op_kind:
            return Coverage(ops=len(self._op_kind), op_kinds=len(set(self._op_kind)))
        if self._named_ops:
            return Coverage(ops=self._named_ops.total(), op_kinds=len({name for _, name in self._named_ops}))
        return None

    def _count_named_ops(self, paths: Sequence[str]) -> dict[str, int]:
        own = dict.fromkeys(paths, 0) if self._named_ops else {}
        for (path, _), count in self._named_ops.items():
            if path is not None:
                own[path] += count
        return own

    def _new_kind(self, kind: OpKind) -> int:
        for meta in (*kind.inputs, *kind.outputs, *_part_metas(kind)):
            self._meta_row(meta)
        row = self._row_of_kind[kind] = self._kinds.row_of(kind)
        return row

    def _meta_row(self, meta: TensorMeta) -> int:
        row = self._meta_rows.get(meta)
        if row is None:
            row = self._meta_rows[meta] = len(self._meta_rows)
        return row

    def _settle_pending(self) -> None:
        self._op_inputs.fromlist(self._pending_inputs)
        self._op_outputs.fromlist(self._pending_outputs)
        self._pending_inputs.clear()
        self._pending_outputs.clear()


class _MetaAt:
    """The tensor at a position of a flat column of the ops; the index is made when first asked, if ever."""

    def __init__(self, kind_of_op: array[int], tensors_of_kind: list[tuple[TensorMeta, ...]]) -> None:
        self._kind_of_op = kind_of_op
        self._tensors_of_kind = tensors_of_kind
        self._ends: list[int] | None = None

    def __call__(self, position: int) -> TensorMeta:
        if self._ends is None:
            arity = [len(tensors) for tensors in self._tensors_of_kind]
            self._ends = list(accumulate(map(arity.__getitem__, self._kind_of_op)))
        op = bisect_right(self._ends, position)
        return self._tensors_of_kind[self._kind_of_op[op]][position - self._ends[op]]


def _part_metas(kind: OpKind) -> Iterator[TensorMeta]:
    for part in kind.parts:
        yield from (*part.inputs, *part.outputs)
        yield from _part_metas(part)


def _observations(seen: aggregates.ObservedTensors) -> dict[str, tuple[Observation, ...]]:
    shared: dict[tuple[tuple[TensorMeta, ...], int], Observation] = {}
    return {
        path: tuple(
            shared.setdefault((tensors, calls), Observation(tensors=tensors, calls=calls))
            for tensors, calls in by_tensors.items()
        )
        for path, by_tensors in seen.items()
    }
