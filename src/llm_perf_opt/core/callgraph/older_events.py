"""The events of an older call graph: enter and exit of modules in several spellings, and notes on the model's loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.reading import FileKind

_VERBS = ("event", "type", "kind", "action", "phase")
_PATHS = ("path", "module", "name", "module_name", "module_path")
_ENTER = frozenset({"enter", "start", "begin", "pre", "call", "push"})
_EXIT = frozenset({"exit", "end", "leave", "post", "return", "pop"})


class Event(NamedTuple):
    """A module was entered or left."""

    is_enter: bool
    path: str


def events_in(written: Json, kind: FileKind) -> list[Event]:
    """Enter and exit events in their order, or in that of `index` where all have one; other events are left out."""
    if not isinstance(written, list):
        raise kind.malformed("events", "a list", written)
    found: list[tuple[Json, Event]] = []
    for position, row in enumerate(written):
        verb, path, index = _parts(row)
        if verb not in _ENTER | _EXIT:
            if not isinstance(row, (dict, list)):
                raise kind.malformed(f"events[{position}]", "an event", row)
            continue
        if not isinstance(path, str):
            raise kind.malformed(f"events[{position}]", "the path of a module", row)
        found.append((index, Event(verb in _ENTER, path)))
    if len({index for index, _ in found if type(index) is int}) == len(found):
        found.sort(key=lambda pair: pair[0])
    return [event for _, event in found]


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
