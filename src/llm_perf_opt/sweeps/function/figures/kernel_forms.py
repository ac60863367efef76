"""The kernels that a program launches, with sizes that are forms: what a source of rates times at many points.

Eager execution launches the kernels of each op. An engine fuses them: which ones is a matter of the structure of the
program, so its kernels are one list at every point, and their sizes are fitted like any other figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, KernelShape, MatmulShape
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.sweeps.function.figures.costs import Fit, OpFitting
from llm_perf_opt.sweeps.function.figures.rebuilding import Rebuilt
from llm_perf_opt.sweeps.function.form import Form, Point
from llm_perf_opt.sweeps.function.program.alignment import Parting
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.engine_kernels import fused_sequence
from llm_perf_opt.timing.rank_bound import least_collectives

_SIZES = ("flops", "skippable_flops", "bytes_moved", "avoidable_bytes", "rows", "weights", "sequences", "queries")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveForms:
    """A collective with a payload that is a form; its kind and its ranks are the same at every point."""

    kind: CollectiveKind
    group: GroupRanks
    axis: str | None
    payload: Form

    def of(self, payload_bytes: int) -> Collective:
        """The collective of one payload."""
        return Collective(kind=self.kind, payload_bytes=payload_bytes, group=self.group, axis=self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForms:
    """One kernel launch, with the fields of a kernel."""

    kind: KernelKind
    dtype: str
    flops: Form
    skippable_flops: Form
    bytes_moved: Form
    avoidable_bytes: Form
    rows: Form
    weights: Form
    sequences: Form
    queries: Form
    collective: CollectiveForms | None = None
    pattern: AccessPattern | None = None
    is_helper: bool = False
    shape: ShapeForms | None = None  # None: it has no shape, or a size of it is no form

    def at(self, point: Point) -> Kernel:
        """The kernel at one point."""
        sizes = {name: getattr(self, name).at(point) for name in _SIZES}
        collective = None if self.collective is None else self.collective.of(self.collective.payload.at(point))
        return Kernel(
            kind=self.kind,
            dtype=self.dtype,
            collective=collective,
            pattern=self.pattern,
            is_helper=self.is_helper,
            shape=None if self.shape is None else self.shape.at(point),
            **sizes,
        )


CollectiveCounts = Mapping[str, Mapping[CollectiveForms, int]]  # stage -> the collectives it must run, and how often
KernelCounts = Mapping[str, Mapping[KernelForms, int]]  # stage -> its kernels, and how often each is launched


def kernel_forms(rebuilt: Rebuilt, execution: Execution, *, least: bool = True) -> KernelCounts:
    """The kernels of each stage in a cell; `NoRule` where they are no fixed list with sizes that are forms.

    `least`: an engine is taken to fuse little, as the rates of a data sheet do.
    """
    if len(set(_loop_counts(rebuilt))) > 1:
        raise _no_rule("a loop runs more or less often, by the workload")
    return _fused(rebuilt, least=least) if execution is Execution.FUSED else _as_written(rebuilt)


def _loop_counts(rebuilt: Rebuilt) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How often each loop runs at the low and at the high end of the region: never less with more of anything."""
    low, high = ({name: ends[side] for name, ends in rebuilt.region.items()} for side in (0, 1))
    loops = rebuilt.program.loops
    return tuple(loop.count.at(low) for loop in loops), tuple(loop.count.at(high) for loop in loops)


def _as_written(rebuilt: Rebuilt) -> KernelCounts:
    shape, fitting = rebuilt.program.shape(_loop_counts(rebuilt)[0]), OpFitting(rebuilt.region)
    skeleton = shape.graph
    names, stages, kinds = stage_names(skeleton), stage_of_ops(skeleton), ops_of(skeleton).kind
    prepared = preparation(skeleton).stop
    counts = Counter(zip(stages[prepared:], kinds[prepared:], strict=True))
    launched = {
        number: fitting.fitted(shape.kinds[number], _kernels_of_op)
        for number in dict.fromkeys(kind for _, kind in counts)
    }
    by_stage: dict[str, Counter[KernelForms]] = {name: Counter() for name in names}
    for (stage, kind), count in counts.items():
        for kernel in launched[kind]:
            by_stage[names[stage]][kernel] += count
    return {stage: kernels for stage, kernels in by_stage.items() if kernels}


def _kernels_of_op(kinds: Sequence[OpKind], fit: Fit) -> list[KernelForms] | None:
    return _aligned([kernels_of(kind) for kind in kinds], fit)


