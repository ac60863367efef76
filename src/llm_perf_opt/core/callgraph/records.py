"""The nouns of a trace: tensors, distinct ops, and the columns that say what ran, in which order, and for how long.

A trillion-parameter mixture of experts runs a million ops. Each *distinct* op is therefore one `OpKind`, and an
occurrence is a row of integers in `OpColumns`; the same holds for module calls and storages.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.reading import FileKind

Json = Any


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What is known of a tensor without its values. `dtype` is torch's name without the prefix: `bfloat16`."""

    shape: tuple[int, ...]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpKind:
    """One distinct operation: name, tensors in and out, the other arguments, and what it does to memory.

    Two occurrences with the same shapes, dtypes and arguments share one kind, so a price is computed once per kind.
    Compared by identity: a tracer looks kinds up once per op, and hashing the fields would cost more than the op.
    """

    name: str  # "aten.linear.default"
    inputs: tuple[TensorMeta, ...]  # every tensor argument in schema order, lists flattened
    outputs: tuple[TensorMeta, ...]
    arguments: Mapping[str, Json] = field(default_factory=dict)  # the others by schema name, defaults left out
    input_names: tuple[str, ...] = ()  # schema name of each input: which of them is `bias`, `weight`, `attn_mask`
    output_aliases: tuple[int, ...] = ()  # per output: the input that it shares storage with, or -1 for fresh memory
    mutates: bool = False  # writes into one of its inputs
    parts: tuple[OpKind, ...] = ()  # the primitive ops a composite one runs; empty when it is primitive or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class OpColumns:
    """Every op that was dispatched, in order; row i is op i.

    `input_storages` and `output_storages` are flat: op i owns as many entries as its kind has inputs and outputs.
    The times are empty where nobody measured them; an op that only ran on the host has a `device_ns` of 0.
    """

    kind: array[int]  # index into CallGraph.op_kinds
    call: array[int]  # index of the module call it ran directly in, or -1 outside any
    input_storages: array[int]
    output_storages: array[int]
    duration_ns: array[int] = field(default_factory=lambda: array("q"))  # on the host, from dispatch to return
    device_ns: array[int] = field(default_factory=lambda: array("q"))  # of the kernels it launched


@dataclass(frozen=True, slots=True, kw_only=True)
class CallColumns:
    """Every module call, in the order of entry; row i is call i.

    `first_op` and `end_op` delimit the ops that ran inside, children included. Input and output tensors are flat:
    call i owns `input_count[i]` entries of `input_metas` and `input_storages`, from the running sum on.
    `started_ns` and `ended_ns` count from the beginning of the run, and are empty where nobody measured time.
    """

    path: array[int]  # index into CallGraph.paths
    parent: array[int]  # index of the enclosing call, or -1
    first_op: array[int]
    end_op: array[int]
    input_count: array[int]
    output_count: array[int]
    input_metas: array[int]  # index into CallGraph.tensor_metas
    input_storages: array[int]
    output_metas: array[int]
    output_storages: array[int]
    started_ns: array[int] = field(default_factory=lambda: array("q"))
    ended_ns: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageColumns:
    """Every block of memory; row i is storage i. It is live from `born_op` up to, not including, `freed_op`.

    Storages that existed before the run have `born_op` 0 and an origin other than `activation`; those that outlive it
    have `freed_op` equal to the number of ops. `scratch` is what a composite op holds next to its result while it runs.
    """

    bytes: array[int]
    born_op: array[int]
    freed_op: array[int]
    origin: tuple[str, ...]  # "parameter" | "buffer" | "input" | "activation" | "external" | "scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A named weight or buffer. Tied weights are several names with one storage."""

    name: str  # full dotted name, as in the state dict
    meta: TensorMeta
    storage: int  # row of StorageColumns, or -1 when the run has no storages
    is_buffer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAnswer:
    """A value the run needed and no tensor held: here the trace is a model of the run, not the run itself."""

    op: str
    policy: str
    site: str  # "file.py:123 in function" of the model code that asked
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The tensors that went into, or came out of, a module, and in how many of its calls they were just these."""

    tensors: tuple[TensorMeta, ...]
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much the tracer saw: `ops` that ran, inside modules and outside, and the distinct kinds among them."""

    ops: int
    op_kinds: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunDetail:
    """What ran, occurrence by occurrence; each part is absent where the tracer did not see it."""

    paths: tuple[str, ...] = ()
    tensor_metas: tuple[TensorMeta, ...] = ()
    op_kinds: tuple[OpKind, ...] = ()
    ops: OpColumns | None = None
    calls: CallColumns | None = None
    storages: StorageColumns | None = None
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunCounts(RunDetail):
    """What the contract promises every reader, complete by itself, and the detail that it was counted from."""

    stopped_in: str | None = None  # where a partial run ended; calls open at that moment count and have no outputs
    coverage: Coverage | None = None  # None: the tracer does not see ops
    call_counts: Mapping[str, int] = field(default_factory=dict)
    root_calls: Mapping[str, int] = field(default_factory=dict)  # the calls among them that no module made
    edges: Mapping[str, int] = field(default_factory=dict)  # "parent->child", the parent being the enclosing call
    op_call_counts: Mapping[str, int] = field(default_factory=dict)
    module_children: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    module_types: Mapping[str, str] = field(default_factory=dict)
    constructor_params: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    input_metadata: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    output_metadata: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    events: tuple[tuple[str, str], ...] = ()  # ("enter" | "exit", path), in order


MAX_DEPTH = 32
SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1  # the range of torch's own scalars, int64 and uint64


def json_safe(value: object, depth: int = 0) -> Json:
    """The value as null, bool, int, float, str, list or dict, so that it reads the same before and after saving.

    Tuples become lists and keys become text. What JSON cannot hold, the infinities, NaN and integers beyond 64 bits,
    becomes its own text ("-inf"). Any other type is the caller's to translate: ValueError.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"a value nested more than {MAX_DEPTH} levels deep has no place in a trace")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if SMALLEST_INT <= value <= LARGEST_INT else str(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): json_safe(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item, depth + 1) for item in value]
    raise ValueError(f"a {type(value).__name__} has no JSON form: {value!r:.80}")


def canonical_text(value: Json) -> str:
    """Equal texts for equal values only: unlike `==` it tells 1 from True and from 1.0."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def require_safe(values: Mapping[str, Json], where: str, kind: FileKind, depth: int = 0) -> None:
    """Values out of a JSON text are within the bounds of what `json_safe` lets in."""
    if values and depth >= MAX_DEPTH:
        raise kind.malformed(where, f"at most {MAX_DEPTH} levels", values)
    for value in values.values() if isinstance(values, Mapping) else values:
        if type(value) is int and not SMALLEST_INT <= value <= LARGEST_INT:
            raise kind.malformed(where, "an integer of at most 64 bits", value)
        if type(value) in (dict, list):
            require_safe(value, where, kind, depth + 1)
