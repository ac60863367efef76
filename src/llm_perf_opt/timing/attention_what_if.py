"""Attention what-if: eager, fused and flash side by side, each stage with FLOPs, bytes, peak memory and time.

Eager and fused are traced, where the code runs that way. Flash is worked out by formula from the fused trace, or from
the eager one where there is no other. FLOPs as written and FLOPs of visible pairs are two columns, and a case says
over which of them it runs.

A flash kernel reads Q, K and V once and writes O once. Scores, mask and softmax leave memory. The kernel runs over all
pairs of query and key, or over the visible ones alone: `S * (S + 1) / 2` of `S * S` under a causal mask. An attention
with an additive bias that is no causal mask keeps its op, because a flash kernel takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.live_memory import timeline
from llm_perf_opt.costs.memory.memory_report import AttentionCase, attention_cases, stage_label
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.cost import operand
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.timing.predict import stage_time
from llm_perf_opt.timing.rates import Band, RateSource, total
from llm_perf_opt.timing.stage_work import StageWork, stage_works


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashSite:
    """One attention, and the rows of the trace that it runs in; a kernel takes their place unless it keeps its op."""

    stage: str
    rows: tuple[int, ...]
    keeps_op: bool  # it has an additive bias that no flash kernel takes
    flops: int  # of all pairs, as written
    visible_flops: int
    bytes_moved: int  # Q, K, V and O, each once
    dtype: str
    sequences: int
    queries: int

    def kernel(self, *, visible: bool) -> Kernel:
        """The flash kernel over the visible pairs, or over all."""
        return Kernel(
            kind=KernelKind.ATTENTION,
            dtype=self.dtype,
            flops=self.visible_flops if visible else self.flops,
            skippable_flops=0,
            bytes_moved=self.bytes_moved,
            sequences=self.sequences,
            queries=self.queries,
        )


def flash_sites(graph: CallGraph) -> tuple[FlashSite, ...]:
    """Every attention of the phase, in the order in which they run; empty where the trace follows no memory."""
    if not ops_of(graph).input_storages:
        return ()
    anatomy, names, stages = anatomy_of(graph), stage_names(graph), stage_of_ops(graph)
    contexts = contexts_of(graph, anatomy)
    return tuple(
        _site(graph, site, names[stages[site.row]], contexts.get(anatomy.forward_of_ops[site.row]))
        for site in anatomy.attentions
    )


def _site(graph: CallGraph, site: AttentionSite, stage: str, context: int | None) -> FlashSite:
    shape = _kind(graph, site.row).outputs[0].shape
    pairs = site.span.pairs(site.queries, site.keys, context if site.span.is_limited else None)
    tensors = _tensors(graph, site)
    return FlashSite(
        stage=stage,
        rows=tuple(_rows_of(graph, site)),
        keeps_op=_has_bias(graph, site),
        flops=site.flops,
        visible_flops=2 * pairs * site.lanes * (site.qk_width + site.v_width),
        bytes_moved=sum(map(tensor_bytes, tensors)),
        dtype=site.dtype,
        sequences=shape[0] if len(shape) > 3 else 1,
        queries=site.queries,
    )


def _kind(graph: CallGraph, row: int) -> OpKind:
    return graph.op_kinds[ops_of(graph).kind[row]]


def _tensors(graph: CallGraph, site: AttentionSite) -> tuple[TensorMeta, ...]:
    """Q, K, V and O of the op, or of the two matmuls where the scores are written out."""
    kind = _kind(graph, site.row)
    if len(site.rows) == 1:
        return (*(operand(kind, place, name, name[0]) for place, name in enumerate(_OPERANDS)), kind.outputs[0])
    like = kind.outputs[0]
    shapes = (
        (site.lanes, site.queries, site.qk_width),
        (site.lanes, site.keys, site.qk_width),
        (site.lanes, site.keys, site.v_width),
        (site.lanes, site.queries, site.v_width),
    )
    return tuple(replace(like, shape=shape, dtype=site.dtype) for shape in shapes)


_OPERANDS = ("query", "key", "value")


def _has_bias(graph: CallGraph, site: AttentionSite) -> bool:
    """Whether a fused op has a mask that is not the causal one; between written-out matmuls it cannot be told."""
    if len(site.rows) > 1 or site.span.is_causal:
        return False
    kind = _kind(graph, site.row)
    return "attn_mask" in kind.input_names or (not kind.input_names and len(kind.inputs) > len(_OPERANDS))


def _rows_of(graph: CallGraph, site: AttentionSite) -> Iterator[int]:
    """The fused op; or both matmuls and everything between them in the same call that the scores flow through."""
    if len(site.rows) == 1:
        yield site.row
        return
    ops, (input_starts, output_starts) = ops_of(graph), tensor_offsets(graph)
    first, last = site.rows
    scores: set[int] = set()
    for row in range(first, last + 1):
        inputs = ops.input_storages[input_starts[row] : input_starts[row + 1]]
        if row == first or (ops.call[row] == site.call and not scores.isdisjoint(inputs)):
            yield row
            scores.update(ops.output_storages[output_starts[row] : output_starts[row + 1]])


def attention_work(graph: CallGraph, site: FlashSite, visible: bool | None = None) -> tuple[tuple[Kernel, ...], int]:
    """Kernels of one attention and the bytes that they move: as traced, or in a flash kernel over visible or all pairs.

    One that keeps its op has it in every case.
    """
    if visible is not None and not site.keeps_op:
        return (site.kernel(visible=visible),), site.bytes_moved
    kinds = [_kind(graph, row) for row in site.rows]
    costs = [price(kind) for kind in kinds]
    kernels = tuple(kernel for kind in kinds for kernel in kernels_of(kind))
    return kernels, sum(cost.bytes_moved for cost in costs if cost is not None)


def with_flash(
    graph: CallGraph, works: Mapping[str, StageWork], sites: tuple[FlashSite, ...], *, visible: bool
) -> dict[str, StageWork]:
    """Stage -> its work with every attention that can in a flash kernel."""
    changed = {name: (Counter(work.kernels), work.bytes_moved) for name, work in works.items()}
    for site in (site for site in sites if not site.keeps_op and site.stage in changed):
        kernels, moved = changed[site.stage]
        as_traced, traced_bytes = attention_work(graph, site)
        kernels.subtract(as_traced)
        kernels[site.kernel(visible=visible)] += 1
        changed[site.stage] = kernels, moved - traced_bytes + site.bytes_moved
    return {
        name: replace(
            work, kernels=+changed[name][0], launches=(+changed[name][0]).total(), bytes_moved=changed[name][1]
        )
        for name, work in works.items()
    }


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
    runs over one or the other. `alone` is the attention by itself. `peak_bytes` is live memory; for flash it is
    the peak of the fused trace, None without one. Times are None without a device.
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
        peaks={} if curve is None else {stage.stage: stage.peak_bytes for stage in curve.stages},
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
    works = [attention_work(graph, site, visible) for site in sites]
    kernels = Counter(kernel for kernels, _ in works for kernel in kernels)
    band = None if rates is None else total(_busy(kernel, count, rates) for kernel, count in kernels.items())
    return AttentionAlone(
        flops=sum(kernel.flops * count for kernel, count in kernels.items()),
        bytes_moved=sum(moved for _, moved in works),
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
        tables=(table_of(TABLE, merged, cells, origin=_ORIGIN), _alone_table(merged, has_times=machine is not None)),
        notes=tuple(_notes(rows, machine)),
    )


def _alone_table(merged: Sequence[Merged], *, has_times: bool) -> Table:
    """Where kernel launches or other work dominate a stage, the attention by itself still shows the difference."""
    cells: dict[Column, Callable[[Merged], Cell]] = {
        Column("stage"): lambda row: _label(row[0]),
        Column("attention"): lambda row: row[1],
        Column("from"): lambda row: row[2],
        Column("FLOPs run", Kind.FLOPS): lambda row: row[0].alone.flops,
        Column("bytes moved", Kind.BYTES): lambda row: row[0].alone.bytes_moved,
        Column("kernel launches", Kind.COUNT): lambda row: row[0].alone.launches,
        Column("memory added by one", Kind.BYTES): lambda row: row[0].alone.added_bytes,
    }
    if has_times:
        cells[Column("device time, low", Kind.SECONDS)] = lambda row: row[0].alone.low_s
        cells[Column("device time, high", Kind.SECONDS)] = lambda row: row[0].alone.high_s
    return table_of(ALONE_TABLE, [row for row in merged if row[0].stage != ALL], cells, origin=_ORIGIN)


TABLE = "Attention: what if"
_ORIGIN = "the ops of the trace with its attention as named, at their prices and data-sheet times"
ALONE_TABLE = "Attention by itself"
Merged = tuple[AttentionWhatIf, str, str]  # the figures, the cases that have them, and where they come from


def _merged(rows: Sequence[AttentionWhatIf]) -> Iterator[Merged]:
    grouped: dict[tuple[object, ...], list[AttentionWhatIf]] = {}
    for row in rows:
        figures = (row.phase, row.stage, row.flops, row.bytes_moved, row.low_s, row.high_s, row.alone)
        grouped.setdefault(figures, []).append(row)
    for alike in grouped.values():
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
        "FLOPs as written count all pairs of query and key. Visible pairs leave out what a causal mask or a "
        "window hides: S * (S + 1) / 2 of S * S. `flash` runs over all pairs, `flash, visible pairs` over the visible "
        "ones."
    )
    yield Note(
        "Flash is a formula: Q, K and V are read once and O is written once; scores and mask never reach memory. "
        "Its peak memory is the peak of the fused trace, which holds no scores either. An additive bias that is no "
        "causal mask keeps the op of the trace."
    )
    for kind in (AttentionKind.EAGER, AttentionKind.FUSED):
        if kind not in traced:
            yield Note(f"No {kind} attention: the code does not run that way, or the trace is a saved one.")
    if machine is not None:
        yield Note(
            "Times are of PyTorch, one kernel after the other; a fused op with a causal flag skips hidden pairs too."
        )
