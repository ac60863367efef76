"""Attention what-if: eager, fused and flash side by side, each stage with FLOPs, bytes, peak memory and time.

Eager and fused are traced, where the code runs that way. Flash is worked out by formula from the fused trace, or from
the eager one where there is no other. FLOPs as written and FLOPs of visible pairs are two columns, and a case says
over which of them it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.attention_cases import AttentionCase, attention_cases, stage_label
from llm_perf_opt.costs.memory.live_memory import timeline
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.flash_work import FlashSite, attention_work, flash_sites, with_flash
from llm_perf_opt.timing.predict import stage_time
from llm_perf_opt.timing.rates import Band, RateSource, total
from llm_perf_opt.timing.stage_work import StageWork, stage_works

ALL = "all stages"


class AttentionKind(StrEnum):
    """A way to run attention."""

    EAGER = "eager"
    FUSED = "fused"
    FLASH = "flash"
    FLASH_VISIBLE = "flash, visible pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWhatIf:
    """One stage of one phase with one kind of attention; `stage` may be all stages of the phase together.

    `flops` are as written: all pairs of query and key. `visible_flops` leave out the pairs that a mask hides; a kernel
    runs over one or the other. `alone` is the attention by itself. `peak_bytes` is live memory; for flash that of the
    fused trace, None without one. Times are None without a device.
    """

    phase: str
    stage: str
    attention: str
    is_traced: bool
    flops: int
    visible_flops: int | None  # None: the trace does not tell which pairs are visible
    bytes_moved: int
    peak_bytes: int | None
    low_s: float | None
    high_s: float | None
    alone: AttentionAlone


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAlone:
    """Scores, softmax and weighted sums, without projections: what the kernels run, move, and take on the device."""

    flops: int  # of the pairs that the kernels run over
    bytes_moved: int
    launches: int
    low_s: float | None
    high_s: float | None
    added_bytes: int | None = None  # to live memory, at most, by one attention module; None: not known


def attention_what_if(
    eager: Sequence[CallGraph], fused: Sequence[CallGraph], rates: RateSource | None
) -> tuple[AttentionWhatIf, ...]:
    """Every stage with attention in every kind, phase by phase; either of the two traces may be missing."""
    first, second = ({graph.phase: _phase_of(graph, rates) for graph in run} for run in (eager, fused))
    added = {(case.phase, case.stage): case for case in attention_cases(eager, fused)}
    rows = (
        row for phase in dict.fromkeys([*second, *first]) for row in _cases(first.get(phase), second.get(phase), rates)
    )
    return tuple(_with_added(row, added.get((row.phase, row.stage))) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """A traced phase and what is read off it once."""

    graph: CallGraph
    works: Mapping[str, StageWork]
    sites: tuple[FlashSite, ...]
    peaks: Mapping[str, int]  # stage -> the most bytes alive in it; empty where the trace follows no memory


def _phase_of(graph: CallGraph, rates: RateSource | None) -> _Phase:
    curve = timeline(graph)
    return _Phase(
        graph=graph,
        works={work.name: work for work in stage_works(graph, with_necessary=rates is not None)},
        sites=flash_sites(graph),
        peaks={} if curve is None else {one.stage: one.peak_bytes for one in curve.stages},
    )


def _cases(eager: _Phase | None, fused: _Phase | None, rates: RateSource | None) -> Iterator[AttentionWhatIf]:
    """Stage by stage, every kind of attention that is known of it."""
    rows: list[AttentionWhatIf] = []
    for kind, phase in ((AttentionKind.EAGER, eager), (AttentionKind.FUSED, fused)):
        if phase is not None:
            rows += _rows(phase, kind, rates)
    base = fused if fused is not None else None if eager is None else replace(eager, peaks={})
    if base is not None and base.sites:
        for kind, visible in ((AttentionKind.FLASH, False), (AttentionKind.FLASH_VISIBLE, True)):
            changed = with_flash(base.graph, base.works, base.sites, visible=visible)
            rows += _rows(replace(base, works=changed), kind, rates, visible=visible)
    for stage in dict.fromkeys(row.stage for row in rows):
        yield from (row for row in rows if row.stage == stage)


def _rows(
    phase: _Phase, kind: AttentionKind, rates: RateSource | None, *, visible: bool | None = None
) -> Iterator[AttentionWhatIf]:
    """The stages that have attention, and all stages of the phase together; `visible` None: as traced."""
    hidden: dict[str, int] = {}
    for site in phase.sites:
        hidden[site.stage] = hidden.get(site.stage, 0) + site.flops - site.visible_flops
    rows = []
    for work in phase.works.values():
        band = None if rates is None else stage_time(work, tuple(work.kernels.items()), rates).wall
        sites = [site for site in phase.sites if site.stage == work.name]
        rows.append(
            AttentionWhatIf(
                phase=phase.graph.phase,
                stage=work.name,
                attention=kind,
                is_traced=visible is None,
                flops=work.flops,
                visible_flops=work.flops - hidden.get(work.name, 0) if phase.sites else None,
                bytes_moved=work.bytes_moved,
                peak_bytes=phase.peaks.get(work.name),
                low_s=None if band is None else band.low,
                high_s=None if band is None else band.high,
                alone=_alone(phase.graph, sites, rates, visible),
            )
        )
    yield from (row for row in rows if row.stage in hidden)
    if len(rows) > 1:
        yield _together(rows)


def _with_added(row: AttentionWhatIf, case: AttentionCase | None) -> AttentionWhatIf:
    """With what one attention adds to live memory: as traced, and for flash as the fused op."""
    if case is None:
        return row
    peak = case.eager if row.attention == AttentionKind.EAGER else case.fused
    return replace(row, alone=replace(row.alone, added_bytes=None if peak is None else peak.added_bytes))


def _alone(
    graph: CallGraph, sites: Sequence[FlashSite], rates: RateSource | None, visible: bool | None
) -> AttentionAlone:
    found = [attention_work(graph, site, visible) for site in sites]
    kernels = Counter(kernel for kernels, _ in found for kernel in kernels)
    band = None if rates is None else total(_busy(kernel, count, rates) for kernel, count in kernels.items())
    return AttentionAlone(
        flops=sum(kernel.flops * count for kernel, count in kernels.items()),
        bytes_moved=sum(moved for _, moved in found),
        launches=kernels.total(),
        low_s=None if band is None else band.low,
        high_s=None if band is None else band.high,
    )


def _busy(kernel: Kernel, count: int, rates: RateSource) -> Band:
    return total(time.band for time in rates.duration(kernel) or ()).times(count)


def _together(rows: Sequence[AttentionWhatIf]) -> AttentionWhatIf:
    visible = [row.visible_flops for row in rows]
    peaks = [row.peak_bytes for row in rows]
    return replace(
        rows[0],
        stage=ALL,
        flops=sum(row.flops for row in rows),
        visible_flops=known_sum(visible),
        bytes_moved=sum(row.bytes_moved for row in rows),
        peak_bytes=None if None in peaks else max(value for value in peaks if value is not None),
        low_s=known_sum(row.low_s for row in rows),
        high_s=known_sum(row.high_s for row in rows),
        alone=_all_alone([row.alone for row in rows]),
    )


def _all_alone(rows: Sequence[AttentionAlone]) -> AttentionAlone:
    return AttentionAlone(
        flops=sum(row.flops for row in rows),
        bytes_moved=sum(row.bytes_moved for row in rows),
        launches=sum(row.launches for row in rows),
        low_s=known_sum(row.low_s for row in rows),
        high_s=known_sum(row.high_s for row in rows),
    )


def what_if_report(title: str, rows: Sequence[AttentionWhatIf], machine: str | None) -> Report:
    """One table; cases that give the same figures for a stage share a row."""
    merged = list(_merged(rows))
    cells: dict[Column, Callable[[Merged], Cell]] = {
        Column("stage"): lambda row: _label(row[0]),
        Column("attention"): lambda row: row[1],
        Column("from"): lambda row: row[2],
        Column("FLOPs as written", Kind.FLOPS): lambda row: row[0].flops,
        Column("FLOPs of visible pairs", Kind.FLOPS): lambda row: row[0].visible_flops,
        Column("bytes moved", Kind.BYTES): lambda row: row[0].bytes_moved,
        Column("peak live", Kind.BYTES): lambda row: row[0].peak_bytes,
    }
    if machine is not None:
        cells[Column("data sheet low", Kind.SECONDS)] = lambda row: row[0].low_s
        cells[Column("data sheet high", Kind.SECONDS)] = lambda row: row[0].high_s
    return Report(
        title=title,
        tables=(table_of(TABLE, merged, cells), _alone_table(merged, has_times=machine is not None)),
        notes=tuple(_notes(rows, machine)),
    )


def _alone_table(merged: Sequence[Merged], *, has_times: bool) -> Table:
    """Where a stage is bound by launches or the rest outweighs, the attention by itself still shows the difference."""
    cells: dict[Column, Callable[[Merged], Cell]] = {
        Column("stage"): lambda row: _label(row[0]),
        Column("attention"): lambda row: row[1],
        Column("from"): lambda row: row[2],
        Column("FLOPs run", Kind.FLOPS): lambda row: row[0].alone.flops,
        Column("bytes moved", Kind.BYTES): lambda row: row[0].alone.bytes_moved,
        Column("launches", Kind.COUNT): lambda row: row[0].alone.launches,
        Column("memory added by one", Kind.BYTES): lambda row: row[0].alone.added_bytes,
    }
    if has_times:
        cells[Column("device time, low", Kind.SECONDS)] = lambda row: row[0].alone.low_s
        cells[Column("device time, high", Kind.SECONDS)] = lambda row: row[0].alone.high_s
    return table_of(ALONE_TABLE, [row for row in merged if row[0].stage != ALL], cells)


TABLE = "Attention: what if"
ALONE_TABLE = "Attention by itself"
Merged = tuple[AttentionWhatIf, str, str]  # the figures, the cases that have them, and where they come from


def _merged(rows: Sequence[AttentionWhatIf]) -> Iterator[Merged]:
    found: dict[tuple[object, ...], list[AttentionWhatIf]] = {}
    for row in rows:
        figures = (row.phase, row.stage, row.flops, row.bytes_moved, row.low_s, row.high_s, row.alone)
        found.setdefault(figures, []).append(row)
    for alike in found.values():
        origins = dict.fromkeys("trace" if row.is_traced else "formula" for row in alike)
        yield alike[0], "; ".join(row.attention for row in alike), ", ".join(origins)


def _label(row: AttentionWhatIf) -> str:
    return f"{row.phase}, {ALL}" if row.stage == ALL else stage_label(row.phase, row.stage)


def _notes(rows: Sequence[AttentionWhatIf], machine: str | None) -> Iterator[Note]:
    if not rows:
        yield Note("No attention was found in this trace, so there is nothing to compare.", Level.WARNING)
        return
    traced = {row.attention for row in rows if row.is_traced}
    yield Note(
        "FLOPs as written are those of all pairs of query and key. Visible pairs leave out what a causal mask or a "
        "window hides: S * (S + 1) / 2 of S * S. Flash runs over all pairs, flash, visible pairs over those."
    )
    yield Note(
        "Flash is a formula: Q, K and V are read once and O is written once; scores and mask never reach memory. "
        "Its peak is that of the fused trace, which holds no scores either. An additive bias that is no causal mask "
        "keeps the op of the trace."
    )
    for kind in (AttentionKind.EAGER, AttentionKind.FUSED):
        if kind not in traced:
            yield Note(f"No {kind} attention: the code does not run that way, or the trace is a saved one.")
    if machine is not None:
        yield Note("Times: PyTorch launches kernel after kernel; a fused op with a causal flag skips hidden pairs too.")
