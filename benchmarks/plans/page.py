"""What the page `plan-order` says in figures: its marked sections, from the data file alone."""

from __future__ import annotations

from typing import Any

from benchmarks.pages import columns, table

Data = dict[str, Any]
TITLES = {"engines": "as engines shard", "own": "the model's own plan"}


def sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "answer": _answer(data),
        "order": _order(data),
        "models": _models(data),
        "misses": columns(data["engines"]["misses"], MISSES, "rl"),
        "left-out": table(("left out", "how many"), ((why, f"{count:,}") for why, count in data["left_out"].items())),
        "floors": columns(data["floors"], FLOORS),
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
            shares = [_share(row[part], row["covered"]) for part in ("right", "right_per_gpu")]
            rule = _share(row["more_gpus_right"], row["differing"]) if row["differing"] else "-"
            error = "-" if row["speed_up_error"] is None else f"{row['speed_up_error']:.0%}"
            rows.append((title, row["kind"], f"{row['pairs']:,}", f"{row['covered']:,}", *shares, rule, error))
    titles = ("faster one first", "more tokens/s/GPU first", "rule: more GPUs are faster", "speed-up off by, median")
    return table(("estimate", "plans differ in", "pairs", "covered", *titles), rows, "llr")


def _models(data: Data) -> str:
    rows = (
        {**row, "share": _share(row["right"], row["pairs"]), "held": _share(row["in_band"], row["runs"])}
        for row in data["engines"]["models"]
    )
    return columns(
        rows,
        {
            "model": "{model}",
            "pairs": "{pairs}",
            "right": "{share}",
            "runs": "{runs}",
            "measured / middle: p10": "{tenth:.2f}",
            "median": "**{median:.2f}**",
            "p90": "{ninetieth:.2f}",
            "in the band": "{held}",
        },
    )


MISSES = {"pairs": "{pairs}", "model": "{model}", "system": "`{device}`", "engine": "{engine}"}
MISSES |= {"faster": "{faster}", "slower": "{slower}"}
FLOORS = {"model": "{model}", "runs": "{runs:,}", "below 1": "{violations}", "lowest": "{lowest:.2f}"}
FLOORS |= {"links / bound, at most": "{links:.1%}"}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
