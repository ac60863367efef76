"""The call-graph file, object by object, as it is written. `schema.json` is generated from these records.

Imported only when a file is read: msgspec, which decodes into them, takes as long to load as the rest of this room.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

if TYPE_CHECKING:
    Integers = array[int]
else:
    Integers = array

_LARGEST = 2**63 - 1

Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=_LARGEST)]
FreeForm = Annotated[dict[str, Any], Meta(description="Any JSON values, at most 32 levels deep.")]
Texts = tuple[str, ...]
Rows = tuple[Count, ...]
Column = Annotated[
    Integers,
    Meta(description="Delta-encoded: the first value, then the difference of each value to the one before it."),
]


def column_from_deltas(_: type, deltas: Any) -> array[int]:
    """The hook that decodes a `Column`; types are compared exactly, because `True` is an `int` to Python."""
    if type(deltas) is not list or not set(map(type, deltas)) <= {int}:
        raise ValueError("a list of whole numbers")
    try:
        return array("q", accumulate(deltas))
    except OverflowError:
        raise ValueError("differences that add up to 64-bit numbers") from None


class _Object(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    pass


class Tensor(_Object, frozen=True, kw_only=True):
    """A tensor without its values. The dtype is torch's name without the prefix; a weight may have a stored format."""

    shape: Rows
    dtype: Annotated[str, Meta(description="bfloat16; of a weight also a stored format: int4-g128")]
    device: str


class StageRow(_Object, frozen=True, kw_only=True):
    """A stage and the modules that it claims."""

    name: str
    paths: Texts


class OracleRow(_Object, frozen=True, kw_only=True):
    """A value the run needed and no tensor held: here the trace is a model of the run."""

    op: str
    policy: str
    site: Annotated[str, Meta(description="file.py:line in function")]
    count: Positive


class CoverageRow(_Object, frozen=True, kw_only=True):
    """What the tracer saw."""

    ops: Count
    op_kinds: Count


class ObservationRow(_Object, frozen=True, kw_only=True):
    """One distinct list of tensors, positional and keyword, containers flattened, and the number of calls with it."""

    tensors: tuple[Tensor, ...]
    calls: Positive


class EventRow(_Object, frozen=True, kw_only=True):
    """A module was entered or left, under the module that was running then."""

    event: Literal["enter", "exit"]
    path: str
    parent: Annotated[str | None, Meta(description="The enclosing call's module; null where no module called it.")]
    index: Annotated[Count, Meta(description="Position in the list.")]


class KindRow(_Object, frozen=True, kw_only=True):
    """One distinct op. `inputs` and `outputs` are rows of tensor_metas, `parts` are rows of part_kinds."""

    name: Annotated[str, Meta(description="aten.linear.default")]
    inputs: Rows
    outputs: Rows
    arguments: FreeForm
    input_names: Annotated[Texts, Meta(description="Schema name of each input, or empty.")]
    output_aliases: Annotated[
        tuple[Annotated[int, Meta(ge=-1, le=_LARGEST)], ...],
        Meta(description="Per output the input that it shares storage with, or -1; or empty."),
    ]
    mutates: bool
    parts: Rows


class OpsTable(_Object, frozen=True, kw_only=True):
    """Every op, in order. The storage columns are flat: an op owns as many entries as its kind has tensors."""

    kind: Annotated[Column, Meta(description="Rows of op_kinds.")]
    call: Annotated[Column, Meta(description="Rows of calls, -1 outside any.")]
    input_storages: Annotated[Column, Meta(description="Rows of storages.")]
    output_storages: Annotated[Column, Meta(description="Rows of storages.")]
    duration_ns: Annotated[Column, Meta(description="Time on the host; absent where not measured.")] | UnsetType = UNSET
    device_ns: (
        Annotated[Column, Meta(description="Time of the launched kernels; absent where not measured.")] | UnsetType
    ) = UNSET


class CallsTable(_Object, frozen=True, kw_only=True):
    """Every module call, in the order of entry. Tensors are flat: a call owns input_count and output_count entries."""

    path: Annotated[Column, Meta(description="Rows of paths.")]
    parent: Annotated[Column, Meta(description="The enclosing call, an earlier row, or -1.")]
    first_op: Annotated[Column, Meta(description="First op inside the call, children included.")]
    end_op: Annotated[Column, Meta(description="The op after the last one inside.")]
    input_count: Column
    output_count: Column
    input_metas: Annotated[Column, Meta(description="Rows of tensor_metas.")]
    input_storages: Annotated[Column, Meta(description="Rows of storages.")]
    output_metas: Annotated[Column, Meta(description="Rows of tensor_metas.")]
    output_storages: Annotated[Column, Meta(description="Rows of storages.")]
    started_ns: (
        Annotated[Column, Meta(description="From the beginning of the run; absent where not measured.")] | UnsetType
    ) = UNSET
    ended_ns: (
        Annotated[Column, Meta(description="From the beginning of the run; absent where not measured.")] | UnsetType
    ) = UNSET


