"""Predict what was published about DeepSeek-OCR and two text models, and write the table of both.

    python -m benchmarks.published_throughput [--docs]

Reads the records in tests/facts, traces without weights, and with --docs writes docs/data/published.json and the
tables of docs/how-fast-could-it-be.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import replace_section
from benchmarks.published.capacity import capacity_rows
from benchmarks.published.cases import OTHER_MODELS, REASONS, usable_rows
from benchmarks.published.llama import llama_rows
from benchmarks.published.rtx5090 import predicted_decode, predicted_prefill, rtx5090_rows

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests" / "facts"
DATA = ROOT / "docs" / "data" / "published.json"
PAGE = ROOT / "docs" / "how-fast-could-it-be.md"


def facts(name: str) -> Any:
    return json.loads((FACTS / name).read_text(encoding="utf-8"))


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
    lines = [
        f"{len(rows)} figures: the bound holds for {possible}, the band holds {inside}.",
        "",
        "| record | what | device | run as | published | bound | band | inside | assumed |",
        "|---|---|---|---|--:|--:|--:|---|---|",
        *(
            f"| `{row['record']}` | {row['metric']} | `{row['device']}` | {row['execution']} "
            f"| {' - '.join(f'{figure:g}' for figure in row['published'])} {row['unit']} | {row['bound']:.3g} "
            f"| {row['low']:.3g} - {row['high']:.3g} | {'yes' if row['is_inside'] else '**no**'} | {row['assumed']} |"
            for row in rows
        ),
    ]
    capacity = [
        "| device | reported by vLLM | band | inside |",
        "|---|--:|--:|---|",
        *(
            f"| `{row['device']}` | {row['published']:,} | {row['low']:,} - {row['high']:,} "
            f"| {'yes' if row['is_inside'] else '**no**'} |"
            for row in data["capacity"]
        ),
    ]
    unusable = [
        "| record | why it cannot be predicted |",
        "|---|---|",
        *(f"| {row['record']} | {row['reason']} |" for row in data["unusable"]),
    ]
    return {"published": "\n".join(lines), "capacity": "\n".join(capacity), "unusable": "\n".join(unusable)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the data file and the tables of the page")
    options = parser.parse_args()
    data = measure()
    for name, text in sections(data).items():
        print(text, end="\n\n")
        if options.docs:
            replace_section(PAGE, name, text)
    if options.docs:
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
