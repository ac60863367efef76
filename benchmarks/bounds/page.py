"""What the page `measured-against-the-bound` says in figures: its marked sections, from the data file alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Data = dict[str, Any]
SPREAD = "| runs | below 1 | lowest | p10 | median | p90 |"
SPREAD_RULE = "|--:|--:|--:|--:|--:|--:|"


def sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "checked": _checked(data),
        "definitions": _definitions(data),
        "rules": _rules(data),
        "groups": _groups(data),
        "closest": _closest(data),
        "plans": _plans(data),
        "agreement": _agreement(data),
    }


def _checked(data: Data) -> str:
    beaten = sum(row["violations"] for row in data["definitions"])
    win = data["to_win"]
    left = sum(data["not_checked"].values())
    reasons = "; ".join(f"{count} {reason}" for reason, count in data["not_checked"].items())
    return (
        f"**{data['checked']:,} measured runs were checked, {sum(row['runs'] for row in data['definitions']):,} "
        f"figures in all. {beaten} beat a bound.** Over {win['runs']:,} distinct runs whose batch is known, a request "
        f"took {win['median']} times its expected floor (median; a tenth of them {win['p10']} or less, a tenth "
        f"{win['p90']} or more).\n\n{left} records of `published.json` could not be checked: {reasons}."
    )


def _spread(row: Data) -> str:
    return (
        f"| {row['runs']:,} | {row['violations']} | {row['lowest']:.2f} | {row['p10']:.2f} | {row['median']:.2f} "
        f"| {row['p90']:.2f} |"
    )


def _table(head: str, rule: str, rows: Iterable[str]) -> str:
    return "\n".join((head, rule, *rows))


def _definitions(data: Data) -> str:
    rows = (f"| {row['definition']} | `{row['source']}` {_spread(row)}" for row in data["definitions"])
    return _table(f"| definition | source {SPREAD}", f"|---|---{SPREAD_RULE}", rows)


def _rules(data: Data) -> str:
    rows = (f"| `{row['rule']}` | {row['sentence']} | {row['touched']:,} | {_without(row)} |" for row in data["rules"])
    return _table(
        "| rule | what is known | runs it touched | runs that beat a bound without it: strict, expected |",
        "|---|---|--:|--:|",
        rows,
    )


def _without(row: Data) -> str:
    without = row.get("violations_without")
    return "-" if without is None else f"{without['strict']}, {without['expected']}"


def _groups(data: Data) -> str:
    rows = (
        f"| {row['model']} | `{row['device']}` | {row['engine']} | {row['runs']} | {row['lowest']:.2f} "
        f"| {row['p10']:.2f} | **{row['median']:.2f}** | {row['p90']:.2f} |"
        for row in data["groups"]
    )
    return _table(
        "| model | system | engine | runs | lowest | p10 | median | p90 |", "|---|---|---|--:|--:|--:|--:|--:|", rows
    )


def _closest(data: Data) -> str:
    rows = (
        f"| {row['ratio']:.3f} | {row['definition']} | `{row['run']}` | `{row['source']}` |" for row in data["closest"]
    )
    return _table("| measured / bound | definition | run | source |", "|--:|---|---|---|", rows)


def _plans(data: Data) -> str:
    rows = (
        f"| {row['model']} | `{row['device']}` | {row['plan']} | {row['runs']:,} | {row['lowest']:.2f} "
        f"| {row['definition']} | {row['step_links']:.1%} | {row['prompt_links']:.1%} |"
        for row in data["plans"]
    )
    return _table(
        "| model | system | plan | runs | lowest | by the definition | links / bound of a step, at most "
        "| links / bound of a prompt, at most |",
        "|---|---|---|--:|--:|---|--:|--:|",
        rows,
    )


def _agreement(data: Data) -> str:
    names = ("active", "step_bytes", "step_flops", "prefill_bytes", "prefill_flops")
    rows = (
        f"| {row['model']} | {row['active_matrix_parameters']:,} | "
        + " | ".join(f"{row[name]:.4f}" for name in names)
        + " |"
        for row in data["agreement"]
    )
    return _table(
        "| model | active matrix parameters | of them in the trace | bytes of a step | FLOPs of a step "
        "| bytes of a prefill | FLOPs of a prefill |",
        "|---|--:|--:|--:|--:|--:|--:|",
        rows,
    )
