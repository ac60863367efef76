"""What the loops of a model did, as a list of events in a file of its own next to the call graph.

The call graph holds the same facts under `runtime`. Scripts that keep them apart write `{"events": [...]}` with the
kinds `vision_inputs` (images and their crops), `llm_stack` (layers of the decoder) and `decode_steps`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeGuard

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import require_free, write_whole
from llm_perf_opt.core.reading import FileKind, read_foreign_json

RUNTIME_FILE = FileKind(
    name="runtime log", fix='it holds {"events": [{"kind": ...}, ...]}', max_bytes=2**24, max_elements=2**20
)
_PATTERN = "*runtime-metadata*.json"
_LARGEST = 2**31


def runtime_events(graph: CallGraph) -> list[dict[str, Json]]:
    """One event per image with its crops, one for the decoder and one for its steps, as far as the graph knows them."""
    stage, paths = next(iter(graph.stages), ("", ()))
    where = {"stage": stage, "module": paths[0]} if paths else {}
    return events_of_facts(graph.runtime, where, _stack_of(graph))


def _stack_of(graph: CallGraph) -> str | None:
    """The list that holds the decoder's layers: as long as it is deep, and no part of another stage."""
    depth = graph.runtime.get("decoder_depth")
    claimed = tuple(f"{path}." for _, paths in graph.stages for path in paths)
    stacks = (path for path, children in graph.module_children.items() if path and len(children) == depth)
    return next((path for path in stacks if not f"{path}.".startswith(claimed)), None)


def events_of_facts(facts: Mapping[str, Json], where: Mapping[str, Json], stack: str | None) -> list[dict[str, Json]]:
    """The same of facts alone: `where` says which module looks at images, `stack` which one holds the layers."""
    events: list[dict[str, Json]] = []
    if grids := facts.get("images_spatial_crop"):
        where = {**where, "images_spatial_crop": grids}
    crops, images = facts.get("crops_per_image"), facts.get("images")
    if isinstance(crops, list):
        events += [
            {"kind": "vision_inputs", **where, "num_images": len(crops), "image_index": index, "num_crops": count}
            for index, count in enumerate(crops)
        ]
    elif _is_count(images):
        events.append({"kind": "vision_inputs", **where, "num_images": images})
    if _is_count(depth := facts.get("decoder_depth")):
        module = {} if stack is None else {"module": stack}
        events.append({"kind": "llm_stack", **module, "num_layers": depth})
    if _is_count(steps := facts.get("decode_steps")) and steps:
        events.append({"kind": "decode_steps", "num_steps": steps})
    return events


def write_runtime_log(graph: CallGraph, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write `runtime_events` as a file of their own; an older call graph in the same folder is read with it."""
    return write_runtime_events(runtime_events(graph), path, overwrite=overwrite)


def write_runtime_events(events: list[dict[str, Json]], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write events as `read_runtime_log` reads them."""
    file = Path(path)
    require_free([file], force=overwrite)
    write_whole(file, [json.dumps({"events": events}, indent=2).encode()])
    return file


def read_runtime_log(path: str | Path) -> list[Mapping[str, Json]]:
    """The events of the file; rows that are no events are left out."""
    document = read_foreign_json(Path(path), RUNTIME_FILE)
    events = document.get("events") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise RUNTIME_FILE.malformed("events", "a list", events)
    return [event for event in events if isinstance(event, dict)]


def log_in_folder_of(graph_file: Path) -> tuple[list[Mapping[str, Json]], tuple[str, ...]]:
    """The events of the one runtime log in the folder of a call graph, and a note on where they come from."""
    logs = sorted(graph_file.parent.glob(_PATTERN))
    if len(logs) != 1 or logs[0] == graph_file:
        return [], (f"Runtime logs in the folder: {len(logs)}, and none is read.",) if len(logs) > 1 else ()
    try:
        events = read_runtime_log(logs[0])
    except PerfOptError as error:
        return [], (f"{logs[0].name} is left out: {error.why}.",)
    return events, (f"Runtime facts are read from {logs[0].name}.",)


def runtime_facts(events: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """The events as `runtime` of a call graph; facts that they leave open are absent."""
    facts: dict[str, Json] = {}
    crops: dict[int, int] = {}
    for event in events:
        kind = event.get("kind") or event.get("event") or event.get("type")
        if kind == "vision_inputs":
            _note_images(event, facts, crops)
        elif kind == "llm_stack" and _is_count(layers := event.get("num_layers")) and layers:
            facts["decoder_depth"] = max(layers, facts.get("decoder_depth", 0))
        elif kind == "decode_steps" and _is_count(steps := event.get("num_steps")):
            facts["decode_steps"] = steps
    if crops and sorted(crops) == list(range(len(crops))):
        facts["crops_per_image"] = [crops[index] for index in sorted(crops)]
        facts.setdefault("images", len(crops))
    return facts | ({"observed": sorted(facts)} if facts else {})


def _note_images(event: Mapping[str, Json], facts: dict[str, Json], crops: dict[int, int]) -> None:
    """Images of the first forward; the crops of each where the event tells them apart."""
    images, total = event.get("num_images"), event.get("num_crops_total")
    listed = event.get("crops_per_image", event.get("num_crops"))
    if _is_count(images):
        facts.setdefault("images", images)
    index, grids = event.get("image_index"), event.get("images_spatial_crop")
    if isinstance(grids, list) and grids and all(map(_is_grid, grids)):
        facts.setdefault("images", len(grids))
        facts.setdefault("crops_per_image", [_crops(columns, rows) for columns, rows in grids])
        facts.setdefault("images_spatial_crop", grids)
    elif _is_count(index) and _is_count(listed):
        crops.setdefault(index, listed)
    elif isinstance(listed, list) and all(map(_is_count, listed)):
        facts.setdefault("crops_per_image", listed)
    elif images == 1 and (_is_count(listed) or _is_count(total)):
        count = listed if _is_count(listed) else total
        # Columns times rows: a page that is not cut is a grid of 1 x 1.
        facts.setdefault("crops_per_image", [0 if count == total == 1 else count])


def _is_grid(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _crops(columns: int, rows: int) -> int:
    """A page that is not cut is a grid of 1 x 1."""
    return 0 if (columns, rows) == (1, 1) else columns * rows


def _is_count(value: Json) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _LARGEST
