"""What the page `plan-order` says in figures: its marked sections, from the data file alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Data = dict[str, Any]
TITLES = {"engines": "as engines shard", "own": "the model's own plan"}


def sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "answer": _answer(data),
        "order": _order(data),
        "models": _models(data),
        "misses": _misses(data),
        "left-out": _left_out(data),
        "floors": _floors(data),
    }


def _answer(data: Data) -> str:
    engines, own = data["engines"]["all"], data["own"]["all"]
    return (
        f"**Of {engines['pairs']:,} pairs of measured plans the estimate puts the faster one first in "
        f"{_share(engines['right'], engines['covered'])}; by tokens per second and GPU in "
        f"{_share(engines['right_per_gpu'], engines['covered'])}.** With the model's own plan, as `llm-perf-opt plan` "
        f"traces it, {own['covered']:,} of them are covered and {_share(own['right'], own['covered'])} right. The rule "
        f"that more GPUs are faster has {_share(engines['more_gpus_right'], engines['differing'])} of the "
        f"{engines['differing']:,} pairs with different numbers of GPUs, the estimate "
        f"{_share(engines['right_of_differing'], engines['differing'])}."
    )


def _order(data: Data) -> str:
    rows = []
    for name, title in TITLES.items():
        for row in (*data[name]["kinds"], {"kind": "**all**", **data[name]["all"]}):
            rule = _share(row["more_gpus_right"], row["differing"]) if row["differing"] else "-"
            error = "-" if row["speed_up_error"] is None else f"{row['speed_up_error']:.0%}"
            rows.append(
                f"| {title} | {row['kind']} | {row['pairs']:,} | {row['covered']:,} "
                f"| {_share(row['right'], row['covered'])} | {_share(row['right_per_gpu'], row['covered'])} "
                f"| {rule} | {error} |"
            )
    return _table(
        "| estimate | plans differ in | pairs | covered | faster one first | more tokens/s/GPU first "
        "| rule: more GPUs are faster | speed-up off by, median |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        rows,
    )


def _models(data: Data) -> str:
    rows = (
        f"| {row['model']} | {row['pairs']} | {_share(row['right'], row['pairs'])} | {row['runs']} "
        f"| {row['tenth']:.2f} | **{row['median']:.2f}** | {row['ninetieth']:.2f} "
        f"| {_share(row['in_band'], row['runs'])} |"
        for row in data["engines"]["models"]
    )
    return _table(
        "| model | pairs | right | runs | measured / middle: p10 | median | p90 | in the band |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        rows,
    )


def _misses(data: Data) -> str:
    rows = (
        f"| {row['pairs']} | {row['model']} | `{row['device']}` | {row['engine']} | {row['faster']} | {row['slower']} |"
        for row in data["engines"]["misses"]
    )
    return _table("| pairs | model | system | engine | faster | slower |", "|--:|---|---|---|---|---|", rows)


def _left_out(data: Data) -> str:
    rows = (f"| {reason} | {count:,} |" for reason, count in data["left_out"].items())
    return _table("| left out | how many |", "|---|--:|", rows)


def _floors(data: Data) -> str:
    rows = (
        f"| {row['model']} | {row['runs']:,} | {row['violations']} | {row['lowest']:.2f} | {row['links']:.1%} |"
        for row in data["floors"]
    )
    return _table("| model | runs | below 1 | lowest | links / bound, at most |", "|---|--:|--:|--:|--:|", rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _table(head: str, rule: str, rows: Iterable[str]) -> str:
    return "\n".join((head, rule, *rows))
