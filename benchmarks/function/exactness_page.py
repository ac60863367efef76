"""The page of the comparison: one row per model and phase, from the records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
UNPROVEN = "not proven"

INTRODUCTION = """# How exact is a function of a trace?

A function ([sweep](sweep.md)) is made from a few traces and then answers any batch and context in its ranges. This page
compares it with a fresh trace of each point: every op with its shapes and arguments, every block of memory with its
bytes and lifetime, the header, and FLOPs, vector FLOPs, bytes moved, launches, peak memory, parameters, weights and
cache. *Exact* means equal to the last integer. Points are random (small ones as often as large ones), a batch of one
among them, with both sides of every boundary between cells. A point in no proven cell is traced, not computed: it is
counted as *outside*.

One trace of a point gives all its phases. So the traces of a phase are those that no earlier phase had asked for: a
decode with 0 traces was found and checked at the points of its prefill. At most 40 are made for a phase. A region that
is open when they are spent stays open: its points are traced when they are asked for.

```text
python scripts/function_table.py --points 50 --write docs/function-exactness.md
```
"""


def is_missed(record: Record) -> bool:
    """Whether a proven cell said something else than a trace, or nothing could be compared."""
    return record["status"] != "ok" or any(phase["differences"] for phase in record["phases"])


def page(
    versions: Mapping[str, str], setting: Mapping[str, int], records: Mapping[str, Record], order: Sequence[str]
) -> str:
    """The whole page as Markdown."""
    shown = [(name, records[name]) for name in order if name in records]
    ran = [record for _, record in shown if record["status"] == "ok"]
    compared = sum(record["points"] * len(record["phases"]) for record in ran)
    exact = sum(phase["exact"] for record in ran for phase in record["phases"])
    outside = sum(phase["outside"] for record in ran for phase in record["phases"])
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    summary = (
        f"With {installed}, {setting['points']} random points for each of {len(shown)} models: of {compared:,} points "
        f"of a phase {exact:,} are exact, {outside:,} lie outside the proven cells, and "
        f"{compared - exact - outside:,} differ."
    )
    rows = [cells for name, record in shown for cells in _rows(name, record)]
    titles = (
        "model", "kind", "phase", "cells along the context", "traces", "CPU s", "points", "exact", "outside",
        "worst difference, or why a region is open",
    )  # fmt: skip
    notes = "Models marked * have fewer layers than released. CPU seconds are those of all phases of a model together."
    return "\n".join((INTRODUCTION, summary, "", _table(titles, rows), "", notes, ""))


def _rows(name: str, record: Record) -> Iterator[tuple[str, ...]]:
    if record["status"] != "ok":
        yield (
            name,
            str(record.get("kind", "")),
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            _cell(f"{record['status']}: {record['message']}"),
        )
        return
    shown = name + (" *" if record["is_reduced"] else "")
    for phase in record["phases"]:
        yield (
            shown,
            record["kind"],
            phase["phase"],
            _cells(phase),
            str(phase["traces"]),
            str(record["cpu_s"]),
            str(record["points"]),
            str(phase["exact"]),
            str(phase["outside"]),
            _cell(_worst(phase)),
        )


def _cells(phase: Record) -> str:
    """The ranges along the context, of a batch of one and of more."""
    by_batch: dict[str, list[str]] = {}
    for region in phase["cells"]:
        (fewest, most), (low, high) = region["batch"], region["context"]
        batches = str(fewest) if fewest == most else f"{fewest}-{most}"
        lengths = str(low) if low == high else f"{low:,}-{high:,}"
        only = f" ({region['only']})" if "only" in region else ""
        by_batch.setdefault(batches, []).append(lengths + only)
    return "; ".join(f"batch {batches}: {', '.join(lengths)}" for batches, lengths in by_batch.items()) or UNPROVEN


def _worst(phase: Record) -> str:
    if phase["differences"]:
        worst = max(phase["differences"], key=lambda one: one["share"] or 0)
        return f"{worst['what']} at {worst['point']}: {worst['text']}"
    texts = [f"open at {one['region']['context']}: {one['why']}" for one in phase["open"]]
    texts += [f"figures are priced point by point: {text}" for text in phase["priced_by_point"]]
    return "; ".join(dict.fromkeys(texts[:2]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
