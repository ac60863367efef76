"""Leave shapes out of the tables, answer for them from the rest, and write what that shows.

    python -m benchmarks.kernels.held_out [system ...]

Without arguments it judges every system, writes the quantiles to `analyses/kernels/spread.json` and the tables to
`docs/kernel-tables.md`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.kernels.judged import Judged
from benchmarks.kernels.page import OWN_ROWS, accuracy_table, coverage_table, parts_file, versions_table
from benchmarks.kernels.splits import Split, far_end_left_out, lines_left_out, shapes_left_out
from benchmarks.kernels.subjects import SYSTEMS, Subject, own, subjects
from benchmarks.pages import replace_section
from llm_perf_opt.analyses.kernels.exchanges import CAPTURED
from llm_perf_opt.analyses.kernels.experts import GATED, LAYER_KEYS
from llm_perf_opt.analyses.kernels.kernel_tables import kernel_tables
from llm_perf_opt.analyses.kernels.latent import RANK, VALUE_WIDTH
from llm_perf_opt.analyses.kernels.spread import ANY_SYSTEM, MOST_DIMENSIONS, Family, HeldOutSpread, SpreadFile
from llm_perf_opt.analyses.kernels.systems import MEASURED_ON, SystemForDevice
from llm_perf_opt.analyses.kernels.tables import (
    ENGINES,
    Columns,
    column_names,
    newest,
    package_version,
    read_rows,
    versions,
)
from llm_perf_opt.analyses.kernels.times import ORIGINS, Flags, Floats, TimeOrigin
from llm_perf_opt.core.hardware import load_devices

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kernel-tables.md"
PARTS = ROOT / "docs" / "data" / "kernel_tables.csv"
SPREADS = ROOT / "src" / "llm_perf_opt" / "analyses" / "kernels" / "spread.json"
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
    return Judged(
        system=subject.system, engine=subject.engine, family=subject.family, part=subject.part, kind=split.kind,
        seed=seed, ratios=asked["seconds"] / estimate.seconds,
        roofline_ratios=asked["seconds"] / subject.roofline(asked), origin_codes=estimate.origin_codes,
        off_grid=np.minimum(estimate.off_grid, MOST_DIMENSIONS),
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
        found.append(
            Judged(
                system=ANY_SYSTEM,
                engine=subject.engine,
                family=subject.family,
                part=subject.part,
                kind=f"{source} for {target}",
                seed=CALIBRATION[0],
                ratios=rows.columns["seconds"] / estimate.seconds,
                roofline_ratios=rows.columns["seconds"] / rows.roofline(rows.columns),
                origin_codes=estimate.origin_codes,
                off_grid=np.minimum(estimate.off_grid, MOST_DIMENSIONS),
            )
        )
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
            result.append(
                HeldOutSpread(
                    system=system,
                    family=family,
                    origin=origin,
                    off_grid=dimensions,
                    low=min(low, 1.0),
                    high=max(high, 1.0),
                    rows=len(ratios),
                )
            )
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
