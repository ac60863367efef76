"""Call graphs from before the file had a version: every known dialect becomes a document of the present version.

Scripts with hooks or TorchLens wrote them. They name some keys otherwise, write edges, events and children in several
forms, and often count something else on an edge than calls. What they say is kept, what they do not say stays unknown,
and `notes` list what was read how. The result goes through the reader of present files, so it is sound or refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from llm_perf_opt.core.callgraph.graph import SCHEMA_VERSION
from llm_perf_opt.core.callgraph.older_edges import Observed, OlderEdges, calls_by_edge, count_in, observed
from llm_perf_opt.core.callgraph.records import Json, json_safe
from llm_perf_opt.core.callgraph.runtime_log import runtime_facts
from llm_perf_opt.core.reading import FileKind, parse_foreign_json

OLDER_FILE = FileKind(
    name="older call-graph file",
    fix="check the name, or trace the model again with this version",
    max_bytes=2**27,
    max_elements=2**23,
)
UNKNOWN = "?"
MODEL = "unnamed model"
PHASE = "forward"  # an older file does not say which phase it holds

_RUN_KEYS = ("call_counts", "edges", "events")  # an older file has one of these at least
_PRESENT_KEYS = (
    *("schema_version", "content_sha256", "tool_version", "library_versions", "oracle_answers", "root_calls"),
    *("paths", "tensor_metas", "part_kinds", "op_kinds", "ops", "calls", "storages"),
)
_TYPES = ("module_types", "module_classes", "module_class_names")
_RUNTIME = ("runtime", "runtime_metadata", "runtime_events", "runtime_log")
_READ = {
    *_RUN_KEYS,
    *_TYPES,
    *_RUNTIME,
    *("op_call_counts", "module_children", "constructor_params", "input_metadata", "output_metadata"),
    *("model", "phase", "tracer"),
}
_PASS = re.compile(r":\d+$")  # TorchLens: the second call of a module is `layers.0:2`
_MAX_PATH, _MAX_STEPS = 4096, 128
_CLASS = re.compile(r"<class '([^']+)'>")


def is_older(raw: bytes) -> bool:
    """Whether the text is an object without a version that has a key of an older file and none of a present one."""
    import msgspec

    try:
        keys: Collection[str] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])  # values are skipped
    except (msgspec.DecodeError, ValueError, RecursionError):
        keys = _keys_with_nan(raw)
    return any(key in keys for key in _RUN_KEYS) and not any(key in keys for key in _PRESENT_KEYS)


def _keys_with_nan(raw: bytes) -> Collection[str]:
    """The keys of a text that only Python's own reader takes, since it holds NaN; none where that does not either."""
    try:
        document = json.loads(raw) if b"NaN" in raw or b"Infinity" in raw else None
    except (ValueError, RecursionError):
        return ()
    return document.keys() if isinstance(document, dict) else ()


def present_document(raw: bytes, logged: Iterable[Mapping[str, Json]] = (), notes: Iterable[str] = ()) -> Json:
    """The document as this version would write it; `logged` are runtime events from a file of their own."""
    if len(raw) > OLDER_FILE.max_bytes:
        raise OLDER_FILE.refusal("is too large", f"it has more than {OLDER_FILE.max_bytes:,} bytes")
    return _Older(parse_foreign_json(raw, OLDER_FILE), tuple(logged), tuple(notes)).document()


