"""The tables of the page: held-out errors, coverage of the bands, and every part."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.kernels.judged import Judged
from llm_perf_opt.analyses.kernels.spread import Family
from llm_perf_opt.analyses.kernels.times import Floats

SHAPES, OWN_ROWS = "shapes", "own rows"


def accuracy_table(found: Sequence[Judged]) -> str:
    """System and family: median error on whole shapes that were left out, and the plain roofline beside it."""
    lines = [
        "| system | family | rows | left out: median error | 90 % below | on left-out lines | plain roofline |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for system in dict.fromkeys(one.system for one in found):
        for family in Family:
            mine = [one for one in found if (one.system, one.family) == (system, family)]
            shapes = _together(mine, SHAPES)
            on_lines = [one for one in mine if one.kind.endswith("lines")]
            rows = sum(len(one.ratios) for one in mine if one.kind == OWN_ROWS)
            if not rows:
                continue
            roofline = np.concatenate([one.roofline_errors for one in mine if one.kind == OWN_ROWS])
            lines.append(
                f"| {system} | {family} | {rows:,} | {_median(shapes)} | {_quantile(shapes)} "
                f"| {_median(_errors(on_lines))} | {'' if family is Family.EXCHANGES else _median(roofline)} |"
            )
    return "\n".join(lines)


def parts_file(found: Sequence[Judged]) -> str:
    """Every table as CSV: engine, format or use, rows, median error on left-out shapes, plain roofline."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("system", "engine", "family", "table", "rows", "median error", "plain roofline"))
    for key in dict.fromkeys((one.system, one.engine, one.family, one.part) for one in found):
        mine = [one for one in found if (one.system, one.engine, one.family, one.part) == key]
        whole = next(one for one in mine if one.kind == OWN_ROWS)
        roofline = "" if key[2] is Family.EXCHANGES else _median(whole.roofline_errors)
        writer.writerow((*key, f"{len(whole.ratios):,}", _median(_together(mine, SHAPES)), roofline))
    return lines.getvalue()


def coverage_table(inside: Mapping[tuple[str, Family], tuple[int, int]], scaled: Sequence[Judged]) -> str:
    """System and family: how many rows of the second split lie in the 80 % band; then the errors of scaled systems."""
    lines = ["| system | family | rows | in the 80 % band |", "|---|---|--:|--:|"]
    for (system, family), (rows, hits) in sorted(inside.items()):
        lines.append(f"| {system} | {family} | {rows:,} | {100 * hits / rows:.0f} % |")
    lines += ["", "| scaled | family | rows | median error | 80 % of measured / expected |", "|---|---|--:|--:|---|"]
    for kind, family in dict.fromkeys((one.kind, one.family) for one in scaled):
        mine = [one for one in scaled if (one.kind, one.family) == (kind, family)]
        ratios = np.concatenate([one.ratios for one in mine])
        low, high = np.quantile(ratios, (0.1, 0.9))
        lines.append(f"| {kind} | {family} | {len(ratios):,} | {_median(_errors(mine))} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines)


def versions_table(found: Sequence[Judged]) -> str:
    """The same rows in the newest version of an engine and in the one before."""
    lines = ["| engine | table | system | rows | older over newer time: 10 %, median, 90 % |", "|---|---|---|--:|---|"]
    for one in sorted(found, key=lambda entry: (entry.engine, entry.part)):
        low, median, high = np.quantile(one.ratios, (0.1, 0.5, 0.9))
        system = one.kind.rpartition(" ")[2]
        lines.append(
            f"| {one.engine} | {one.part} | {system} | {len(one.ratios):,} | {low:.2f}, {median:.2f}, {high:.2f} |"
        )
    return "\n".join(lines)


def _together(found: Iterable[Judged], kind: str) -> Floats:
    return _errors([one for one in found if one.kind == kind])


def _errors(found: Sequence[Judged]) -> Floats:
    return np.concatenate([one.errors for one in found]) if found else np.array([])


def _median(errors: Floats) -> str:
    return f"{100 * float(np.median(errors)):.1f} %" if len(errors) else ""


def _quantile(errors: Floats) -> str:
    return f"{100 * float(np.quantile(errors, 0.9)):.0f} %" if len(errors) else ""
