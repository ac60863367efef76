"""Which dimensions of a part may vary: each is marked as dynamic by itself, and the guard that fixes one is shown."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim

from llm_perf_opt.core.export_outcome import AxisOutcome, Check, Verdict
from llm_perf_opt.exports.failure import EXPORT_ERRORS, current_site, failed
from llm_perf_opt.exports.part_under_test import PartUnderTest, TensorsOnly, autocast_knows_meta, cached_tensors

_NAMES_BY_RANK = {2: ("tokens", "width"), 3: ("batch", "tokens", "width"), 4: ("batch", "channels", "rows", "columns")}
_SYMBOLIC_SHAPES = logging.getLogger("torch.fx.experimental.symbolic_shapes")
_CREATED = re.compile(r"create_symbol (s\d+) = \d+ for L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\] ")
_GUARD = re.compile(r"eval (\[guard suppressed\] )?(.*?) \[guard added\]")
_FIXED = re.compile(r"set_replacement (s\d+) = \d+ ")
_RENAMED = re.compile(r"set_replacement (s\d+) = (s\d+) ")
# A sum, multiple or quotient of one size that must equal a number: `(s0//16) == 64` leaves the size at most 16 values.
_PINNED = re.compile(r"Eq\([\d ()+*-]*(s\d+)(?:[\d ()+*-]|//\d+)*, \d+\)")
_EQUATION = re.compile(r"Eq\((.+), (.+?)\)")
_LONGEST_GUARD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicAxis:
    """One dimension of one input, which others may follow."""

    name: str  # empty: not to be tried
    place: int  # of the input
    dimension: int


def axes_of(subject: PartUnderTest) -> list[DynamicAxis]:
    """The dimensions to report: the first float input's, and the tokens that a cache holds."""
    given = subject.call.given
    first = next((place for place, tensor in enumerate(given) if tensor.is_floating_point()), 0)
    names = subject.part.axes or _usual_names(given[first])
    every = (*names, *("",) * (given[first].ndim - len(names)))
    axes = [DynamicAxis(name=name, place=first, dimension=place) for place, name in enumerate(every)]
    held = [place for place in cached_tensors(subject.call) if given[place].ndim == 4 and given[place].shape[-2]]
    return [*axes, *(DynamicAxis(name="held tokens", place=place, dimension=2) for place in held[:1])]


def _usual_names(tensor: torch.Tensor) -> tuple[str, ...]:
    if not tensor.is_floating_point() and tensor.ndim == 2:
        return ("batch", "tokens")
    return _NAMES_BY_RANK.get(tensor.ndim, tuple(f"axis {place}" for place in range(tensor.ndim)))


def try_axis(subject: PartUnderTest, call: TensorsOnly, axis: DynamicAxis) -> AxisOutcome:
    """Export once with this dimension marked as dynamic; equal dimensions of other inputs may follow it."""
    given = subject.call.given
    size = given[axis.place].shape[axis.dimension]
    argument = f"{subject.names[axis.place]}[{axis.dimension}]"
    if not axis.name:
        return _left_out(axis, argument, size)
    inputs, marks = _marked(given, axis)
    with _guards_seen(axis) as seen:
        try:
            with torch.no_grad(), autocast_knows_meta():
                program = torch.export.export(call, inputs, dynamic_shapes=(marks,))
        except EXPORT_ERRORS as error:
            return _stopped(axis, argument, size, seen, error)
    if seen.is_pinned:
        return _stopped(axis, argument, size, seen, _Pinned())
    return AxisOutcome(
        axis=axis.name, argument=argument, size=size, verdict=Verdict.OK, guards=len(seen.guards), range=_range(program)
    )


def _left_out(axis: DynamicAxis, argument: str, size: int) -> AxisOutcome:
    return AxisOutcome(
        axis=f"axis {axis.dimension}",
        argument=argument,
        size=size,
        verdict=Verdict.SKIPPED,
        guard="the part gives it no name",
    )


