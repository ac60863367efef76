"""What the small probes establish, in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

Row = Mapping[str, Any]
Told = Mapping[str, Any]  # all that one tool was asked
Record = Mapping[str, Any]


def counted(told: Told, subject: str) -> Row | None:
    """The first count of a subject that came, without weights if it came so."""
    return next((row for row in _counts(told, subject) if row["status"] == "ok"), None)


def offer(told: Told, kind: str) -> Row | None:
    return next((row for row in told["runs"] if row["question"] == kind and row["status"] == "ok"), None)


def failures(told: Told) -> list[Row]:
    return [row for row in told["runs"] if row["status"] != "ok"]


def weights_finding(told: Told, reads: str) -> str:
    """For which of the two models a count came only with weights in memory."""
    if reads == "config":
        return "no, reads a configuration"
    rows = {title: counted(told, subject) for title, subject in (("Llama", "dense-sdpa"), ("DeepSeek-OCR", "ocr"))}
    wanting = [title for title, row in rows.items() if row is None or row["weights"] != "none"]
    return "no" if not wanting else "yes" if len(wanting) == len(rows) else f"for {wanting[0]}"


def attention_finding(record: Record, told: Told, weights: str) -> str:
    row = _count(told, "fused-attention", weights)
    if row["status"] != "ok":
        return row["reason"]
    linear, tokens = record["small_sizes"]["attention_linear_flops"], record["small_sizes"]["attention_tokens"]
    if row["flops"] == record["exact_flops"]["fused-attention"]:
        return "counted"
    if row["flops"] == linear:
        return "attention left out"
    if row["flops"] * tokens == linear:
        return "attention left out, the linear map counted for one token"
    return _of_exact(record, row)


def direct_call_finding(record: Record, told: Told) -> str:
    row = _count(told, "direct-call", "random")
    if row["status"] != "ok":
        return row["reason"]
    share = "in the total" if row["flops"] == record["exact_flops"]["direct-call"] else _of_exact(record, row)
    if row["flops_by_module"] is None:
        return share
    own = row["flops_by_module"].get("first", 0)
    is_whole = isclose(own, record["small_sizes"]["one_of_two_linear_flops"], rel_tol=0.01)  # some print three digits
    return f"{share}, {'with a row of its own' if is_whole else 'no row of its own'}"


def experts_finding(record: Record, told: Told, weights: str) -> str:
    row = _count(told, "experts", weights)
    if row["status"] != "ok":
        return row["reason"]
    return "counted" if row["flops"] == record["exact_flops"]["experts"] else _of_exact(record, row)


def _of_exact(record: Record, row: Row) -> str:
    return f"{row['flops'] / record['exact_flops'][row['subject']]:.1%} of exact"


def _counts(told: Told, subject: str) -> list[Row]:
    return [row for row in told["runs"] if row["question"] == "count" and row["subject"] == subject]


def _count(told: Told, subject: str, weights: str) -> Row:
    (row,) = (row for row in _counts(told, subject) if row["weights"] == weights)
    return row
