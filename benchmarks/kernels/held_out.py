"""Leave shapes out of the tables, answer for them from the rest, and write what that shows.

    python -m benchmarks.kernels.held_out [system ...]

Without arguments it judges every system, writes the quantiles to `timing/kernels/spread.json` and the tables to
`docs/evidence/kernel-tables.md`.
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
from llm_perf_opt.timing.kernels.collectives import CAPTURED
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
from llm_perf_opt.timing.kernels.table_sets import active_set
from llm_perf_opt.timing.kernels.tables import (
    ENGINES,
    MEASURED_ON,
    Columns,
    SystemForDevice,
    column_names,
    newest,
    read_rows,
    versions,
)
from llm_perf_opt.timing.kernels.times import ORIGINS, Codes, Estimate, Flags, Floats, TimeOrigin

_SHARE = 0.1  # of the shapes
_EVERY = 3  # one line of this many
_FAR = 0.8  # of an axis: lines beyond are its far end


@dataclass(frozen=True, slots=True)
class Split:
    """Rows that are left out, and the ones of them that are asked for."""

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


def accuracy_table(records: Sequence[Judged]) -> str:
    """System and family: median error on whole shapes that were left out, and the plain roofline next to it."""
    lines = []
    for system in dict.fromkeys(entry.system for entry in records):
        for family in Family:
            mine = [entry for entry in records if (entry.system, entry.family) == (system, family)]
            whole = [entry for entry in mine if entry.kind == OWN_ROWS]
            if rows := sum(len(entry.ratios) for entry in whole):
                shapes, on_lines = _together(mine, SHAPES), [entry for entry in mine if entry.kind.endswith("lines")]
                roofline = (
                    ""
                    if family is Family.COLLECTIVES
                    else _median(np.concatenate([entry.roofline_errors for entry in whole]))
                )
                errors = (_median(shapes), _quantile(shapes), _median(_errors(on_lines)), roofline)
                lines.append((system, family, f"{rows:,}", *errors))
    titles = ("left out: median error", "90 % below", "on left-out lines", "plain roofline")
    return table(("system", "family", "rows", *titles), lines, "llr")


def parts_file(records: Sequence[Judged]) -> str:
    """Every table as CSV: engine, format or use, rows, median error on left-out shapes, plain roofline."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("system", "engine", "family", "table", "rows", "median error", "plain roofline"))
    for key in dict.fromkeys((entry.system, entry.engine, entry.family, entry.part) for entry in records):
        mine = [entry for entry in records if (entry.system, entry.engine, entry.family, entry.part) == key]
        whole = next(entry for entry in mine if entry.kind == OWN_ROWS)
        roofline = "" if key[2] is Family.COLLECTIVES else _median(whole.roofline_errors)
        writer.writerow((*key, f"{len(whole.ratios):,}", _median(_together(mine, SHAPES)), roofline))
    return lines.getvalue()


def coverage_table(inside: Mapping[tuple[str, Family], tuple[int, int]], scaled: Sequence[Judged]) -> str:
    """System and family: how many rows of the second split lie in the 80 % band; then the errors of scaled systems."""
    bands = [
        (system, family, f"{rows:,}", f"{100 * hits / rows:.0f} %")
        for (system, family), (rows, hits) in sorted(inside.items())
    ]
    lines = []
    for kind, family in dict.fromkeys((entry.kind, entry.family) for entry in scaled):
        mine = [entry for entry in scaled if (entry.kind, entry.family) == (kind, family)]
        ratios = np.concatenate([entry.ratios for entry in mine])
        low, high = np.quantile(ratios, (0.1, 0.9))
        lines.append((kind, family, f"{len(ratios):,}", _median(_errors(mine)), f"{low:.2f} to {high:.2f}"))
    titles = ("scaled", "family", "rows", "median error", "80 % of measured / expected")
    return f"{table(('system', 'family', 'rows', 'in the 80 % band'), bands, 'llr')}\n\n{table(titles, lines, 'llrrl')}"


