"""Reading a report as JSON: the figures of its tables by phase and printed key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.formats.json_format import JsonReport
from tests.end_to_end.asked_questions import MOST, PHASES, Figure, Told


def printed(answer: Answer) -> dict[str, Any]:
    """The report of an answer, as `--json` prints it."""
    found: dict[str, Any] = json.loads(JsonReport().render(answer.report()))
    return found


def rows_of(document: Mapping[str, Any], title: str) -> Iterator[Mapping[str, Figure]]:
    """Of all tables whose title begins so, those of chapters included."""
    for table in document["tables"]:
        if table["title"].startswith(title):
            yield from table["rows"]
    for chapter in document["chapters"]:
        yield from rows_of(chapter, title)


_SAME_COLUMN = {"kernel_launches": "launches"}


def told_of(document: Mapping[str, Any], title: str, label: str = "stage") -> Told:
    """Figures of the rows that are a phase; of a model of text every stage is one."""
    return {
        (str(row[label]).removesuffix(" of one token"), _SAME_COLUMN.get(key, key)): figure
        for row in rows_of(document, title)
        if str(row[label]).removesuffix(" of one token") in PHASES
        for key, figure in row.items()
        if key != label
    }


def first_rank(document: Mapping[str, Any]) -> Told:
    """The first row of each phase is the rank that the other tables are of; where kinds differ, the most of all too."""
    found: Told = {}
    for row in rows_of(document, "Ranks"):
        for key, figure in row.items():
            found.setdefault((str(row["phase"]), key), figure)
    rows = list(rows_of(document, "Ranks"))
    if len({row["rank"] for row in rows}) > 1:
        for phase, key in list(found):
            figures = [row[key] for row in rows if row["phase"] == phase]
            if all(isinstance(figure, int) for figure in figures):
                found[phase, f"{MOST}{key}"] = max(figures)  # type: ignore[type-var]
    return {name: figure for name, figure in found.items() if name[1] not in ("phase", "rank", "ranks_alike")}
