"""The call graph of one phase: what the contract promises every reader, and the columns it was counted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.invariants import problems_of
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Json,
    OpColumns,
    OpKind,
    OracleAnswer,
    Parameter,
    StorageColumns,
    TensorMeta,
)

SCHEMA_VERSION = 1

StagePaths = tuple[str, tuple[str, ...]]  # stage name, the module paths it claims


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
class CallGraph:
    """Everything one traced phase has to say. The root module has path "".

    The first part is the contract and is complete by itself: a file may hold nothing else. The columns below it are the
    detail from which the builder counted the contract; with both present `problems` holds one against the other.
    Compared by identity, as op kinds are: two graphs say the same when their JSON documents are equal.
    """

    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    library_versions: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    workload: Mapping[str, Json] = field(default_factory=dict)
    deployment: Mapping[str, Json] = field(default_factory=dict)  # stored formats; empty: all in the traced types
    phase: str = ""
    tracer: str = ""
    stages: tuple[StagePaths, ...] = ()
    runtime: Mapping[str, Json] = field(default_factory=dict)
    oracle_answers: tuple[OracleAnswer, ...] = ()
    stopped_in: str | None = None  # where a partial run ended; calls open at that moment count and have no outputs
    notes: tuple[str, ...] = ()
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

    paths: tuple[str, ...] = ()
    tensor_metas: tuple[TensorMeta, ...] = ()
    op_kinds: tuple[OpKind, ...] = ()
    ops: OpColumns | None = None
    calls: CallColumns | None = None
    storages: StorageColumns | None = None
    parameters: tuple[Parameter, ...] = ()

    def problems(self) -> list[str]:
        """Every way in which the graph contradicts itself, one precise sentence each; empty when it is sound."""
        return problems_of(self)