def _marked(given: Sequence[torch.Tensor], axis: DynamicAxis) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Inputs of sizes that torch does not specialise on (0 and 1 it does), and one mark per dimension that varies."""
    size = given[axis.place].shape[axis.dimension]
    inputs, marks = [], []
    for place, tensor in enumerate(given):
        shape, mark = list(tensor.shape), {}
        for dimension, length in enumerate(shape):
            is_asked = place == axis.place and dimension == axis.dimension
            follows = place != axis.place and length == size and (size > 1 or dimension == axis.dimension)
            if is_asked or follows:
                mark[dimension] = Dim.DYNAMIC if is_asked else Dim.AUTO
                shape[dimension] = max(length, 2)
        inputs.append(torch.empty(shape, dtype=tensor.dtype, device="meta"))
        marks.append(mark or None)
    return tuple(inputs), tuple(marks)


def _range(program: torch.export.ExportedProgram) -> str:
    bounds = sorted({(str(limits.lower), str(limits.upper)) for limits in program.range_constraints.values()})
    return ", ".join(f"{low} and more" if high in ("int_oo", "oo") else f"{low} to {high}" for low, high in bounds)


def _stopped(axis: DynamicAxis, argument: str, size: int, seen: _Guards, error: BaseException) -> AxisOutcome:
    """The guard that left the dimension one value; where there is none, the error itself."""
    fixing = seen.fixing
    if fixing is not None:
        equation = _EQUATION.sub(r"\1 == \2", fixing.text)
        guard, site, line = re.sub(r"\bs\d+\b", argument, equation), fixing.site, fixing.source_line
    else:
        outcome = failed(Check.DYNAMIC, error)
        guard, site, line = f"{outcome.error}: {outcome.reason}", outcome.site, outcome.source_line
    return AxisOutcome(
        axis=axis.name,
        argument=argument,
        size=size,
        verdict=Verdict.FAILED,
        guards=len(seen.guards),
        guard=guard,
        site=site,
        source_line=line,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guard:
    text: str
    site: str | None
    source_line: str | None


@dataclass(slots=True)
class _Guards:
    axis: DynamicAxis
    symbol: str = ""  # torch's name for its size
    guards: list[_Guard] = field(default_factory=list)
    fixing: _Guard | None = None  # the first one that left a dimension a single value
    is_pinned: bool = False  # `fixing` holds for the asked dimension itself, whatever torch makes of it


class _Pinned(RuntimeError):
    """No reason to go on with an export: the asked dimension cannot vary."""


class _GuardLog(logging.Handler):
    """Torch tells of a guard only in its log, while the frame that needed it is still running.

    It replaces a size that an equation leaves one value, and refuses; a size that is left a few values, as where
    patches are cut off it, it takes for dynamic, and the graph refuses every other value when it runs.
    """

    def __init__(self, seen: _Guards) -> None:
        super().__init__(logging.INFO)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a guard with the line of model code that asked for it; one that pins the dimension ends the export."""
        message, seen = record.getMessage(), self._seen
        if match := _CREATED.match(message):
            if (int(match[2]), int(match[3])) == (seen.axis.place, seen.axis.dimension):
                seen.symbol = match[1]
        elif match := _RENAMED.match(message):
            seen.symbol = match[2] if match[1] == seen.symbol else seen.symbol
        elif match := _GUARD.match(message):
            self._keep(match[2], is_suppressed=match[1] is not None)
        elif _FIXED.match(message) and seen.guards and seen.fixing is None:
            seen.fixing = seen.guards[-1]

    def _keep(self, text: str, *, is_suppressed: bool) -> None:
        seen = self._seen
        site, line = current_site() or (None, None)
        seen.guards.append(_Guard(text=text[:_LONGEST_GUARD], site=site, source_line=line))
        pinned = _PINNED.fullmatch(text)
        if pinned is not None and pinned[1] == seen.symbol and not is_suppressed:
            seen.fixing, seen.is_pinned = seen.guards[-1], True
            raise _Pinned


@contextmanager
def _guards_seen(axis: DynamicAxis) -> Iterator[_Guards]:
    seen = _Guards(axis=axis)
    handler = _GuardLog(seen)
    level, propagate, others = _SYMBOLIC_SHAPES.level, _SYMBOLIC_SHAPES.propagate, list(_SYMBOLIC_SHAPES.handlers)
    _SYMBOLIC_SHAPES.handlers = [handler]
    _SYMBOLIC_SHAPES.setLevel(logging.INFO)
    _SYMBOLIC_SHAPES.propagate = False
    try:
        yield seen
    finally:
        _SYMBOLIC_SHAPES.handlers = others
        _SYMBOLIC_SHAPES.setLevel(level)
        _SYMBOLIC_SHAPES.propagate = propagate
