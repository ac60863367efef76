"""What the page `deployment-truth` says in figures: its marked sections, from the data file alone."""

from __future__ import annotations

from typing import Any

from benchmarks.bounds.deployment_truth import CORRECTIONS
from llm_perf_opt.core.units import format_bytes, format_flops

Data = dict[str, Any]


def sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "summary": _summary(data),
        "corrections": _corrections(data),
        "records": _records(data),
        "configurations": _configurations(data),
    }


def _summary(data: Data) -> str:
    records = data["records"]
    worst = max(abs(row["traced_bytes"] / row["bytes"] - 1) for row in records)
    exact = sum(row["traced_flops"] == row["flops"] for row in records)
    active = sum(row["traced_active"] == row["active"] for row in records)
    return (
        f"{len(records)} records: active matrix parameters equal in {active}, FLOPs equal in {exact}, "
        f"bytes within {worst:.2%} at worst. {sum(row['is_corrected'] for row in records)} records were corrected."
    )


def _corrections(data: Data) -> str:
    corrected = [row for row in data["records"] if row["is_corrected"]]
    lines = [
        "| model | prompt | batch | bytes in the file | right | FLOPs in the file | right |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {row['model']} | {row['prompt_tokens']:,} | {row['batch']} | {row['stated_bytes']:,} "
            f"| {row['bytes']:,} | {row['stated_flops']:,} | {row['flops']:,} |"
            for row in corrected
        ),
        "",
        *(f"- {model}: {why}." for model, why in CORRECTIONS.items()),
    ]
    return "\n".join(lines)


def _records(data: Data) -> str:
    lines = [
        "| model | prompt | batch | bytes, closed form | traced | FLOPs, closed form | traced "
        "| as written: bytes moved | FLOPs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_record(row) for row in data["records"]),
    ]
    return "\n".join(lines)


def _record(row: Data) -> str:
    flops = row["traced_flops"] / row["flops"]
    return (
        f"| {row['model']}{' *' if row['is_corrected'] else ''} | {row['prompt_tokens']:,} | {row['batch']} "
        f"| {row['bytes']:,} | {row['traced_bytes'] / row['bytes']:.4f} | {row['flops']:,} "
        f"| {'equal' if row['traced_flops'] == row['flops'] else f'{flops:.4f}'} "
        f"| {row['written_bytes'] / row['traced_bytes']:.2f} x "
        f"| {row['written_flops'] / row['traced_flops']:.2f} x |"
    )


def _configurations(data: Data) -> str:
    lines = [
        "| configuration | phase | parameters | stored as | stored | FLOPs as written | necessary "
        "| bytes moved as written | must be read once | main reason |",
        "|---|---|--:|---|--:|--:|--:|--:|--:|---|",
        *(_configuration(row) for row in data["configurations"]),
    ]
    return "\n".join(lines)


def _configuration(row: Data) -> str:
    published = row["published_parameters"]
    share = f" ({row['parameters'] / published - 1:+.2%})" if published else ""
    return (
        f"| {row['configuration']} | {row['phase']} | {row['parameters']:,}{share} | {row['weights']} "
        f"| {format_bytes(row['stored_bytes'])} | {format_flops(row['written_flops'])} "
        f"| {format_flops(row['necessary_flops'])} | {format_bytes(row['written_bytes'])} "
        f"| {format_bytes(row['necessary_bytes'])} | {row['reason'] or ''} |"
    )
