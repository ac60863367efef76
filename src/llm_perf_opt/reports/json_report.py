"""JSON for programs: raw numbers in base units, the unit in the key, `null` for what is not known."""

from __future__ import annotations

import json
import re

from llm_perf_opt.document import Cell, Column, Kind, Report, Table

# Counts and words need no unit; "bytes moved" already has one.
_UNIT_OF = {
    Kind.FLOPS: "flops",
    Kind.MACS: "macs",
    Kind.BYTES: "bytes",
    Kind.SECONDS: "seconds",
    Kind.FLOPS_PER_S: "flops_per_s",
}


class JsonReport:
    """One object; each row is an object too, so that `jq '.tables[0].rows[].flops'` works."""

    suffix = ".json"

    def render(self, report: Report) -> str:
        """The report as indented JSON, ending with a newline."""
        document = {
            "title": report.title,
            "tables": [_table_object(table) for table in report.tables],
            "notes": [{"level": note.level.value, "text": note.text} for note in report.notes],
        }
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _table_object(table: Table) -> dict[str, object]:
    keys = [_key(column) for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    footer: dict[str, Cell] | None = dict(zip(keys, table.footer, strict=True)) if table.footer else None
    return {"title": table.title, "rows": rows, "total": footer}


def _key(column: Column) -> str:
    """`activations` of kind bytes -> `activations_bytes`; `bytes moved` -> `bytes_moved`."""
    words = re.findall(r"[a-z0-9]+", column.name.lower())
    unit = _UNIT_OF.get(column.kind)
    return "_".join(words if unit is None or unit in words else [*words, unit])
