"""Tensor metadata of older call graphs: one observation or many, bare tensors or shapes, with calls or without."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.records import Json

UNKNOWN = "?"
_SHAPE = re.compile(r"(?:torch\.Size)?\(?\[?((?:\s*\d{1,18}\s*,?)*)\]?\)?")
_HOLDERS = ("tensors", "inputs", "outputs", "args", "kwargs")
_CALLS = ("calls", "count", "num_calls")
_MAX_DEPTH = 16
_LARGEST = 2**63 - 1

Tensor = tuple[tuple[int, ...], str, str]  # shape, dtype, device


@dataclass(slots=True)
class Observed:
    """What was met while reading, for the notes of the graph."""

    no_tensors: int = 0  # values that are no tensors
    unread: int = 0  # modules whose observations make no sense
    some_calls: int = 0  # modules of which not every call was observed
    divided: int = 0  # modules whose every call was observed several times

    def notes(self) -> Iterator[str]:
        """One sentence for each that is not zero."""
        if self.no_tensors:
            yield f"Arguments that are no tensors: {self.no_tensors}, left out."
        if self.some_calls:
            yield f"Tensors of some calls only, for {self.some_calls} inputs or outputs of modules."
        if self.divided:
            yield f"Observed several times per call, and counted once: {self.divided} inputs or outputs of modules."
        if self.unread:
            yield f"Observations that do not fit the calls: {self.unread} inputs or outputs of modules, left out."


def observed(written: Sequence[Json], calls: int, told: Observed) -> list[Json]:
    """The distinct observations of one module in the present form, which cover at most its `calls`."""
    counts: Counter[tuple[Tensor, ...]] = Counter()
    for value in written:
        for tensors, count in _observations(value, told):
            counts[tensors] += count
    covered = counts.total()
    if covered > calls:
        times = covered // calls
        if covered % calls or any(count % times for count in counts.values()):
            told.unread += 1
            return []
        told.divided += 1
        counts = Counter({tensors: count // times for tensors, count in counts.items()})
    elif 0 < covered < calls:
        told.some_calls += 1
    return [
        {
            "tensors": [{"shape": list(shape), "dtype": dtype, "device": device} for shape, dtype, device in tensors],
            "calls": count,
        }
        for tensors, count in counts.items()
    ]


def _observations(value: Json, told: Observed) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """One observation, or a list of them; a list of tensors or of shapes is one observation."""
    if isinstance(value, list) and any(_is_observation(item) for item in value):
        for item in value:
            yield _observation(item, told)
    else:
        yield _observation(value, told)


def _is_observation(value: Json) -> bool:
    if isinstance(value, dict):
        return "shape" not in value and any(name in value for name in _HOLDERS)
    return isinstance(value, list) and not _is_shape(value)


def _observation(value: Json, told: Observed) -> tuple[tuple[Tensor, ...], int]:
    count: Json = next((value[name] for name in _CALLS if name in value), 1) if isinstance(value, dict) else 1
    is_count = type(count) is int and 0 < count <= _LARGEST
    return tuple(_tensors(value, told, 0)), count if is_count else 1


def _tensors(value: Json, told: Observed, depth: int) -> Iterator[Tensor]:
    """Every tensor in there, in order, however it is nested."""
    if isinstance(value, dict) and (shape := _shape_of(value.get("shape"))) is not None:
        yield shape, _name(value.get("dtype")), _name(value.get("device"))
    elif _is_shape(value):
        yield tuple(value), UNKNOWN, UNKNOWN
    elif depth < _MAX_DEPTH and isinstance(value, (dict, list)):
        inside = list(_inside(value)) if isinstance(value, dict) else value
        if isinstance(value, dict) and not inside:
            told.no_tensors += 1
        for item in inside:
            yield from _tensors(item, told, depth + 1)
    elif value is not None:
        told.no_tensors += 1


def _inside(value: Mapping[str, Json]) -> Iterator[Json]:
    """What an observation holds; of an object without one of the usual keys every value that may hold tensors."""
    if not any(name in value for name in _HOLDERS):
        yield from (item for item in value.values() if isinstance(item, (dict, list)))
        return
    for name, item in value.items():
        if name in _HOLDERS:
            yield from item.values() if isinstance(item, dict) and "shape" not in item else [item]
        elif name.startswith("non_tensor"):
            yield from ("non_tensor" for _ in range(len(item) if isinstance(item, list) else 1))


def _is_shape(value: Json) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(size) is int and 0 <= size <= _LARGEST for size in value)
    )


def _shape_of(value: Json) -> tuple[int, ...] | None:
    """`[1, 4]`, `"[1, 4]"`, `"(1, 4)"` or `"torch.Size([1, 4])"`; a scalar has no sizes."""
    if value == [] or _is_shape(value):
        return tuple(value)
    if isinstance(value, str) and len(value) < 1000 and (match := _SHAPE.fullmatch(value.strip())):
        return tuple(int(size) for size in re.findall(r"\d+", match[1]))
    return None


def _name(value: Json) -> str:
    """`float16` of `torch.float16`; what is not told is `?`."""
    return value.removeprefix("torch.")[:80] if isinstance(value, str) and value else UNKNOWN
