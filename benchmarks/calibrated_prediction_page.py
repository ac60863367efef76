"""The tables of docs/how-good-is-the-prediction.md, between its markers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "how-good-is-the-prediction.md"


def write_page(record: dict[str, Any], page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8")
    threads = f"{record['threads']} {'thread' if record['threads'] == 1 else 'threads'}"
    tables = {f"verdicts, {threads}": verdict_table(record, threads), f"errors, {threads}": error_table(record)}
    for name, table in tables.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        if not re.search(pattern, text, re.DOTALL):
            raise ValueError(f"{page.name} has no place for {name}")
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}{found[2]}", text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


def verdict_table(record: dict[str, Any], threads: str) -> str:
    lines = ["| prediction from | median error | worst error | goal (15 %, 30 %) |", "| --- | ---: | ---: | --- |"]
    names = {
        "microbenchmarks_alone": "the calibration alone",
        "with_reference": f"the calibration, corrected by one run in {record['reference']} mode",
    }
    for key, title in names.items():
        verdict = record[key]
        if verdict is not None:
            outcome = "reached" if verdict["reached"] else "missed"
            lines.append(f"| {title} | {verdict['median_error']:.1%} | {verdict['worst_error']:.1%} | {outcome} |")
    device = f"{record['device']}, {threads}, torch {record['library_versions']['torch']}"
    return f"{device}.\n\n" + "\n".join(lines) + f"\n\n{steadiness_line(record['steadiness'])}\n"


def steadiness_line(spread: dict[str, Any]) -> str:
    ends = " to ".join(f"{spread[key] * 1e3:.0f}" for key in ("fastest_s", "slowest_s"))
    half = " to ".join(f"{spread[key] * 1e3:.0f}" for key in ("lower_quarter_s", "upper_quarter_s"))
    return (
        f"Meanwhile one and the same piece of work (twenty products, {spread['tries']} times) took {ends} ms, "
        f"half of the time {half} ms."
    )


def error_table(record: dict[str, Any]) -> str:
    lines = [
        "| mode | stage | measured ms (fastest to slowest) | predicted ms (band) | error | after the reference run |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        after = row["error_after_reference"]
        corrected = "reference" if not row["held_out"] else "" if after is None else f"{after:+.1%}"
        lines.append(
            f"| {row['mode']} | {row['stage']} | {ms(row, 'measured_s')} "
            f"({ms(row, 'measured_fastest_s')} to {ms(row, 'measured_slowest_s')}) | {ms(row, 'predicted_s')} "
            f"({ms(row, 'predicted_low_s')} to {ms(row, 'predicted_high_s')}) | {row['error']:+.1%} | {corrected} |"
        )
    return "\n".join(lines) + "\n"


def ms(row: dict[str, Any], key: str) -> str:
    return f"{row[key] * 1e3:.3g}" if row[key] < 1 else f"{row[key] * 1e3:,.0f}"
