"""Bytes that every op of a run reads and writes, added up from the tensors at the dispatcher."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import Method, SourceFigures, WorkFamily, family_of, operator_name
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources.isolated_stages import ASKING_ERRORS, GhostCounter, failed_phase
from llm_perf_opt.costs.sources.torch_prices import plain_values
from llm_perf_opt.harness.isolation import OpenStages, build_on_ghosts, run_watched
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.weightless import Engine, Ghost, routing_policy

SOURCE = "byte-counter"
# Memory without content: nothing is written yet.
_ALLOCATES = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize")
_ASKS = ("local_scalar_dense", "item", "is_nonzero", "assert_async", "assert_tensor_metadata")  # one value for the host
_RELABELS = ("detach", "requires_grad", "set_data")  # in place by its schema, and touches no data
# What they are given first is overwritten, or lends its shape, and is not read.
_OVERWRITES = ("copy", "fill", "zero", "normal", "uniform", "random", "exponential", "bernoulli")
_BORROWS_SHAPE = (
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full",
)  # fmt: skip
_PICKS = ("embedding", "index", "index_select", "gather", "take", "take_along_dim", "masked_select", "unsafe_index")
_PUTS = ("index_put", "index_copy", "index_fill", "scatter", "masked_scatter", "put", "unsafe_index_put")
_ADDS_UP = ("index_add", "scatter_add", "scatter_reduce", "index_reduce")


class ByteCounter(GhostCounter):
    """Watches a whole run on ghosts; it counts bytes and no FLOPs, and has no list of prices to look into."""

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which the target declares them."""
        with OneRun(), Interruptible():
            return tuple(
                figures
                for target in adapter.targets(workload)
                for figures in _of_phase(target, self._engine, self._routing)
            )


def _of_phase(target: Target, engine: Engine, routing: str) -> Iterator[SourceFigures]:
    started = time.perf_counter()
    try:
        engine.oracle.routing = routing_policy(routing, target.phase)
        tally = _tally(target, engine)
    except ASKING_ERRORS as error:
        yield from failed_phase(target, SOURCE, error_line(error))
        return
    seconds = (time.perf_counter() - started) / max(1, len(tally))
    for name in (*(stage.name for stage in target.stages), target.phase):
        if name in tally:
            yield SourceFigures(
                source=SOURCE,
                phase=target.phase,
                stage=name,
                method=Method.EXTRACTED,
                bytes_moved=tally[name],
                routing=engine.oracle.routing.name,
                seconds=seconds,
            )


def _tally(target: Target, engine: Engine) -> Counter[str]:
    """Stage -> bytes moved; a stage that was called and ran nothing has zero."""
    model = build_on_ghosts(target, engine)

    def forward() -> Counter[str]:
        bytes_of, stages = Counter[str](), OpenStages(target)

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stages.enter(path)
            bytes_of[stages.current] += 0

        def on_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
            bytes_of[stages.current] += moved_bytes(func, args, kwargs, output)

        given = target.start(model)
        with OpWatch(on_op):
            run_watched(target, model, given, before, lambda path, output: stages.leave())
        return bytes_of

    return engine.run(forward)


def moved_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """Inputs read plus outputs written; a view moves nothing, and an expanded tensor counts as if it were stored."""
    name = operator_name(str(func))
    inputs, outputs = [*tensors_in(list(args)), *tensors_in(dict(kwargs))], tensors_in(output)
    is_in_place = _is_mutating(func)
    if name in (*_ALLOCATES, *_ASKS, *_RELABELS) or _changes_view_only(func):
        return 0
    if not (is_in_place or _has_fresh(inputs, outputs)):
        return 0
    if name in _PICKS:
        return _sum(inputs[1:]) + 2 * _sum(outputs[:1])  # only the rows that are named, which are what is returned
    if name in (*_PUTS, *_ADDS_UP):
        adds_up = name in _ADDS_UP or _accumulates(func, args, kwargs)
        return _put_bytes(inputs, adds_up=adds_up, is_in_place=is_in_place)
    if family_of(str(func)) is WorkFamily.GROUPED and (used := _share_used(inputs)) is not None:
        return _sum(inputs) - _sum(stack for stack in inputs if stack.ndim == 3) + used + _sum(outputs)
    skipped = 1 if name in _BORROWS_SHAPE or (is_in_place and name in _OVERWRITES) else 0
    return _sum(inputs[skipped:]) + _sum(outputs or inputs[:1] if is_in_place else outputs)


def _accumulates(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The argument of that name, wherever the schema has it."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return bool(given.get("accumulate", False))


def _put_bytes(inputs: Sequence[torch.Tensor], *, adds_up: bool, is_in_place: bool) -> int:
    """Indices and values are read and as many values written; a copy of the target comes first if not in place."""
    target, *others = inputs
    values = others[-1]
    written = values.numel() * target.element_size()
    copied = 0 if is_in_place else 2 * _sum([target])
    return _sum(others) + written + copied + (written if adds_up else 0)


def _share_used(inputs: Sequence[torch.Tensor]) -> int | None:
    """Bytes of the matrices in a stack that get rows; None where the offsets between the groups have no values."""
    stacks = [tensor for tensor in inputs if tensor.ndim == 3]
    offsets = [tensor for tensor in inputs if tensor.ndim == 1 and not tensor.is_floating_point()]
    if len(stacks) != 1 or len(offsets) != 1 or type(offsets[0]) is Ghost:
        return None
    ends = plain_values(offsets[0])
    used = sum(end > start for start, end in zip([0, *ends], ends, strict=False))
    (stack,) = stacks
    return used * stack[0].numel() * stack.element_size() if used else 0


def _is_mutating(func: Any) -> bool:
    schema = getattr(func, "_schema", None)  # a higher-order op has none
    return bool(schema is not None and schema.is_mutable)


def _changes_view_only(func: Any) -> bool:
    """`squeeze_`, `transpose_`: torch's own tag for in-place ops on the shape alone."""
    return torch.Tag.inplace_view in getattr(func, "tags", ())


def _has_fresh(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether some result has memory of its own."""
    given = set(map(_memory, inputs))
    return any(_memory(tensor) not in given for tensor in outputs)


def _memory(tensor: torch.Tensor) -> object:
    return tensor.memory if type(tensor) is Ghost else tensor.untyped_storage()._cdata


def _sum(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
