"""The call graph of one phase: where it comes from, what was counted, and the columns it was counted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.invariants import problems_of
from llm_perf_opt.core.callgraph.records import Json, OracleAnswer, RunCounts

SCHEMA_VERSION = 1

StagePaths = tuple[str, tuple[str, ...]]  # stage name, the module paths it claims


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallGraph(RunCounts):
    """Everything one traced phase has to say. The root module has path "".

    The counts are the contract and are complete by themselves: a file may hold nothing else. The columns are the detail
    from which the builder counted them; with both present `problems` checks one by the other. Compared by identity, as
    op kinds are: two graphs say the same when their JSON documents are equal.
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
    notes: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Every way in which the graph contradicts itself, one precise sentence each; empty when it is sound."""
        return problems_of(self)
