"""The grouped view as a JSON file, object by object. `graph_view.schema.json` is generated from these records.

Boxes form a flat list, outer before inner, each with the id of the box around it, so that
`jq '.boxes[] | select(.class_name == "Linear")'` works at any depth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from llm_perf_opt.core.reading import FileKind, read_json

VIEW_VERSION: Literal[1] = 1
VIEW_FILE = FileKind(
    name="file of a grouped view",
    fix="draw it again: llm-perf-opt graph TRACE --format json",
    schema_version=VIEW_VERSION,
    is_sealed=True,
)

Count = Annotated[int, Meta(ge=0)]
Texts = tuple[str, ...]


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class FiguresRow(_Object, frozen=True, kw_only=True):
    """What a box costs; null is unknown."""

    flops: Count | None
    macs: Count | None
    bytes_moved: Count | None
    parameters: Count | None
    activation_bytes: Count | None
    unpriced_ops: Count | None


class LoopRow(_Object, frozen=True, kw_only=True):
    """What repeats within one call of the caller."""

    kind: Literal["for", "parfor"]
    count: Count
    least: Annotated[
        Count | None,
        Meta(description="The smallest count, where the calls of the caller differ; count is then the largest."),
    ]
    of: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="How many there are, where the run did not touch all of them."),
    ]
    over: Annotated[Literal["instances", "calls"], Meta(description="Instances of a family, or calls of one instance.")]
    text: str


class TensorsRow(_Object, frozen=True, kw_only=True):
    """One distinct set of tensors, and in how many calls."""

    tensors: Texts
    calls: Count


class CollectivesRow(_Object, frozen=True, kw_only=True):
    """Equal collectives of a box, all its calls together."""

    kind: str
    payload_bytes: Annotated[Count, Meta(description="Of one.")]
    ranks: Count
    count: Count


class BoxRow(_Object, frozen=True, kw_only=True):
    """A module instance or a family of instances."""

    id: str
    parent: Annotated[str | None, Meta(description="The id of the box around it.")]
    label: Annotated[str, Meta(description="Class @ path")]
    class_name: str
    path: str
    stage: str
    is_open: Annotated[bool, Meta(description="Whether the default picture shows what is inside.")]
    is_split: Annotated[
        bool,
        Meta(description="The boxes inside are the members of this one again, told apart by cost; they add no calls."),
    ]
    is_left_out: Annotated[
        bool, Meta(description="Stands for all modules of one stage that a filter took out of the box around it.")
    ]
    instances: Count
    calls: Annotated[Count, Meta(description="Over all instances.")]
    calls_per_instance: Annotated[tuple[Count, ...], Meta(description="The distinct values, ascending.")]
    loops: tuple[LoopRow, ...]
    figures: Annotated[FiguresRow, Meta(description="With everything inside.")]
    own: Annotated[FiguresRow, Meta(description="Of the ops that run directly in it.")]
    constructor_params: Annotated[dict[str, Any], Meta(description="Those that all instances share.")]
    layer_context: Annotated[
        dict[str, Any],
        Meta(description="Of an expert and what is in it: num_experts and top_k of its layer; derived, not its own."),
    ]
    inputs: tuple[TensorsRow, ...]
    outputs: tuple[TensorsRow, ...]
    members: Annotated[Texts, Meta(description="Paths of every instance.")]
    member_calls: Annotated[
        tuple[Count, ...],
        Meta(description="Calls of each member in this box: a shared module also stands in others."),
    ]
    collectives: (
        Annotated[tuple[CollectivesRow, ...], Meta(description="With everything inside; absent where there are none.")]
        | UnsetType
    ) = UNSET
    own_collectives: (
        Annotated[
            tuple[CollectivesRow, ...],
            Meta(description="Those that it asks for itself; absent where there are none inside either."),
        ]
        | UnsetType
    ) = UNSET


class ArrowRow(_Object, frozen=True, kw_only=True):
    """A tensor made in one box and used in its sibling."""

    inside: Annotated[str, Meta(description="The id of the box around both.")]
    source: str
    target: str
    calls: Count


class ViewFile(_Object, frozen=True, kw_only=True):
    """A run folded into boxes.

    Figures are totals over all instances and all calls of a box, in base units; null is unknown. With unpriced_ops
    above zero flops, macs and bytes_moved are lower bounds.
    """

    schema_version: Literal[1]
    title: str
    caption: Texts
    stages: Annotated[Texts, Meta(extra_json_schema={"uniqueItems": True})]
    totals: FiguresRow
    is_ungrouped: Annotated[bool, Meta(description="Each module is a box of its own, under each of its callers.")]
    boxes: Annotated[
        tuple[BoxRow, ...],
        Meta(description="Outer before inner; the boxes of one parent are in call order."),
    ]
    arrows: tuple[ArrowRow, ...]


def read_view(path: Path) -> ViewFile:
    """The grouped view in a file, as it was written."""
    return read_json(path, ViewFile, VIEW_FILE)
