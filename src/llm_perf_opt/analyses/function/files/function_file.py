"""A function in a file: `NAME.function.json`, sealed, read without torch.

The file holds programs and forms, and no model. So it answers every point in its cells, and none outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.analyses.function.files.layout import FunctionFile
from llm_perf_opt.analyses.function.files.reader import phases_of
from llm_perf_opt.analyses.function.files.tables import FUNCTION_FILE
from llm_perf_opt.analyses.function.files.writer import function_document
from llm_perf_opt.analyses.function.phase_function import PhaseFunction
from llm_perf_opt.core.callgraph.free_form import require_safe
from llm_perf_opt.core.callgraph.json_layout import column_from_deltas
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.reading import naming_file, read_json
from llm_perf_opt.core.record_fields import filled
from llm_perf_opt.core.sealing import sealed_lines

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedFunction:
    """What a function file holds. `workload` is that of the trace that was varied."""

    name: str  # of the model, as it was given
    tool_version: str
    workload: Mapping[str, Json]
    deployment: Mapping[str, Json]
    media_tokens: int
    phases: tuple[PhaseFunction, ...]
    chunk: PhaseFunction | None = None  # a step of several new tokens after a cache


def write_function(function: SavedFunction, path: Path) -> None:
    """Write it whole or not at all."""
    header = {
        "schema_version": SCHEMA_VERSION,
        "function_of": function.name,
        "tool_version": function.tool_version,
        "workload": dict(function.workload),
        "deployment": dict(function.deployment),
        "media_tokens": function.media_tokens,
    }
    write_whole(path, sealed_lines(function_document(header, function.phases, function.chunk)))


def read_function(path: Path) -> SavedFunction:
    """The function in a file, which agrees with itself."""
    file = read_json(path, FunctionFile, FUNCTION_FILE, hook=column_from_deltas)
    with naming_file(path):
        require_safe(file.workload, "workload", FUNCTION_FILE)
        require_safe(file.deployment, "deployment", FUNCTION_FILE)
        phases, chunk = phases_of(file)
        return filled(SavedFunction, file, name=file.function_of, phases=phases, chunk=chunk)
