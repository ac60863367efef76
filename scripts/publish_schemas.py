"""Writes the published JSON Schemas from the records of the files: `python scripts/publish_schemas.py [--check]`."""

from __future__ import annotations

import inspect
import json
import sys
from array import array
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.core.output_files import SEAL_KEY

PACKAGE = Path(__file__).parents[1] / "src" / "llm_perf_opt"

SEAL_SCHEMA = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "The last key of a sealed file: SHA-256 of every byte before it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSchema:
    """A schema next to the code that writes the file: its place, the record that it describes, and its title."""

    file: str
    record: str  # "module:Name", below the package
    title: str
    identifier: str | None = None

    @property
    def path(self) -> Path:
        """Where it is published."""
        return PACKAGE / self.file

    def text(self) -> str:
        """The file as its record has it today."""
        module, _, name = self.record.partition(":")
        record = getattr(import_module(f"llm_perf_opt.{module}"), name)
        schema = schema_of(record, title=self.title, identifier=self.identifier)
        schema["properties"].setdefault(SEAL_KEY, SEAL_SCHEMA)  # a key of every file, and of no record
        return json.dumps(schema, indent=2) + "\n"


PUBLISHED = (
    PublishedSchema(
        file="core/callgraph/schema.json",
        record="core.callgraph.json_layout:CallGraphFile",
        title="llm-perf-opt call graph, schema version 1",
        identifier="https://llm-perf-opt.invalid/schema/callgraph-1.json",
    ),
    PublishedSchema(
        file="measurements/profile/metrics.schema.json",
        record="measurements.profile.metrics_file:MetricsFile",
        title="metrics.json of llm-perf-opt profile",
    ),
    PublishedSchema(
        file="costs/static_compute.schema.json",
        record="costs.static_file:StaticFile",
        title="static_compute.json",
    ),
    PublishedSchema(
        file="sweeps/function/files/function.schema.json",
        record="sweeps.function.files.layout:FunctionFile",
        title="llm-perf-opt function of a workload, schema version 1",
    ),
    PublishedSchema(
        file="formats/graph_view.schema.json",
        record="formats.json_format:ViewFile",
        title="llm-perf-opt grouped view",
    ),
)


def schema_of(record: type, *, title: str, identifier: str | None = None) -> dict[str, Any]:
    """Draft 2020-12. The docstring of a record is the description of its object."""
    _, components = msgspec.json.schema_components([record], schema_hook=_integers, ref_template="#/$defs/{name}")
    for component in components.values():
        component["description"] = " ".join(inspect.cleandoc(component.get("description", "")).split())
        del component["title"]
    top = components.pop(record.__name__)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if identifier is not None:
        head["$id"] = identifier
    return head | {"title": title} | _ordered(top) | {"$defs": _ordered(components)}


def _ordered(schema: Any) -> Any:
    """The same with its alternatives in an order that does not depend on the version of msgspec: null comes last."""
    if isinstance(schema, list):
        return [_ordered(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {key: _ordered(part) for key, part in schema.items()}
    if isinstance(choices := ordered.get("anyOf"), list):
        choices.sort(key=lambda choice: (choice == {"type": "null"}, json.dumps(choice)))
    return ordered


def _integers(kind: type) -> dict[str, Any]:
    if kind is array:
        return {"type": "array", "items": {"type": "integer"}}
    raise NotImplementedError(kind)


def main() -> None:
    """Write every schema in its place, or with `--check` name those that are not as their records have them."""
    if "--check" not in sys.argv:
        for schema in PUBLISHED:
            schema.path.write_text(schema.text(), encoding="utf-8")
        return
    stale = [schema.file for schema in PUBLISHED if schema.path.read_text("utf-8") != schema.text()]
    if stale:
        sys.exit(f"run scripts/publish_schemas.py: {', '.join(stale)} differ from their records")


if __name__ == "__main__":
    main()
