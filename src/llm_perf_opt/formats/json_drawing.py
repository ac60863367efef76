"""The grouped view as JSON, for programs: every box of every depth, raw numbers, nothing shortened.

`graph_view.schema.json` beside this file is the contract. Boxes form a flat list, outer before inner, each with the id
of the box around it, so that `jq '.boxes[] | select(.class_name == "Linear")'` works at any depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from llm_perf_opt.core.report import Box, GraphView, TensorGroup
from llm_perf_opt.formats.view_metric import metric_named

SCHEMA_VERSION = 1


class JsonDrawing:
    """Holds every figure, so the metric changes nothing in it."""

    suffix = ".view.json"

    def __init__(self, metric: str = "flops") -> None:
        metric_named(metric)

    def render(self, view: GraphView) -> str:
        """ASCII, so that no name can upset a reader; one box or arrow per line."""
        pairs = [pair for root in view.roots for pair in _with_parents(root, None)]
        head = {
            "schema_version": SCHEMA_VERSION,
            "title": view.title,
            "caption": list(view.caption),
            "stages": list(view.stages),
            "totals": asdict(view.totals),
        }
        lines = [f"{_text(key)}: {_text(value)}" for key, value in head.items()]
        lines.append(_list("boxes", [_text(_box_object(box, parent)) for box, parent in pairs]))
        arrows = [{"inside": box.id, **asdict(arrow)} for box, _ in pairs for arrow in box.arrows]
        lines.append(_list("arrows", [_text(arrow) for arrow in arrows]))
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _with_parents(box: Box, parent: str | None) -> Iterator[tuple[Box, str | None]]:
    yield box, parent
    for child in box.children:
        yield from _with_parents(child, box.id)


def _box_object(box: Box, parent: str | None) -> dict[str, object]:
    return {
        "id": box.id,
        "parent": parent,
        "label": box.label,
        "class_name": box.class_name,
        "path": box.path,
        "stage": box.stage,
        "is_open": box.is_open,
        "is_split": box.is_split,
        "instances": box.instances,
        "calls": box.calls,
        "calls_per_instance": list(box.calls_per_instance),
        "loops": [{**asdict(loop), "text": loop.text} for loop in box.loops],
        "figures": asdict(box.figures),
        "own": asdict(box.own),
        "constructor_params": dict(box.constructor_params),
        "inputs": _groups(box.inputs),
        "outputs": _groups(box.outputs),
        "members": list(box.members),
        "member_calls": list(box.member_calls),
    }


def _groups(groups: tuple[TensorGroup, ...]) -> list[dict[str, object]]:
    return [{"tensors": list(group.tensors), "calls": group.calls} for group in groups]


def _list(key: str, items: list[str]) -> str:
    return f"{_text(key)}: [\n" + ",\n".join(items) + "\n]"


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False)