class _Older:
    """One older document, read key by key; `_notes` grow with what had to be decided."""

    def __init__(self, document: Json, logged: tuple[Mapping[str, Json], ...], notes: tuple[str, ...]) -> None:
        self._document = document
        self._logged = logged
        self._notes = [f"Read from a call-graph file without schema_version ({self._dialect()}).", *notes]

    def document(self) -> Json:
        """Every key of the present file that this one has something for."""
        events = events_in(self._document.get("events", []), OLDER_FILE)
        events = [event._replace(path=clean(event.path)) for event in events]
        calls = self._calls()
        edges = OlderEdges(self._document.get("edges", {}), calls, clean, OLDER_FILE)
        counted = self._counted(calls, edges, events)
        types = self._types(counted)
        document = {
            "schema_version": SCHEMA_VERSION,
            "model": self._text("model", MODEL),
            "phase": self._text("phase", PHASE),
            "tracer": self._text("tracer", ""),
            "runtime": self._runtime(),
            "op_call_counts": self._own_ops(counted["call_counts"]),
            "module_types": types,
            "module_children": _children_of(types) if types else {},
            "constructor_params": self._params(types),
            **counted,
            **self._tensors(counted["call_counts"]),
        }
        self._note_unknown(document)
        return document | {"notes": self._notes}

    def _dialect(self) -> str:
        return ", ".join(str(key)[:40] for key in self._document if key in _READ)

    # ---- what was called, and by whom

    def _calls(self) -> dict[str, int]:
        calls: Counter[str] = Counter()
        for path, count in _object(self._document.get("call_counts", {}), "call_counts").items():
            calls[clean(path)] += count_in(count, f"call_counts[{path[:80]!r}]", OLDER_FILE)
        return {path: count for path, count in calls.items() if count}

    def _counted(self, calls: dict[str, int], edges: OlderEdges, events: list[Event]) -> dict[str, Json]:
        """Calls, edges and roots that agree with each other, and the events where they agree too."""
        written = edges.pairs
        if events and not is_sound(events):
            self._notes.append("Its events do not nest, and are left out.")
            events = []
        if events and not calls:
            calls = dict(Counter(event.path for event in events if event.is_enter))
        if events and not written:
            written = Counter(_pairs(events))
        if not calls:
            calls = edges.calls_by_edges()
            self._notes.append(
                "It has no call_counts: calls are taken from the edges, and a module that nothing calls counts once."
            )
        agreed = calls_by_edge(calls, written)
        self._notes += agreed.notes
        if events and not _events_agree(events, calls, agreed.edges):
            self._notes.append("Its events show other calls than its counts, and are left out.")
            events = []
        incoming: Counter[str] = Counter()
        for (_, child), count in agreed.edges.items():
            incoming[child] += count
        roots = {path: count - incoming[path] for path, count in calls.items() if count > incoming[path]}
        return {
            "call_counts": calls,
            "edges": {f"{parent}->{child}": count for (parent, child), count in agreed.edges.items()},
            "root_calls": roots,
            "events": [["enter" if event.is_enter else "exit", event.path] for event in events],
        }

    def _own_ops(self, calls: Mapping[str, int]) -> dict[str, int]:
        ops: Counter[str] = Counter()
        for path, count in _object(self._document.get("op_call_counts", {}), "op_call_counts").items():
            ops[clean(path)] += count_in(count, f"op_call_counts[{path[:80]!r}]", OLDER_FILE)
        outside = [path for path in ops if path not in calls]
        if outside:
            self._notes.append(f"Ops of {len(outside)} modules that were not called are left out.")
        return {path: count for path, count in ops.items() if path in calls}

    # ---- what there is

    def _types(self, counted: Mapping[str, Json]) -> dict[str, str]:
        """Class by path for every module, `?` where the file does not say; empty where it knows no class at all."""
        known: dict[str, str] = {}
        for key in _TYPES:
            for path, value in _object(self._document.get(key, {}), key).items():
                if (name := class_in(value)) is not None:
                    known.setdefault(clean(path), name)
        paths = {*counted["call_counts"], *known}
        listed = _object(self._document.get("module_children", {}), "module_children")
        for path, class_name in _declared(listed, paths):
            if class_name is not None or path not in known:
                known[path] = class_name or known.get(path, UNKNOWN)
        if not any(name != UNKNOWN for name in known.values()):
            return {}
        types: dict[str, str] = {}
        for path in (*known, *counted["call_counts"]):
            for above in _with_parents(path):
                types.setdefault(above, known.get(above, UNKNOWN))
        return types

    def _params(self, types: Mapping[str, str]) -> dict[str, Json]:
        params_of_path: dict[str, Json] = {}
        for path, params in _object(self._document.get("constructor_params", {}), "constructor_params").items():
            if isinstance(params, dict) and (clean(path) in types or not types):
                try:
                    params_of_path[clean(path)] = json_safe(params)
                except ValueError as error:
                    raise OLDER_FILE.malformed(f"constructor_params[{path[:80]!r}]", str(error), params) from None
        return params_of_path

    # ---- tensors and the model's loops

    def _tensors(self, calls: Mapping[str, int]) -> dict[str, Json]:
        """Input and output observations, each module's with at most as many calls as it had."""
        tally = Observed()
        metadata: dict[str, Json] = {}
        for key in ("input_metadata", "output_metadata"):
            by_path: dict[str, list[Json]] = {}
            for path, value in _object(self._document.get(key, {}), key).items():
                by_path.setdefault(clean(path), []).append(value)
            seen = {path: observed(values, calls[path], tally) for path, values in by_path.items() if path in calls}
            metadata[key] = {path: rows for path, rows in seen.items() if rows}
        self._notes += tally.notes()
        return metadata

    def _runtime(self) -> dict[str, Json]:
        facts: dict[str, Json] = {}
        events = [*self._logged, *runtime_events_in(self._document.get("events", []))]
        for key in _RUNTIME:
            value = self._document.get(key)
            if isinstance(value, dict) and not isinstance(value.get("events"), list):
                facts |= value
            else:
                events += runtime_events_in(value["events"] if isinstance(value, dict) else value or [])
        try:
            safe: dict[str, Json] = json_safe({**runtime_facts(events), **facts})
        except ValueError as error:
            raise OLDER_FILE.malformed("runtime", str(error), events) from None
        return safe

    def _text(self, key: str, default: str) -> str:
        value = self._document.get(key)
        return value[:200] if isinstance(value, str) and value else default

    def _note_unknown(self, document: Mapping[str, Json]) -> None:
        unread = [str(key)[:40] for key in self._document if key not in _READ]
        if unread:
            self._notes.append(f"Keys that are not read: {', '.join(unread[:8])}{', ...' if len(unread) > 8 else ''}.")
        missing = [
            name
            for name, key in (
                ("classes", "module_types"),
                ("tensor shapes", "input_metadata"),
                ("constructor parameters", "constructor_params"),
            )
            if not document[key]
        ]
        self._notes.append(
            f"Unknown, since the file has none: {', '.join([*missing, 'weights, ops and their costs'])}."
        )


