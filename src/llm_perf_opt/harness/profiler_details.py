"""What torch.profiler records of an op besides its time, where it was asked to: source line, module, memory.

The profiler's tree of events nests Python calls, ops and allocations. Each Python call knows the line that it was made
from, so an op that a built-in function runs has an exact line; one that an operator such as `*` runs has its function.

The Chrome trace of a profile torch writes by itself, and does not say when it could not: `exported_trace` looks.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.harness.stage_ranges import MODULE_PREFIX, STAGE_PREFIX

_LONGEST_STACK = 64  # frames
_RUN = "llm_perf_opt/core/target.py"  # runs the model: what is outside is how the run was started

# torch writes the name of the file last, behind the list of events; a brace alone may end an event.
_END = re.compile(rb'"traceName":\s*"(?:\\.|[^"\\])*"\s*\}\s*\Z')
_TAIL = 16_384  # bytes, among which that name must be


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerOptions:
    """Options of `torch.profiler`, by its names. Each slows the profiled pass down."""

    with_stack: bool = False
    with_modules: bool = False
    profile_memory: bool = False

    def __bool__(self) -> bool:
        return self.with_stack or self.with_modules or self.profile_memory

    def profiler(self, device: str) -> profile:
        """A profiler with these options, for a run on the torch device."""
        on_cuda = torch.device(device).type == "cuda"
        return profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])],
            record_shapes=True,
            with_stack=self.with_stack,
            with_modules=self.with_modules,
            profile_memory=self.profile_memory,
        )


@dataclass(slots=True, kw_only=True)
class OpDetail:
    """Of one op that ran. What was not recorded is None; a stack begins with the innermost frame."""

    stack: tuple[str, ...] | None = None  # "sam.py:86 in forward"; without a line where it is not known
    source: str | None = None  # the innermost frame of model code
    module: str | None = None  # path of the innermost module
    self_allocated_bytes: int | None = None  # by the op itself
    allocated_bytes: int | None = None  # by it and the ops that it runs


@dataclass(frozen=True, slots=True)
class _Frame:
    """A Python function that waits for a call to return; `line` is None where the profiler does not know it."""

    file: str
    function: str
    line: int | None
    caller: _Frame | None

    @property
    def text(self) -> str:
        place = Path(self.file).name if self.line is None else f"{Path(self.file).name}:{self.line}"
        return f"{place} in {self.function}"

    def outwards(self) -> Iterator[_Frame]:
        frame: _Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


@dataclass(frozen=True, slots=True)
class _Around:
    """What an event of the tree lies in."""

    frame: _Frame | None = None
    ops: tuple[OpDetail, ...] = ()  # outermost first


@dataclass(frozen=True, slots=True)
class _Slice:
    """An op or the range of a module on one thread."""

    start_ns: int
    end_ns: int
    module: str | None  # None: an op
    detail: OpDetail | None


def op_details(profiler: profile, options: ProfilerOptions) -> dict[int, OpDetail]:
    """The details of every op by the id that the Chrome trace calls `External id`; ranges are no ops."""
    if not options:
        return {}
    details: dict[int, OpDetail] = {}
    by_thread: dict[int, list[_Slice]] = {}
    results: Any = profiler.profiler
    left = [(event, _Around()) for event in results.kineto_results.experimental_event_tree()]
    while left:
        event, around = left.pop()
        inside = _inside(event, around, options)
        if event.tag.name == "TorchOp":
            module = event.name.removeprefix(MODULE_PREFIX) if event.name.startswith(MODULE_PREFIX) else None
            detail = None if is_range(event.name) else inside.ops[-1]
            if detail is not None:
                details[event.correlation_id] = detail
            thread = by_thread.setdefault(event.start_tid, [])
            thread.append(_Slice(event.start_time_ns, event.end_time_ns, module, detail))
        left += [(child, inside) for child in event.children]
    if options.with_modules:
        for slices in by_thread.values():
            _place_in_modules(slices)
    return details


def _inside(event: Any, around: _Around, options: ProfilerOptions) -> _Around:
    """What the children of an event lie in; an allocation is counted."""
    kind, fields = event.tag.name, event.extra_fields
    if kind == "PyCall":
        waits = None if event.parent is None else _with_line(around.frame, fields.caller)
        return _Around(_Frame(*_names(fields.callsite), None, waits), around.ops)
    if kind == "PyCCall":
        return _Around(_with_line(around.frame, fields.caller), around.ops)
    if kind == "TorchOp" and not is_range(event.name):
        return _Around(around.frame, (*around.ops, _detail(around, options)))
    if kind == "Allocation":
        _count(fields.alloc_size, around.ops)
    return around


def is_range(name: str) -> bool:
    """Whether an event is a stage or a module, and no op."""
    return name.startswith((STAGE_PREFIX, MODULE_PREFIX))


def _place_in_modules(slices: list[_Slice]) -> None:
    """Each op in the innermost module range that holds its beginning.

    By time, since the tree does not nest them: a range begins in the Python call that opens it and outlives that call.
    """
    open_ranges: list[_Slice] = []
    for event_range in sorted(slices, key=lambda event_range: (event_range.start_ns, -event_range.end_ns)):
        while open_ranges and open_ranges[-1].end_ns <= event_range.start_ns:
            open_ranges.pop()
        if event_range.module is not None:
            open_ranges.append(event_range)
        elif event_range.detail is not None and open_ranges:
            event_range.detail.module = open_ranges[-1].module


def _with_line(frame: _Frame | None, caller: Any) -> _Frame:
    """The function that makes a call, now that the call says from which line."""
    above = None if frame is None else frame.caller
    return _Frame(*_names(caller), caller.line_number, above)


def _names(state: Any) -> tuple[str, str]:
    """File and function. A module imported meanwhile may have freed its frames, and the bytes of their names."""
    try:
        return state.file_name, state.function_name
    except UnicodeDecodeError:
        return "<unknown>", "?"


def _count(size: int, ops: tuple[OpDetail, ...]) -> None:
    """An allocation counts for the op that made it, and in the total of those around it; a release does not."""
    if size <= 0 or not ops or ops[-1].self_allocated_bytes is None:
        return
    ops[-1].self_allocated_bytes += size
    for op in ops:
        op.allocated_bytes = (op.allocated_bytes or 0) + size


def _detail(around: _Around, options: ProfilerOptions) -> OpDetail:
    detail = OpDetail()
    if options.profile_memory:
        detail.self_allocated_bytes = detail.allocated_bytes = 0
    if options.with_stack and around.frame is not None:
        frames = list(takewhile(lambda frame: _RUN not in frame.file, around.frame.outwards()))
        shown = [frame.text for frame in frames if not _is_ours(frame.file)]
        detail.stack = tuple(shown[:_LONGEST_STACK])
        detail.source = next((frame.text for frame in frames if _is_model_code(frame.file)), None)
    return detail


def _is_ours(file: str) -> bool:
    """Code of this package; its model folders are model code like any other."""
    return "llm_perf_opt/" in file and "llm_perf_opt/models/" not in file


def _is_model_code(file: str) -> bool:
    """Neither ours nor torch nor the standard library.

    The profiler cuts the folder that a module was found in off its name, so a library begins with its package.
    """
    package = Path(file).parts[0].removesuffix(".py") if Path(file).parts else ""
    is_torch = package == "torch" or "/torch/" in file
    return not (_is_ours(file) or is_torch or file.startswith("<") or package in sys.stdlib_module_names)


_CHROME_NAMES = {
    "source": "Source",
    "module": "Module Hierarchy",
    "self_allocated_bytes": "Self allocated bytes",
    "allocated_bytes": "Allocated bytes",
}


def annotate(document: Mapping[str, Any], details: Mapping[int, OpDetail]) -> None:
    """Write the details of each op into its event of the Chrome trace, where Perfetto shows them on a click."""
    for event in document["traceEvents"]:
        if event.get("cat") != "cpu_op":
            continue
        fields = event.setdefault("args", {})
        detail = details.get(fields.get("External id"))
        if detail is None:
            continue
        known = {name: getattr(detail, field) for field, name in _CHROME_NAMES.items()}
        fields.update({name: value for name, value in known.items() if value is not None})
        if detail.stack is not None:
            fields["Call stack"] = ";".join(detail.stack)


@contextmanager
def exported_trace(profiler: profile, folder: Path | None) -> Iterator[Path]:
    """A whole temporary file in `folder`, to be read or to be moved to its name. Default: in the temporary folder."""
    with scratch_folder(folder) as scratch:
        file = scratch / "chrome-trace.json"
        profiler.export_chrome_trace(str(file))
        if not _is_whole(file):
            raise PerfOptError(
                f"Cannot write the Chrome trace to {scratch.parent}.",
                why="torch's profiler left an incomplete file, as it does when the disk is full",
                fix="free some disk space there, or choose another folder",
            )
        yield file


def _is_whole(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        opened.seek(-min(_TAIL, file.stat().st_size), os.SEEK_END)
        return _END.search(opened.read()) is not None
