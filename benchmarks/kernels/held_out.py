"""Leave shapes out of the tables, answer for them from the rest, and write what that shows.

    python -m benchmarks.kernels.held_out [system ...]

Without arguments it judges every system, writes the quantiles to `timing/kernels/spread.json` and the tables to
`docs/kernel-tables.md`.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.subjects import SYSTEMS, Subject, own, subjects
from benchmarks.pages import DOCS, ROOT, replace_section, table
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.timing.kernels.exchanges import CAPTURED
from llm_perf_opt.timing.kernels.experts import GATED, LAYER_KEYS
from llm_perf_opt.timing.kernels.kernel_tables import (
    ANY_SYSTEM,
    MOST_DIMENSIONS,
    Family,
    HeldOutSpread,
    SpreadFile,
    kernel_tables,
)
from llm_perf_opt.timing.kernels.latent import RANK, VALUE_WIDTH
from llm_perf_opt.timing.kernels.tables import (
    ENGINES,
    MEASURED_ON,
    Columns,
    SystemForDevice,
    column_names,
    newest,
    package_version,
    read_rows,
    versions,
)
from llm_perf_opt.timing.kernels.times import ORIGINS, Codes, Estimate, Flags, Floats, TimeOrigin

_SHARE = 0.1  # of the shapes
_EVERY = 3  # one line of so many
_FAR = 0.8  # of an axis: lines beyond are its far end


@dataclass(frozen=True, slots=True)
class Split:
    """Rows that are left out, and those of them that are asked for."""

    kind: str
    left_out: NDArray[np.bool_]
    asked: NDArray[np.bool_]


def shapes_left_out(subject: Subject, seed: int) -> Split | None:
    """A tenth of the shapes, with every row they have. None: too few shapes to leave one out."""
    table = np.stack([subject.columns[name] for name in subject.shape], axis=1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    random = np.random.default_rng(seed)
    count = max(1, round(_SHARE * len(distinct)))
    if len(distinct) < 4:
        return None
    chosen = np.zeros(len(distinct), np.bool_)
    chosen[random.choice(len(distinct), count, replace=False)] = True
    left_out = chosen[which.reshape(-1)]
    return Split("shapes", left_out, left_out)


def lines_left_out(subject: Subject, seed: int) -> Iterator[Split]:
    """Whole lines of one axis, of the last two and of all; asked for are the rows on as many left-out lines."""
    off = {name: _on_chosen_line(subject.columns[name], seed) for name in subject.lines}
    several = [subject.lines[-count:] for count in range(2, len(subject.lines) + 1)]
    for names in (*((name,) for name in subject.lines), *several):
        on_lines = np.stack([off[name] for name in names])
        if (asked := on_lines.all(axis=0)).any():
            yield Split(f"{len(names)} lines", on_lines.any(axis=0), asked)


def far_end_left_out(subject: Subject) -> Iterator[Split]:
    """The largest values of one axis."""
    for name in subject.lines:
        levels = np.unique(subject.columns[name])
        far = subject.columns[name] > levels[int(_FAR * (len(levels) - 1))]
        if far.any() and not far.all():
            yield Split("far end", far, far)


def _on_chosen_line(column: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Whether each row lies on one of the inner lines that a seed chooses; never two next to each other."""
    levels = np.unique(column)
    chosen = levels[1 + seed % _EVERY : -1 : _EVERY]
    return np.isin(column, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows of one table that were left out by one split: measured over expected time, and the plain roofline's."""

    system: str
    engine: str
    family: Family
    part: str
    kind: str
    seed: int
    ratios: Floats
    roofline_ratios: Floats
    origin_codes: Codes
    off_grid: Codes

    @property
    def errors(self) -> Floats:
        """How far the expected time lies from the measured one, as a share of it."""
        return np.abs(1.0 / self.ratios - 1.0)

    @property
    def roofline_errors(self) -> Floats:
        """The same of the plain roofline."""
        return np.abs(1.0 / self.roofline_ratios - 1.0)


SHAPES, OWN_ROWS = "shapes", "own rows"


def accuracy_table(found: Sequence[Judged]) -> str:
    """System and family: median error on whole shapes that were left out, and the plain roofline beside it."""
    lines = []
    for system in dict.fromkeys(one.system for one in found):
        for family in Family:
            mine = [one for one in found if (one.system, one.family) == (system, family)]
            whole = [one for one in mine if one.kind == OWN_ROWS]
            if rows := sum(len(one.ratios) for one in whole):
                shapes, on_lines = _together(mine, SHAPES), [one for one in mine if one.kind.endswith("lines")]
                roofline = (
                    ""
                    if family is Family.EXCHANGES
                    else _median(np.concatenate([one.roofline_errors for one in whole]))
                )
                errors = (_median(shapes), _quantile(shapes), _median(_errors(on_lines)), roofline)
                lines.append((system, family, f"{rows:,}", *errors))
    titles = ("left out: median error", "90 % below", "on left-out lines", "plain roofline")
    return table(("system", "family", "rows", *titles), lines, "llr")


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
    bands = [
        (system, family, f"{rows:,}", f"{100 * hits / rows:.0f} %")
        for (system, family), (rows, hits) in sorted(inside.items())
    ]
    lines = []
    for kind, family in dict.fromkeys((one.kind, one.family) for one in scaled):
        mine = [one for one in scaled if (one.kind, one.family) == (kind, family)]
        ratios = np.concatenate([one.ratios for one in mine])
        low, high = np.quantile(ratios, (0.1, 0.9))
        lines.append((kind, family, f"{len(ratios):,}", _median(_errors(mine)), f"{low:.2f} to {high:.2f}"))
    titles = ("scaled", "family", "rows", "median error", "80 % of measured / expected")
    return f"{table(('system', 'family', 'rows', 'in the 80 % band'), bands, 'llr')}\n\n{table(titles, lines, 'llrrl')}"


def versions_table(found: Sequence[Judged]) -> str:
    """The same rows in the newest version of an engine and in the one before."""
    lines = []
    for one in sorted(found, key=lambda entry: (entry.engine, entry.part)):
        tenths = ", ".join(f"{ratio:.2f}" for ratio in np.quantile(one.ratios, (0.1, 0.5, 0.9)))
        lines.append((one.engine, one.part, one.kind.rpartition(" ")[2], f"{len(one.ratios):,}", tenths))
    titles = ("engine", "table", "system", "rows", "older over newer time: 10 %, median, 90 %")
    return table(titles, lines, "lllrl")


def _together(found: Iterable[Judged], kind: str) -> Floats:
    return _errors([one for one in found if one.kind == kind])


def _errors(found: Sequence[Judged]) -> Floats:
    return np.concatenate([one.errors for one in found]) if found else np.array([])


def _median(errors: Floats) -> str:
    return f"{100 * float(np.median(errors)):.1f} %" if len(errors) else ""


def _quantile(errors: Floats) -> str:
    return f"{100 * float(np.quantile(errors, 0.9)):.0f} %" if len(errors) else ""


PAGE, PARTS = DOCS / "kernel-tables.md", DOCS / "data" / "kernel_tables.csv"
SPREADS = ROOT / "src" / "llm_perf_opt" / "timing" / "kernels" / "spread.json"
LOW, HIGH = 0.1, 0.9
CALIBRATION, CHECK = (0, 2, 3), 1  # seeds: quantiles are taken from some splits and counted on another
# Tables that several versions of one engine measured, with the columns that name a row.
_HEADS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype")
VERSIONED = (
    (Family.PRODUCTS, "gemm", ("gemm_dtype", "m", "n", "k")),
    (Family.ATTENTION, "context_attention", _HEADS),
    (Family.ATTENTION, "generation_attention", _HEADS),
    (Family.EXPERTS, "moe", ("moe_dtype", "distribution", *LAYER_KEYS)),
    (Family.EXCHANGES, "custom_allreduce", ("num_gpus", "message_size")),
)
_KEPT = dict.fromkeys(Family, "true") | {Family.EXPERTS: GATED, Family.EXCHANGES: CAPTURED}
FEWEST_ROWS = 30  # fewer do not give a quantile of their own
# Devices whose times are predicted from another measured system: of the same architecture, and of the next.
SCALED_PAIRS = (
    ("h100_sxm", "h200_sxm"), ("h200_sxm", "h100_sxm"), ("b200_sxm", "gb200"), ("gb200", "b200_sxm"),
    ("b200_sxm", "b300_sxm"), ("b300_sxm", "gb300"), ("gb300", "gb200"), ("l40s", "rtx_pro_6000_server"),
    ("rtx_pro_6000_server", "l40s"), ("a100_sxm", "h100_sxm"),
)  # fmt: skip


def judged(subject: Subject, split: Split, seed: int) -> Judged:
    """Build the table from the rest and ask it."""
    asked = subject.chosen(split.asked)
    estimate = subject.build(subject.chosen(~split.left_out))(asked, own(subject.system))
    return _of_estimate(subject, split.kind, asked, estimate, seed=seed)


def _of_estimate(
    subject: Subject, kind: str, rows: Columns, estimate: Estimate, *, seed: int = 0, system: str | None = None
) -> Judged:
    """Measured rows over what a table says of them."""
    return Judged(
        system=system or subject.system, engine=subject.engine, family=subject.family, part=subject.part, kind=kind,
        seed=seed, ratios=rows["seconds"] / estimate.seconds, roofline_ratios=rows["seconds"] / subject.roofline(rows),
        origin_codes=estimate.origin_codes, off_grid=np.minimum(estimate.off_grid, MOST_DIMENSIONS),
    )  # fmt: skip


def judge(subject: Subject) -> Iterator[Judged]:
    """Every split of a table; the whole table answers for its own rows first."""
    nothing = np.zeros(subject.rows, np.bool_)
    yield judged(subject, Split(OWN_ROWS, nothing, ~nothing), CALIBRATION[0])
    for seed in (*CALIBRATION, CHECK):
        if (split := shapes_left_out(subject, seed)) is not None:
            yield judged(subject, split, seed)
    for seed in (CALIBRATION[0], CHECK):
        for lines in lines_left_out(subject, seed):
            yield judged(subject, lines, seed)
    for far in far_end_left_out(subject):
        yield judged(subject, far, CALIBRATION[0])


def judge_system(system: str) -> list[Judged]:
    """Every split of every table of a system."""
    found = []
    for subject in subjects((system,)):
        found += list(judge(subject))
        print(f"{system} {subject.engine} {subject.family} {subject.part}: {subject.rows:,} rows", flush=True)
    return found


def judge_scaled(pair: tuple[str, str]) -> list[Judged]:
    """Rows of one system answered by the tables of another, scaled by peaks and bandwidth."""
    target, source = pair
    scale = _scale(target, source)
    wanted = {(one.engine, one.family, one.part): one for one in subjects((target,))}
    found = []
    for subject in subjects((source,)):
        rows = wanted.get((subject.engine, subject.family, subject.part))
        if rows is None or subject.family is Family.EXCHANGES:  # links are not scaled
            continue
        estimate = subject.build(subject.columns)(rows.columns, scale)
        # `rows` has the roofline of the device that was measured.
        found.append(_of_estimate(rows, f"{source} for {target}", rows.columns, estimate, system=ANY_SYSTEM))
    print(f"{source} for {target}: {sum(len(one.ratios) for one in found):,} rows", flush=True)
    return found


def judge_batched(systems: Sequence[str]) -> Iterator[Judged]:
    """Several products in one launch: the absorbed products of latent attention, from the table of single products."""
    for system in systems:
        for engine in ENGINES:
            if (table := newest(system, "mla_bmm", engine)) is None:
                continue
            rows = read_rows(table, ("op_name", "num_tokens", "num_heads"), where="bmm_dtype = 'bfloat16'")
            is_first = rows["op_name"] == "mla_gen_pre"  # into the latent space; the other one comes out of it
            columns, depth = np.where(is_first, RANK, VALUE_WIDTH), np.where(is_first, VALUE_WIDTH, RANK)
            times = kernel_tables(system, engine).products(
                rows["num_tokens"], columns, depth, rows["num_heads"], weight_format="bfloat16"
            )
            ratios = rows["seconds"] / times.seconds
            yield Judged(
                system=system, engine=engine, family=Family.PRODUCTS, part="batched bfloat16", kind="batched",
                seed=CALIBRATION[0], ratios=ratios, roofline_ratios=np.full_like(ratios, np.nan),
                origin_codes=times.origin_codes, off_grid=np.minimum(times.off_grid, MOST_DIMENSIONS),
            )  # fmt: skip


def judge_versions(systems: Sequence[str]) -> Iterator[Judged]:
    """The same row in two versions of an engine: older over newer time."""
    for system in systems:
        for engine in ENGINES:
            for family, name, keys in VERSIONED:
                tables = versions(system, name, engine)[:2]
                if len(tables) < 2 or not set(keys) <= set(column_names(tables[1])):
                    continue
                newer, older = (
                    _by_key(read_rows(table, keys, where=f"latency > 0 and {_KEPT[family]}")) for table in tables
                )
                ratios = np.array([older[key] / newer[key] for key in newer.keys() & older.keys()])
                if len(ratios):
                    nothing = np.zeros(len(ratios), np.uint8)
                    yield Judged(
                        system=ANY_SYSTEM, engine=engine, family=family, part=name, kind=f"versions on {system}",
                        seed=CALIBRATION[0], ratios=ratios, roofline_ratios=np.full_like(ratios, np.nan),
                        origin_codes=nothing, off_grid=nothing,
                    )  # fmt: skip


def _by_key(columns: Columns) -> dict[tuple[object, ...], float]:
    names = [name for name in columns if name != "seconds"]
    keys = zip(*(columns[name].tolist() for name in names), strict=True)
    return dict(zip(keys, columns["seconds"].tolist(), strict=True))


def _scale(target: str, source: str) -> SystemForDevice:
    """The table of one system as it would be used for the device of another."""
    known = load_devices().devices
    mine, theirs = known[MEASURED_ON[target]], known[MEASURED_ON[source]]
    return SystemForDevice(
        system=source,
        device=mine.id,
        compute=mine.peak_flops_per_s["bf16"] / theirs.peak_flops_per_s["bf16"],
        bandwidth=mine.bandwidth_bytes_per_s / theirs.bandwidth_bytes_per_s,
    )


def spreads(found: Iterable[Judged]) -> list[HeldOutSpread]:
    """Quantiles by system, family, origin and unmeasured dimensions, and of all systems together."""
    groups: dict[tuple[str, Family, TimeOrigin, int], list[Floats]] = defaultdict(list)
    for one in found:
        if one.seed == CHECK or one.kind == OWN_ROWS:
            continue
        for (code, dimensions), here in _kinds(one):
            for system in {one.system, ANY_SYSTEM}:
                groups[system, one.family, ORIGINS[code], dimensions].append(one.ratios[here])
    result = []
    for (system, family, origin, dimensions), parts in sorted(groups.items()):
        ratios = np.concatenate(parts)
        if len(ratios) >= FEWEST_ROWS:
            low, high = (float(round(np.quantile(ratios, at), 4)) for at in (LOW, HIGH))
            band = {"low": min(low, 1.0), "high": max(high, 1.0), "rows": len(ratios)}
            group = {"system": system, "family": family, "origin": origin, "off_grid": dimensions}
            result.append(HeldOutSpread(**group, **band))
    return result


def coverage(found: Iterable[Judged], known: Sequence[HeldOutSpread]) -> dict[tuple[str, Family], tuple[int, int]]:
    """System and family -> rows of the second split, and how many of them lie in their band."""
    bands = {(one.system, one.family, one.origin, one.off_grid): (one.low, one.high) for one in known}
    counts: dict[tuple[str, Family], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in found:
        for (code, dimensions), here in _kinds(one) if one.seed == CHECK else ():
            band = bands.get((one.system, one.family, ORIGINS[code], dimensions))
            if band is not None:
                ratios = one.ratios[here]
                hits = int(((band[0] <= ratios) & (ratios <= band[1])).sum())
                rows, before = counts[one.system, one.family]
                counts[one.system, one.family] = (rows + len(ratios), before + hits)
    return counts


def _kinds(one: Judged) -> Iterator[tuple[tuple[int, int], Flags]]:
    """Origin code and unmeasured dimensions -> which rows have them."""
    for code in np.unique(one.origin_codes).tolist():
        for dimensions in np.unique(one.off_grid).tolist():
            here = (one.origin_codes == code) & (one.off_grid == dimensions)
            if here.any():
                yield (code, dimensions), here


def main(arguments: Sequence[str]) -> None:
    """Judge, print, and write where every system was judged."""
    systems = tuple(arguments) or SYSTEMS
    pairs = [pair for pair in SCALED_PAIRS if set(pair) <= set(systems)]
    with ProcessPoolExecutor() as pool:
        of_pairs = pool.map(judge_scaled, pairs)
        found = [one for judgements in pool.map(judge_system, systems) for one in judgements]
        scaled = [one for judgements in of_pairs for one in judgements]
    batched = list(judge_batched(systems))
    known = spreads([*found, *scaled, *batched])
    sections = {
        "accuracy": accuracy_table(found),
        "coverage": coverage_table(coverage(found, known), [*scaled, *batched]),
        "versions": versions_table(list(judge_versions(systems))),
    }
    print("\n\n".join(sections.values()))
    if not arguments:
        for name, text in sections.items():
            replace_section(PAGE, name, text)
        PARTS.write_text(parts_file(found), encoding="utf-8")
        tables = f"aiconfigurator-core {package_version()}"
        file = SpreadFile(tables=tables, measured_by="benchmarks/kernels/held_out.py", spreads=tuple(known))
        SPREADS.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