def versions_table(records: Sequence[Judged]) -> str:
    """The same rows in the newest version of an engine and in the one before."""
    lines = []
    for entry in sorted(records, key=lambda entry: (entry.engine, entry.part)):
        tenths = ", ".join(f"{ratio:.2f}" for ratio in np.quantile(entry.ratios, (0.1, 0.5, 0.9)))
        lines.append((entry.engine, entry.part, entry.kind.rpartition(" ")[2], f"{len(entry.ratios):,}", tenths))
    titles = ("engine", "table", "system", "rows", "older over newer time: 10 %, median, 90 %")
    return table(titles, lines, "lllrl")


def _together(records: Iterable[Judged], kind: str) -> Floats:
    return _errors([entry for entry in records if entry.kind == kind])


def _errors(records: Sequence[Judged]) -> Floats:
    return np.concatenate([entry.errors for entry in records]) if records else np.array([])


def _median(errors: Floats) -> str:
    return f"{100 * float(np.median(errors)):.1f} %" if len(errors) else ""


def _quantile(errors: Floats) -> str:
    return f"{100 * float(np.quantile(errors, 0.9)):.0f} %" if len(errors) else ""


PAGE, PARTS = DOCS / "evidence" / "kernel-tables.md", DOCS / "data" / "kernel_tables.csv"
SPREADS = ROOT / "src" / "llm_perf_opt" / "timing" / "kernels" / "spread.json"
LOW, HIGH = 0.1, 0.9
CALIBRATION, CHECK = (0, 2, 3), 1  # seeds: quantiles are taken from some splits and counted on another
# Tables that several versions of one engine measured, with the columns that name a row.
_HEADS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype")
VERSIONED = (
    (Family.MATMULS, "gemm", ("gemm_dtype", "m", "n", "k")),
    (Family.ATTENTION, "context_attention", _HEADS),
    (Family.ATTENTION, "generation_attention", _HEADS),
    (Family.EXPERTS, "moe", ("moe_dtype", "distribution", *LAYER_KEYS)),
    (Family.COLLECTIVES, "custom_allreduce", ("num_gpus", "message_size")),
)
_KEPT = dict.fromkeys(Family, "true") | {Family.EXPERTS: GATED, Family.COLLECTIVES: CAPTURED}
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
    records = []
    for subject in subjects((system,)):
        records += list(judge(subject))
        print(f"{system} {subject.engine} {subject.family} {subject.part}: {subject.rows:,} rows", flush=True)
    return records


def judge_scaled(pair: tuple[str, str]) -> list[Judged]:
    """Rows of one system answered by the tables of another, scaled by peaks and bandwidth."""
    target, source = pair
    scale = _scale(target, source)
    wanted = {(entry.engine, entry.family, entry.part): entry for entry in subjects((target,))}
    records = []
    for subject in subjects((source,)):
        rows = wanted.get((subject.engine, subject.family, subject.part))
        if rows is None or subject.family is Family.COLLECTIVES:  # links are not scaled
            continue
        estimate = subject.build(subject.columns)(rows.columns, scale)
        # `rows` has the roofline of the device that was measured.
        records.append(_of_estimate(rows, f"{source} for {target}", rows.columns, estimate, system=ANY_SYSTEM))
    print(f"{source} for {target}: {sum(len(entry.ratios) for entry in records):,} rows", flush=True)
    return records