def clean(path: str) -> str:
    """The path without TorchLens's number of the call; its name `self` for the root is the empty path."""
    if len(path) > _MAX_PATH or path.count(".") > _MAX_STEPS:
        raise OLDER_FILE.malformed(f"{path[:80]!r}...", f"a path of at most {_MAX_STEPS} names", path)
    path = _PASS.sub("", path)
    return "" if path == "self" else path.removeprefix("self.")


def class_in(value: Json) -> str | None:
    """`DeepseekV2MLP` of `<class 'transformers_modules.x.DeepseekV2MLP'>`, of its dotted name, or of an object."""
    if isinstance(value, dict):
        value = next((value[name] for name in ("class", "class_name", "type", "name") if name in value), None)
    if not isinstance(value, str) or not value:
        return None
    wrapped = _CLASS.fullmatch(value)
    return (wrapped[1] if wrapped else value).rpartition(".")[2][:200] or None


def _object(value: Json, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OLDER_FILE.malformed(where, "an object", value)
    return value


def _declared(children: Mapping[str, Json], known: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Path and class, if told, of every child: by name or by path, in lists, in maps to a class, nested or not."""
    known = set(known)
    waiting = [(clean(parent), listed) for parent, listed in children.items()][::-1]
    while waiting:
        parent, listed = waiting.pop()
        if not isinstance(listed, (dict, list)):
            raise OLDER_FILE.malformed(f"module_children[{parent[:80]!r}]", "children", listed)
        for name, inside in listed.items() if isinstance(listed, dict) else ((name, None) for name in listed):
            if not isinstance(name, str):
                raise OLDER_FILE.malformed(f"module_children[{parent[:80]!r}]", "names of children", name)
            path = _full_path(parent, clean(name), known)
            if isinstance(inside, (dict, list)):
                yield path, class_in(inside) if isinstance(inside, dict) and "class" in inside else None
                below = inside.get("children", inside) if isinstance(inside, dict) else inside
                waiting.append((path, below))
            else:
                yield path, class_in(inside)


def _full_path(parent: str, name: str, known: set[str]) -> str:
    if not parent or name.startswith(f"{parent}."):
        return name
    joined = f"{parent}.{name}"
    return name if name in known and joined not in known else joined


def _with_parents(path: str) -> list[str]:
    """The path and all that its name says lies around it, outermost first, the root among them."""
    steps = path.split(".") if path else []
    return ["", *(".".join(steps[: depth + 1]) for depth in range(len(steps)))]


def _children_of(types: Mapping[str, str]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {path: [] for path in types}
    for path in types:
        if path:
            children[path.rpartition(".")[0]].append(path)
    return children


def _pairs(events: Iterable[Event]) -> Iterator[tuple[str, str]]:
    open_paths: list[str] = []
    for event in events:
        if event.is_enter:
            if open_paths:
                yield open_paths[-1], event.path
            open_paths.append(event.path)
        else:
            open_paths.pop()


def _events_agree(events: list[Event], calls: Mapping[str, int], edges: Mapping[tuple[str, str], int]) -> bool:
    return Counter(event.path for event in events if event.is_enter) == calls and Counter(_pairs(events)) == edges


_VERBS = ("event", "type", "kind", "action", "phase")
_PATHS = ("path", "module", "name", "module_name", "module_path")
_ENTER = frozenset({"enter", "start", "begin", "pre", "call", "push"})
_EXIT = frozenset({"exit", "end", "leave", "post", "return", "pop"})


class Event(NamedTuple):
    """A module was entered or left."""

    is_enter: bool
    path: str


def events_in(written: Json, kind: FileKind) -> list[Event]:
    """Enter and exit events in their order, or by `index` where all have one; other events are left out."""
    if not isinstance(written, list):
        raise kind.malformed("events", "a list", written)
    numbered: list[tuple[Json, Event]] = []
    for position, row in enumerate(written):
        verb, path, index = _parts(row)
        if verb not in _ENTER | _EXIT:
            if not isinstance(row, (dict, list)):
                raise kind.malformed(f"events[{position}]", "an event", row)
            continue
        if not isinstance(path, str):
            raise kind.malformed(f"events[{position}]", "the path of a module", row)
        numbered.append((index, Event(verb in _ENTER, path)))
    if len({index for index, _ in numbered if type(index) is int}) == len(numbered):
        numbered.sort(key=lambda pair: pair[0])
    return [event for _, event in numbered]


def runtime_events_in(written: Json) -> list[Mapping[str, Json]]:
    """The events that are no enter and no exit of a module: what the loops of the model did."""
    if not isinstance(written, list):
        return []
    return [row for row in written if isinstance(row, dict) and _parts(row)[0] not in _ENTER | _EXIT]


def is_sound(events: Iterable[Event]) -> bool:
    """Whether each exit leaves the module entered last, and every one is left."""
    open_paths: list[str] = []
    for event in events:
        if event.is_enter:
            open_paths.append(event.path)
        elif not open_paths or open_paths.pop() != event.path:
            return False
    return not open_paths


def _parts(row: Json) -> tuple[str | None, Json, Json]:
    """Verb in lower case, path and index, as far as there are any."""
    if isinstance(row, list):
        verb, path = (*row, None, None)[:2]
        return (verb.lower() if isinstance(verb, str) else None), path, None
    if not isinstance(row, dict):
        return None, None, None
    verb = next((row[name] for name in _VERBS if isinstance(row.get(name), str)), None)
    path = next((row[name] for name in _PATHS if name in row), None)
    return None if verb is None else verb.lower(), path, row.get("index")
