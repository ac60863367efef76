"""Every distinct op of a run, once. Tracers may hold equal kinds as different objects; here they become one."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core.callgraph.json_values import canonical_text, json_safe
from llm_perf_opt.core.callgraph.records import OpKind


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