def judge_batched(systems: Sequence[str]) -> Iterator[Judged]:
    """Several matmuls in one launch: the absorbed matmuls of latent attention, from the table of single matmuls."""
    for system in systems:
        for engine in ENGINES:
            if (table := newest(system, "mla_bmm", engine)) is None:
                continue
            rows = read_rows(table, ("op_name", "num_tokens", "num_heads"), where="bmm_dtype = 'bfloat16'")
            is_first = rows["op_name"] == "mla_gen_pre"  # into the latent space; the other one comes out of it
            columns, depth = np.where(is_first, RANK, VALUE_WIDTH), np.where(is_first, VALUE_WIDTH, RANK)
            times = kernel_tables(system, engine).matmuls(
                rows["num_tokens"], columns, depth, rows["num_heads"], weight_format="bfloat16"
            )
            ratios = rows["seconds"] / times.seconds
            yield Judged(
                system=system, engine=engine, family=Family.MATMULS, part="batched bfloat16", kind="batched",
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


def spreads(records: Iterable[Judged]) -> list[HeldOutSpread]:
    """Quantiles by system, family, origin and unmeasured dimensions, and of all systems together."""
    groups: dict[tuple[str, Family, TimeOrigin, int], list[Floats]] = defaultdict(list)
    for entry in records:
        if entry.seed == CHECK or entry.kind == OWN_ROWS:
            continue
        for (code, dimensions), here in _kinds(entry):
            for system in {entry.system, ANY_SYSTEM}:
                groups[system, entry.family, ORIGINS[code], dimensions].append(entry.ratios[here])
    result = []
    for (system, family, origin, dimensions), parts in sorted(groups.items()):
        ratios = np.concatenate(parts)
        if len(ratios) >= FEWEST_ROWS:
            low, high = (float(round(np.quantile(ratios, at), 4)) for at in (LOW, HIGH))
            band = {"low": min(low, 1.0), "high": max(high, 1.0), "rows": len(ratios)}
            group = {"system": system, "family": family, "origin": origin, "off_grid": dimensions}
            result.append(HeldOutSpread(**group, **band))
    return result


def coverage(records: Iterable[Judged], known: Sequence[HeldOutSpread]) -> dict[tuple[str, Family], tuple[int, int]]:
    """System and family -> rows of the second split, and how many of them lie in their band."""
    bands = {(entry.system, entry.family, entry.origin, entry.off_grid): (entry.low, entry.high) for entry in known}
    counts: dict[tuple[str, Family], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for entry in records:
        for (code, dimensions), here in _kinds(entry) if entry.seed == CHECK else ():
            band = bands.get((entry.system, entry.family, ORIGINS[code], dimensions))
            if band is not None:
                ratios = entry.ratios[here]
                hits = int(((band[0] <= ratios) & (ratios <= band[1])).sum())
                rows, before = counts[entry.system, entry.family]
                counts[entry.system, entry.family] = (rows + len(ratios), before + hits)
    return counts


def _kinds(entry: Judged) -> Iterator[tuple[tuple[int, int], Flags]]:
    """Origin code and unmeasured dimensions -> which rows have them."""
    for code in np.unique(entry.origin_codes).tolist():
        for dimensions in np.unique(entry.off_grid).tolist():
            here = (entry.origin_codes == code) & (entry.off_grid == dimensions)
            if here.any():
                yield (code, dimensions), here


def main(arguments: Sequence[str]) -> None:
    """Judge, print, and write where every system was judged."""
    systems = tuple(arguments) or SYSTEMS
    pairs = [pair for pair in SCALED_PAIRS if set(pair) <= set(systems)]
    with ProcessPoolExecutor() as pool:
        of_pairs = pool.map(judge_scaled, pairs)
        records = [entry for judgements in pool.map(judge_system, systems) for entry in judgements]
        scaled = [entry for judgements in of_pairs for entry in judgements]
    batched = list(judge_batched(systems))
    known = spreads([*records, *scaled, *batched])
    sections = {
        "accuracy": accuracy_table(records),
        "coverage": coverage_table(coverage(records, known), [*scaled, *batched]),
        "versions": versions_table(list(judge_versions(systems))),
    }
    print("\n\n".join(sections.values()))
    if not arguments:
        for name, text in sections.items():
            replace_section(PAGE, name, text)
        PARTS.write_text(parts_file(records), encoding="utf-8")
        chosen = active_set()
        assert chosen is not None, "the tables were read"
        tables = f"{chosen.name} {chosen.version}"
        file = SpreadFile(tables=tables, measured_by="benchmarks/kernels/held_out.py", spreads=tuple(known))
        SPREADS.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
