"""Predict what was published about DeepSeek-OCR and two text models, and write the table of both.

    python -m benchmarks.published_throughput [--docs]

Reads the records in tests/facts, traces without weights, and with --docs writes docs/data/published.json and the
tables of docs/how-fast-could-it-be.md.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.pages import DOCS, columns, facts, replace_section, table, write_data
from benchmarks.published.cases import OTHER_MODELS, REASONS, usable_rows
from benchmarks.published.rtx5090 import capacity_rows, llama_rows, predicted_decode, predicted_prefill, rtx5090_rows
from benchmarks.runner import parser

DATA, PAGE = DOCS / "data" / "published.json", DOCS / "how-fast-could-it-be.md"


def by_id(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in records}


def measure() -> dict[str, Any]:
    """Every prediction beside what was published, as the data file holds it."""
    published, measured = facts("published.json"), by_id(facts("deepseek_ocr/measured-gpu.json"))
    records = by_id(published["deepseek_ocr"])
    general = published["efficiency_priors"]["general"]
    rows = [*rtx5090_rows(measured), *usable_rows(records), *llama_rows(general)]
    stages = predicted_prefill()
    return {
        "rows": [_rounded(asdict(row) | {"is_inside": row.is_inside, "is_possible": row.is_possible}) for row in rows],
        "capacity": list(capacity_rows(records["dsocr-kvcache-capacity"]["metric"])),
        "launches": {
            "prefill": {
                "counted": sum(stage.launches for stage in stages),
                "measured": measured["rtx5090-kernels-prefill"]["metrics"]["kernel_launches"],
            },
            "decode": {
                "counted": predicted_decode().launches,
                "measured": measured["rtx5090-derived-summary"]["metrics"]["decode_kernel_launches_per_token"],
            },
        },
        "bound_by": {stage.name: str(stage.bound_by) for stage in (*stages, predicted_decode())},
        "unusable": [{"record": name, "reason": reason} for name, reason in REASONS.items()]
        + [{"record": f"{len(published['similar_ocr_vlms'])} records of other models", "reason": OTHER_MODELS}],
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Four significant digits: the bands are not known better."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else list(value) if isinstance(value, tuple) else value
        for name, value in row.items()
    }


def sections(data: dict[str, Any]) -> dict[str, str]:
    """The marked sections of the page."""
    rows = data["rows"]
    inside = sum(row["is_inside"] for row in rows)
    possible = sum(row["is_possible"] for row in rows)
    said = {True: "yes", False: "**no**"}
    shown = [
        {**row, "figures": " - ".join(f"{one:g}" for one in row["published"]), "inside": said[row["is_inside"]]}
        for row in rows
    ]
    published = columns(
        shown,
        {
            "record": "`{record}`",
            "what": "{metric}",
            "device": "`{device}`",
            "run as": "{execution}",
            "published": "{figures} {unit}",
            "bound": "{bound:.3g}",
            "band": "{low:.3g} - {high:.3g}",
            "inside": "{inside}",
            "assumed": "{assumed}",
        },
        "llllrrrl",
    )
    forms = {"device": "`{device}`", "reported by vLLM": "{published:,}", "band": "{low:,} - {high:,}"}
    capacity = ({**row, "inside": said[row["is_inside"]]} for row in data["capacity"])
    unusable = [(row["record"], row["reason"]) for row in data["unusable"]]
    return {
        "published": f"{len(rows)} figures: the bound holds for {possible}, the band holds {inside}.\n\n{published}",
        "capacity": columns(capacity, {**forms, "inside": "{inside}"}, "lrrl"),
        "unusable": table(("record", "why it cannot be predicted"), unusable, "l"),
    }


def main() -> None:
    options = parser(__doc__, docs="write the data file and the tables of the page").parse_args()
    data = measure()
    for name, text in sections(data).items():
        print(text, end="\n\n")
        if options.docs:
            replace_section(PAGE, name, text)
    if options.docs:
        write_data("published", data)


if __name__ == "__main__":
    main()
