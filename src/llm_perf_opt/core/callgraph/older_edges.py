"""The edges of an older call graph: the forms they are written in, and how many calls each of them stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.aggregates import ARROW, split_edge
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.reading import FileKind

Pair = tuple[str, str]  # caller, called
_ARROWS = (ARROW, "\u2192")
_PARENTS = ("parent", "source", "src", "from", "caller")
_CHILDREN = ("child", "target", "dst", "to", "callee")
COUNT_NAMES = ("count", "calls", "num_calls", "num_passes", "weight", "n")
_LARGEST = 2**63 - 1


class OlderEdges:
    """Pairs with counts, from any of these forms.

    `{"a->b": n}`, `{"a->b": {"count": n}}`, `{"a": {"b": n}}`, `[["a", "b", n]]`, `[{"parent", "child", "count"}]`.
    """

    def __init__(self, written: Json, calls: Mapping[str, int], clean: Callable[[str], str], kind: FileKind) -> None:
        self._calls = calls
        self._kind = kind
        self.pairs: Counter[Pair] = Counter()
        for parent, child, count in self._rows(written):
            self.pairs[clean(parent), clean(child)] += count_in(count, f"edges[{f'{parent}->{child}'[:80]!r}]", kind)

    def calls_by_edges(self) -> dict[str, int]:
        """Calls of each module as its edges add up; a module that nothing calls was called at least once."""
        calls: Counter[str] = Counter()
        for (parent, child), count in self.pairs.items():
            calls[parent] += 0
            calls[child] += count
        return {path: count or 1 for path, count in calls.items()}

    def _rows(self, written: Json) -> Iterator[tuple[str, str, Json]]:
        if isinstance(written, dict):
            for key, value in written.items():
                yield from self._entries(key, value)
        elif isinstance(written, list):
            for row in written:
                yield self._row(row)
        else:
            raise self._kind.malformed("edges", "an object or a list", written)

    def _entries(self, key: str, value: Json) -> Iterator[tuple[str, str, Json]]:
        """One edge, or a caller with an object or a list of what it called."""
        if any(arrow in key for arrow in _ARROWS):
            yield *self._sides(key), value
        elif isinstance(value, dict):
            yield from ((key, child, count) for child, count in value.items())
        elif isinstance(value, list) and all(isinstance(child, str) for child in value):
            yield from ((key, child, 1) for child in value)
        else:
            raise self._kind.malformed("edges", '"parent->child"', key)

    def _row(self, row: Json) -> tuple[str, str, Json]:
        if isinstance(row, str):
            return (*self._sides(row), 1)
        if isinstance(row, dict):
            parent, child = _first_of(row, _PARENTS, None), _first_of(row, _CHILDREN, None)
            count = _first_of(row, COUNT_NAMES, 1)
        elif isinstance(row, list) and len(row) in (2, 3):
            parent, child, count = (*row, 1)[:3]
        else:
            raise self._kind.malformed("edges", "parent, child and count", row)
        if not isinstance(child, str) or not isinstance(parent, str | None):
            raise self._kind.malformed("edges", "the names of parent and child", row)
        return parent or "", child, count

    def _sides(self, key: str) -> Pair:
        arrow = next((arrow for arrow in _ARROWS if arrow in key), None)
        sides = None if arrow is None else split_edge(key.replace(arrow, ARROW), self._calls)
        if sides is None:
            raise self._kind.malformed("edges", '"parent->child"', key)
        return (sides[0].strip(), sides[1].strip())


def count_in(value: Json, where: str, kind: FileKind) -> int:
    """A count, as a number or as an object that names it."""
    if isinstance(value, dict):
        value = _first_of(value, COUNT_NAMES, value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise kind.malformed(where, "a count", value)
    return value


def _first_of(row: Mapping[str, Json], names: Iterable[str], default: Json) -> Json:
    return next((row[name] for name in names if name in row), default)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedEdges:
    """Edges with their calls, and notes on what had to be decided to get them."""

    edges: Mapping[Pair, int]
    notes: tuple[str, ...]


def calls_by_edge(calls: Mapping[str, int], written: Mapping[Pair, int]) -> AgreedEdges:
    """Edges between called modules that add up to the calls.

    A module that is called more often than its edges say was also called from outside. If edges say more than the
    calls, they count something else, as TorchLens scripts count the ops below an edge: then only who calls whom is
    taken from them. A module that no edge reaches was called by the nearest called module around its name.
    """
    notes: list[str] = []
    inside = {pair: count for pair, count in written.items() if pair[0] in calls and pair[1] in calls and count}
    if strangers := len([pair for pair in written if pair not in inside and written[pair]]):
        notes.append(f"Edges of modules that were not called: {strangers}, left out.")
    incoming: Counter[str] = Counter()
    for (_, child), count in inside.items():
        incoming[child] += count
    beyond = [path for path, count in incoming.items() if count > calls[path]]
    if beyond:
        notes.append(
            f"Edges into {len(beyond)} modules count more than the calls (probably ops): "
            "who calls whom is taken from them, how often from call_counts."
        )
        inside = _shared_out(calls, inside, notes)
    if beyond or not written:
        named = _by_name(calls, {child for _, child in inside})
        if named:
            notes.append(f"Callers of {len(named)} modules are taken from their names: no edge leads there.")
        inside |= named
    return AgreedEdges(edges=inside, notes=tuple(notes))


def _shared_out(calls: Mapping[str, int], written: Mapping[Pair, int], notes: list[str]) -> dict[Pair, int]:
    """The calls of each module over its callers, in the ratio of what the edges count; each gets one at least."""
    callers: dict[str, list[str]] = {}
    for parent, child in written:
        callers.setdefault(child, []).append(parent)
    edges: dict[Pair, int] = {}
    shared = 0
    for child, parents in callers.items():
        left, weight = calls[child], sum(written[parent, child] for parent in parents)
        shared += len(parents) > 1
        for place, parent in enumerate(parents):
            behind = len(parents) - place - 1
            share = left if not behind else max(1, min(left - behind, calls[child] * written[parent, child] // weight))
            if share > 0:
                edges[parent, child] = share
                left -= share
    if shared:
        notes.append(f"Calls of {shared} modules with several callers are divided in the ratio of their edges.")
    return edges


def _by_name(calls: Mapping[str, int], reached: set[str]) -> dict[Pair, int]:
    edges: dict[Pair, int] = {}
    for path, count in calls.items():
        above = path
        while path not in reached and above:
            above = above.rpartition(".")[0]
            if above in calls:
                edges[above, path] = count
                break
    return edges


UNKNOWN = "?"
_SHAPE = re.compile(r"(?:torch\.Size)?\(?\[?((?:\s*\d{1,18}\s*,?)*)\]?\)?")
_HOLDERS = ("tensors", "inputs", "outputs", "args", "kwargs")
_CALLS = ("calls", "count", "num_calls")
_MAX_DEPTH = 16

Tensor = tuple[tuple[int, ...], str, str]  # shape, dtype, device


@dataclass(slots=True)
class Observed:
    """What was met while reading, for the notes of the graph."""

    no_tensors: int = 0  # values that are no tensors
    unread: int = 0  # modules with observations that make no sense
    some_calls: int = 0  # modules of which not every call was observed
    divided: int = 0  # modules with several observations of each call

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


def observed(written: Sequence[Json], calls: int, tally: Observed) -> list[Json]:
    """The distinct observations of one module in the present form, which cover at most its `calls`."""
    counts: Counter[tuple[Tensor, ...]] = Counter()
    for value in written:
        for tensors, count in _observations(value, tally):
            counts[tensors] += count
    covered = counts.total()
    if covered > calls:
        times = covered // calls
        if covered % calls or any(count % times for count in counts.values()):
            tally.unread += 1
            return []
        tally.divided += 1
        counts = Counter({tensors: count // times for tensors, count in counts.items()})
    elif 0 < covered < calls:
        tally.some_calls += 1
    return [
        {
            "tensors": [{"shape": list(shape), "dtype": dtype, "device": device} for shape, dtype, device in tensors],
            "calls": count,
        }
        for tensors, count in counts.items()
    ]


def _observations(value: Json, tally: Observed) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """One observation, or a list of them; a list of tensors or of shapes is one observation."""
    if isinstance(value, list) and any(_is_observation(item) for item in value):
        for item in value:
            yield _observation(item, tally)
    else:
        yield _observation(value, tally)


def _is_observation(value: Json) -> bool:
    if isinstance(value, dict):
        return "shape" not in value and any(name in value for name in _HOLDERS)
    return isinstance(value, list) and not _is_shape(value)


def _observation(value: Json, tally: Observed) -> tuple[tuple[Tensor, ...], int]:
    count: Json = next((value[name] for name in _CALLS if name in value), 1) if isinstance(value, dict) else 1
    is_count = type(count) is int and 0 < count <= _LARGEST
    return tuple(_tensors(value, tally, 0)), count if is_count else 1


def _tensors(value: Json, tally: Observed, depth: int) -> Iterator[Tensor]:
    """Every tensor in there, in order, however it is nested."""
    if isinstance(value, dict) and (shape := _shape_of(value.get("shape"))) is not None:
        yield shape, _name(value.get("dtype")), _name(value.get("device"))
    elif _is_shape(value):
        yield tuple(value), UNKNOWN, UNKNOWN
    elif depth < _MAX_DEPTH and isinstance(value, (dict, list)):
        inside = list(_inside(value)) if isinstance(value, dict) else value
        if isinstance(value, dict) and not inside:
            tally.no_tensors += 1
        for item in inside:
            yield from _tensors(item, tally, depth + 1)
    elif value is not None:
        tally.no_tensors += 1


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
