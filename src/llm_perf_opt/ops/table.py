"""The table of all ops, and what follows for one run of an op: its price, kernels, reads and calibrated work.

An op is looked up by the name that its overloads share. An op that is not registered is taken as the sum of the
primitive ops it is made of. Where a trace does not record those either, its price is None: unknown, never free.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.source_figures import WorkFamily, family_of
from llm_perf_opt.ops import (
    attention,
    collectives,
    convolution,
    engine_layers,
    grouped_experts,
    linear_algebra,
    matmuls,
    memory,
    paged_attention,
    recurrent,
    spectral,
    tensor_lists,
    vector,
)
from llm_perf_opt.ops.cost import FREE, OpCost, bytes_in_and_out, packet_of
from llm_perf_opt.ops.op import (
    CalibratedWork,
    Kernel,
    KernelKind,
    Op,
    OpRole,
    joined,
    reads_all,
    sized_work,
    vector_kernel,
)

CLASSES: Mapping[str, Op] = {**memory.CLASSES, **vector.CLASSES, **tensor_lists.CLASSES}
_WITH_COPIES = frozenset({"aten.matmul"})  # operands with batch dimensions of no single stride are copied first
_FAMILIES = (
    matmuls,
    grouped_experts,
    attention,
    convolution,
    recurrent,
    spectral,
    linear_algebra,
    vector,
    memory,
    tensor_lists,
    collectives,
    paged_attention,
    engine_layers,
)


@cache
def op_table() -> dict[str, Op]:
    """Every op by name: those that a family registers, and the ops of aten that differ by class alone."""
    return joined((registered_ops(), _class_ops()))


def registered_ops() -> dict[str, Op]:
    """The ops that the files of the families register, by name."""
    return joined(family.OPS for family in _FAMILIES)


def _class_ops() -> dict[str, Op]:
    """The ops in `aten_ops.toml`, which `scripts/classify_aten_ops.py` makes."""
    text = resources.files(__package__).joinpath("aten_ops.toml").read_text(encoding="utf-8")
    return {f"aten.{name}": CLASSES[op_class] for op_class, names in tomllib.loads(text).items() for name in names}


def op_of(kind: OpKind) -> Op | None:
    """What is registered for an op; None: nothing."""
    return op_table().get(packet_of(kind.name))


def op_role(kind: OpKind) -> OpRole | None:
    """What an op is in the patterns that an analysis looks for; None: nothing of interest."""
    op = op_of(kind)
    return None if op is None else op.role


def op_family(name: str) -> WorkFamily:
    """The family of an op: as it is registered, and otherwise by the words of its name."""
    op = op_table().get(packet_of(name))
    return family_of(name) if op is None else op.family


def price(kind: OpKind) -> OpCost | None:
    """What one run of `kind` costs, or None: unknown, which is never the same as free.

    An op that returns only its inputs' memory and writes nothing (`reshape` of contiguous data, `dropout` outside
    training) did nothing, whatever its name. Expanded inputs count as if they were stored: shapes are
    all there is.
    """
    if _only_aliases(kind):
        return FREE
    cost = _by_formula(kind)
    return _sum_of_parts(kind) if cost is None else cost


def _only_aliases(kind: OpKind) -> bool:
    return bool(kind.output_aliases) and not kind.mutates and min(kind.output_aliases) >= 0


def _by_formula(kind: OpKind) -> OpCost | None:
    """None without a formula, and where the record holds less than the formula needs.

    Some tracers see no arguments, and a file may come from anywhere: an op that its formula cannot read is then listed
    as unpriced instead of ending the analysis.
    """
    op = op_of(kind)
    if op is None:
        return None
    try:
        return op.price(kind)
    except (LookupError, TypeError, ValueError):
        return None


def _sum_of_parts(kind: OpKind) -> OpCost | None:
    total = FREE
    for part in kind.parts:
        cost = price(part)
        if cost is None:
            return None
        total += cost
    return total if kind.parts else None


@lru_cache(maxsize=65536)
def kernels_of(kind: OpKind) -> tuple[Kernel, ...]:
    """The kernels that one run of `kind` launches; an op without a price launches one of unknown work.

    A view launches nothing, and a composite op what its parts launch. What a matmul launches in addition
    prepares its operands.
    """
    cost = price(kind)
    if cost is not None and not (cost.flops or cost.bytes_moved):
        return ()
    if kind.parts:
        launched = tuple(kernel for part in kind.parts for kernel in kernels_of(part))
        return tuple(map(_as_helper, launched)) if packet_of(kind.name) in _WITH_COPIES else launched
    op = op_of(kind)
    if cost is None or op is None:
        return (vector_kernel(kind, OpCost(bytes_moved=bytes_in_and_out(kind))),)
    return op.kernels(kind, cost)


def _as_helper(kernel: Kernel) -> Kernel:
    return replace(kernel, is_helper=True) if kernel.kind is KernelKind.VECTOR else kernel


def touches_memory(kind: OpKind) -> bool:
    """Whether an op is more than a view or a question; one without a price may be anything."""
    cost = price(kind)
    return cost is None or bool(cost.flops or cost.bytes_moved)


def only_fills(kind: OpKind) -> bool:
    """Whether an op only writes constants or random numbers."""
    op = op_of(kind)
    return op is not None and op.price is memory.fill


@lru_cache(maxsize=65536)
def bytes_read(kind: OpKind) -> tuple[int, ...]:
    """Per input: how much of it the op reads at least. What is overwritten need not be read."""
    if not touches_memory(kind):
        return (0,) * len(kind.inputs)
    op = op_of(kind)
    return tuple(reads_all(kind) if op is None or not kind.inputs else op.reads(kind))


VIEWS_TOGETHER = 4  # a calibration times views four at a time, and module calls two
CALLS_TOGETHER = 2
_VIEW = CalibratedWork(family="view", dtype="any", sizes={"calls": VIEWS_TOGETHER}, times=1 / VIEWS_TOGETHER)
MODULE_CALL = CalibratedWork(
    family="module_call", dtype="any", sizes={"calls": CALLS_TOGETHER}, times=1 / CALLS_TOGETHER
)

ScatteredInputs = frozenset[int]  # places of an op's inputs with rows that are not contiguous in memory
_IF_SCATTERED = {"regrouping": "scattered_copy", "resampling": "scattered_resampling"}


def calibrated_work_of(kind: OpKind, scattered: ScatteredInputs = frozenset()) -> tuple[CalibratedWork, ...] | None:
    """What one run of `kind` does, by families that a calibration measures; None: none of them describes it."""
    works = _contiguous_work(kind)
    return works if works is None or not scattered else tuple(_scattered_work(kind, works, scattered))


def _scattered_work(
    kind: OpKind, works: tuple[CalibratedWork, ...], scattered: ScatteredInputs
) -> Iterator[CalibratedWork]:
    """Mixed layouts slow a sum down; what wants rows together copies a scattered input first."""
    full = {place for place, meta in enumerate(kind.inputs) if meta.shape == kind.outputs[0].shape}
    is_mixed = bool(full & scattered) and not full <= scattered
    for work in works:
        if work.family == "arithmetic" and is_mixed:
            yield replace(work, family="scattered_arithmetic")
        else:
            yield replace(work, family=_IF_SCATTERED.get(work.family, work.family))
    op = op_of(kind)
    if 0 in scattered and op is not None and op.copies_scattered_input:
        yield sized_work("scattered_copy", kind.inputs[0])


def _contiguous_work(kind: OpKind) -> tuple[CalibratedWork, ...] | None:
    if _only_aliases(kind):
        return (_VIEW,)
    op = op_of(kind)
    if op is not None and op.calibrated is not None:
        try:
            return tuple(op.calibrated(kind))
        except (LookupError, TypeError, ValueError, ZeroDivisionError):
            return None  # the record holds less than the formula needs: some tracers see no shapes
    if kind.parts:
        works_of_parts = [_contiguous_work(part) for part in kind.parts]
        return None if None in works_of_parts else tuple(work for works in works_of_parts if works for work in works)
    cost = price(kind)
    if cost is None:
        return None
    if not cost.bytes_moved:
        return (_VIEW,)
    return (CalibratedWork(family="copy", dtype="float32", sizes={"elements": cost.bytes_moved / 2 / 4}),)