class StoragesTable(_Object, frozen=True, kw_only=True):
    """Every block of memory, live from born_op up to, not including, freed_op."""

    bytes: Column
    born_op: Column
    freed_op: Column
    origin: Annotated[
        Column,
        Meta(
            description="0 parameter, 1 buffer, 2 input, 3 activation, 4 external, "
            "5 scratch (held by a composite op only while it runs)."
        ),
    ]


class ParametersTable(_Object, frozen=True, kw_only=True):
    """Weights and buffers by name; tied ones share a storage."""

    name: Texts
    meta: Annotated[Column, Meta(description="Rows of tensor_metas.")]
    storage: Annotated[Column, Meta(description="Rows of storages, or -1.")]
    is_buffer: Annotated[Column, Meta(description="0 or 1.")]


class CallGraphFile(_Object, frozen=True, kw_only=True):
    """One traced phase of one model.

    The contract keys (call_counts to runtime) are complete by themselves; paths, tensor_metas, part_kinds, op_kinds,
    ops, calls, storages and parameters are the detail they were counted from and may be left out. Invariants between
    keys (sums, nesting, index ranges) are checked on loading and are not expressible here.
    """

    schema_version: Literal[1]
    tool_version: Annotated[str, Meta(description="Version of llm-perf-opt that wrote the file.")] = ""
    library_versions: dict[str, str] = field(default_factory=dict)
    model: str = ""
    workload: FreeForm = field(default_factory=dict)
    deployment: Annotated[
        FreeForm,
        Meta(
            description="How weights and cache are stored: weights, weights_from, cache, cache_from, warnings. "
            "Absent or empty: in the types of the trace."
        ),
    ] = field(default_factory=dict)
    phase: Annotated[str, Meta(description="Also the stage of every call that no stage claims.")] = ""
    tracer: str = ""
    stages: tuple[StageRow, ...] = ()
    runtime: Annotated[
        FreeForm, Meta(description="What the model's loops did: images, crops per image, decoder depth, decode steps.")
    ] = field(default_factory=dict)
    oracle_answers: tuple[OracleRow, ...] = ()
    stopped_in: Annotated[
        str | None,
        Meta(description="Module path where a partial run ended; calls open at that moment count and have no outputs."),
    ] = None
    notes: Texts = ()
    coverage: Annotated[CoverageRow, Meta(description="Absent when the tracer does not see ops.")] | UnsetType = UNSET
    call_counts: Annotated[dict[str, Positive], Meta(description='Module path -> calls. The root has path "".')]
    root_calls: Annotated[
        dict[str, Positive], Meta(description="Module path -> the calls among call_counts that no module made.")
    ] = field(default_factory=dict)
    edges: Annotated[
        dict[Annotated[str, Meta(pattern="->")], Positive],
        Meta(description='"parent->child" -> calls; the parent is the nearest enclosing called module.'),
    ]
    op_call_counts: Annotated[
        dict[str, Count], Meta(description="Module path -> tensor operations run directly in it.")
    ] = field(default_factory=dict)
    module_children: Annotated[
        dict[str, Texts],
        Meta(
            description="Module path -> full paths of its children. "
            "A shared module keeps its one path under every parent."
        ),
    ] = field(default_factory=dict)
    module_types: dict[str, str] = field(default_factory=dict)
    constructor_params: Annotated[
        dict[str, FreeForm],
        Meta(
            description="Module path -> what fixes its tensor shapes. "
            "Infinities, NaN and integers beyond 64 bits are text."
        ),
    ] = field(default_factory=dict)
    input_metadata: Annotated[
        dict[str, tuple[ObservationRow, ...]], Meta(description="Module path -> the tensors that went in.")
    ] = field(default_factory=dict)
    output_metadata: Annotated[
        dict[str, tuple[ObservationRow, ...]], Meta(description="Module path -> the tensors that came out.")
    ] = field(default_factory=dict)
    events: Annotated[
        tuple[EventRow | tuple[Literal["enter", "exit"], str], ...],
        Meta(description="Enter and exit of every call, in order; written on request. A pair is an event and a path."),
    ] = ()
    paths: Annotated[Texts, Meta(description="Table of the called module paths.")] = ()
    tensor_metas: Annotated[tuple[Tensor, ...], Meta(description="Table of tensors.")] = ()
    part_kinds: Annotated[
        tuple[KindRow, ...],
        Meta(description="Table of the primitive ops that composite ones run; a row refers only to rows before it."),
    ] = ()
    op_kinds: Annotated[tuple[KindRow, ...], Meta(description="Table of the distinct ops that were dispatched.")] = ()
    ops: OpsTable | UnsetType = UNSET
    calls: CallsTable | UnsetType = UNSET
    storages: StoragesTable | UnsetType = UNSET
    parameters: ParametersTable | UnsetType = UNSET
    content_sha256: (
        Annotated[
            str,
            Meta(
                pattern="^[0-9a-f]{64}$",
                description="The last key of a sealed file: SHA-256 of every byte before it. "
                "A file without it must agree with itself.",
            ),
        ]
        | UnsetType
    ) = UNSET