def _aligned(lists: Sequence[Sequence[Kernel]], fit: Fit) -> list[KernelForms] | None:
    """Kernels of several points side by side; None where they are not the same kernels, or a size is no form."""
    if len({tuple((kernel.kind, kernel.dtype) for kernel in kernels) for kernels in lists}) > 1:
        return None
    forms: list[KernelForms] = []
    for same in zip(*lists, strict=True):
        sizes = {name: fit(tuple(getattr(kernel, name) for kernel in same)) for name in _SIZES}
        collective = _collective(same, fit)
        if None in sizes.values() or (collective is None and same[0].collective is not None):
            return None
        forms.append(
            KernelForms(
                kind=same[0].kind,
                dtype=same[0].dtype,
                collective=collective,
                pattern=_common(kernel.pattern for kernel in same),
                is_helper=same[0].is_helper,
                shape=shape_forms([kernel.shape for kernel in same], fit),
                **sizes,  # type: ignore[arg-type]
            )
        )
    return forms


def _common(patterns: Iterable[AccessPattern | None]) -> AccessPattern | None:
    """The pattern of all; None where they differ: an operand of one value at some points only is broadcast there."""
    distinct = set(patterns)
    return distinct.pop() if len(distinct) == 1 else None


def _collective(same: Sequence[Kernel], fit: Fit) -> CollectiveForms | None:
    """The collective of the kernels; None: they have none, or not the same at every point."""
    calls = [kernel.collective for kernel in same if kernel.collective is not None]
    if len(calls) < len(same) or len({(c.kind, c.group, c.axis) for c in calls}) > 1:
        return None
    payload = fit(tuple(c.payload_bytes for c in calls))
    if payload is None:
        return None
    return CollectiveForms(kind=calls[0].kind, group=calls[0].group, axis=calls[0].axis, payload=payload)


def _fused(rebuilt: Rebuilt, *, least: bool) -> KernelCounts:
    for points, fitter in rebuilt.bases():
        lists = [fused_sequence(rebuilt.graph(point), least=least) for point in points]
        stages = [stage for stage, _ in lists[0]]
        if any([stage for stage, _ in launched] != stages for launched in lists):
            raise _no_rule("what an engine fuses differs from point to point")
        kernels = _aligned([[kernel for _, kernel in launched] for launched in lists], fitter.fit)
        if kernels is not None:
            by_stage: dict[str, Counter[KernelForms]] = {}
            for stage, kernel in zip(stages, kernels, strict=True):
                by_stage.setdefault(stage, Counter())[kernel] += 1
            return by_stage
    raise _no_rule("the size of a fused kernel is not a polynomial")


def collective_counts(rebuilt: Rebuilt) -> CollectiveCounts:
    """The collectives of each stage that no engine can do without; `NoRule` where they differ from point to point."""
    for points, fitter in rebuilt.bases():
        lists = [_least(rebuilt.graph(point)) for point in points]
        if len({tuple((stage, c.kind, c.group, count) for stage, c, count in some) for some in lists}) > 1:
            raise _no_rule("the collectives that ranks must run differ from point to point")
        by_stage: dict[str, dict[CollectiveForms, int]] = {}
        for same in zip(*lists, strict=True):
            stage, first, count = same[0]
            payload = fitter.fit(tuple(c.payload_bytes for _, c, _ in same))
            if payload is None:
                break
            forms = CollectiveForms(kind=first.kind, group=first.group, axis=first.axis, payload=payload)
            counts = by_stage.setdefault(stage, {})
            counts[forms] = counts.get(forms, 0) + count
        else:
            return by_stage
    raise _no_rule("the payload of a collective is not a polynomial")


def _least(graph: CallGraph) -> list[tuple[str, Collective, int]]:
    return [(stage, c, count) for stage, least in least_collectives(graph).items() for c, count in least.items()]


def _no_rule(text: str) -> NoRule:
    return NoRule(Parting(what=NO_RULE, op=None, text=text))


_TYPES = (MatmulShape, AttentionShape, ExpertsShape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeForms:
    """A shape of the type at `type_place`; `sizes` are its integers, `fixed` its other fields."""

    type_place: int
    sizes: tuple[tuple[str, Form], ...]
    fixed: tuple[tuple[str, object], ...]

    def at(self, point: Point) -> KernelShape:
        """The shape at one point."""
        values: dict[str, Any] = {**dict(self.fixed), **{name: form.at(point) for name, form in self.sizes}}
        return _TYPES[self.type_place](**values)


def shape_forms(shapes: Sequence[KernelShape | None], fit: Fit) -> ShapeForms | None:
    """One shape at several points; None: there is none, they are of several types, or a size is no form."""
    kind = type(shapes[0])
    if kind not in _TYPES or any(type(shape) is not kind for shape in shapes):
        return None
    sizes: list[tuple[str, Form]] = []
    fixed: list[tuple[str, object]] = []
    for name in (field.name for field in fields(_TYPES[_TYPES.index(kind)])):
        values = tuple(getattr(shape, name) for shape in shapes)
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            form = fit(values)
            if form is None:
                return None
            sizes.append((name, form))
        elif len(set(values)) == 1:
            fixed.append((name, values[0]))
        else:
            return None
    return ShapeForms(type_place=_TYPES.index(kind), sizes=tuple(sizes), fixed=tuple(fixed))
