"""Formats that other programs read: the figures in them add up to the view's, to the last FLOP."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt import formats
from llm_perf_opt.core.graph_view import GraphView, Metric, total
from llm_perf_opt.formats.flame_graph_format import CollapsedDrawing, SpeedscopeDrawing
from llm_perf_opt.formats.json_format import JsonDrawing
from llm_perf_opt.formats.model_explorer_format import ModelExplorerDataDrawing, ModelExplorerDrawing
from tests.formats.drawings.made_views import HOSTILE_NAMES, deepseek_ocr_view, hostile_view, unpriced_view, view_of

SCHEMA = json.loads((Path(formats.__file__).parent / "graph_view.schema.json").read_text("utf-8"))
VIEWS = {
    "whole model": deepseek_ocr_view(),
    "hostile names": hostile_view(),
    "no prices": unpriced_view(),
    "empty": view_of(),
}
PRICED = {name: VIEWS[name] for name in ("whole model", "hostile names")}

# The shape of a file with sampled profiles, as https://www.speedscope.app/file-format-schema.json has it.
SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "integer"},
        "shared": {
            "required": ["frames"],
            "properties": {
                "frames": {"type": "array", "items": {"required": ["name"], "properties": {"name": {"type": "string"}}}}
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "properties": {
                    "type": {"const": "sampled"},
                    "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_json_is_valid_by_the_published_schema(view: GraphView) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(JsonDrawing().render(view)), SCHEMA)


def test_the_schema_refuses_what_is_not_a_view() -> None:
    document = json.loads(JsonDrawing().render(deepseek_ocr_view()))
    for change in ({"schema_version": 2}, {"totals": {}}, {"boxes": [{}]}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, **change}, SCHEMA)


def _spelled(name: str) -> str:
    """Half of a surrogate pair, which no file in UTF-8 can hold, is spelled out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def test_the_json_loses_nothing() -> None:
    view = hostile_view()
    document = json.loads(JsonDrawing().render(view))
    boxes = [box for root in view.roots for box in root.walk()]
    classes = [entry["class_name"] for entry in document["boxes"]]
    assert classes == [_spelled(box.class_name) for box in boxes]
    assert set(map(_spelled, HOSTILE_NAMES)) <= set(classes)
    assert document["caption"] == [*map(_spelled, HOSTILE_NAMES)]
    assert [(arrow["source"], arrow["target"]) for arrow in document["arrows"]] == [
        (arrow.source, arrow.target) for box in boxes for arrow in box.arrows
    ]


def test_own_figures_in_the_json_add_up_to_the_totals() -> None:
    document = json.loads(JsonDrawing().render(deepseek_ocr_view()))
    for name, value in document["totals"].items():
        assert sum(box["own"][name] for box in document["boxes"]) == value
    parents = {box["id"]: box["parent"] for box in document["boxes"]}
    assert list(parents.values()).count(None) == 1
    assert set(parents.values()) - {None} <= parents.keys()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_speedscope_files_have_the_published_shape(view: GraphView) -> None:
    document = json.loads(SpeedscopeDrawing().render(view))
    jsonschema.validate(document, SPEEDSCOPE)
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert {frame for sample in profile["samples"] for frame in sample} <= set(
            range(len(document["shared"]["frames"]))
        )


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("view", PRICED.values(), ids=PRICED)
def test_flame_graphs_add_up_to_the_total(view: GraphView, metric: Metric) -> None:
    document = json.loads(SpeedscopeDrawing(metric).render(view))
    profile = document["profiles"][document["activeProfileIndex"]]
    assert sum(profile["weights"]) == profile["endValue"] == total(view, metric)
    lines = CollapsedDrawing(metric).render(view).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == total(view, metric)


def test_a_collapsed_line_is_the_way_to_a_box() -> None:
    lines = CollapsedDrawing().render(deepseek_ocr_view()).splitlines()
    (line,) = [line for line in lines if "blocks.[0-11].attn.qkv " in line]
    stack, _, weight = line.rpartition(" ")
    assert int(weight) == 300_000_000_000
    assert [frame.partition(" @ ")[0] for frame in stack.split(";")] == [
        "DeepseekOCRForCausalLM", "DeepseekOCRModel", "ImageEncoderViT", "Block", "Attention", "Linear",
    ]  # fmt: skip
    assert "(for 12)" in stack


def test_what_is_unknown_is_said_in_the_name_of_the_profile() -> None:
    names = [profile["name"] for profile in json.loads(SpeedscopeDrawing().render(unpriced_view()))["profiles"]]
    assert names == [
        "FLOPs (1 boxes unknown)",
        "bytes moved (1 boxes unknown)",
        "parameters (1 boxes unknown)",
        "activation bytes (1 boxes unknown)",
        "calls",
    ]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_model_explorer_graphs_are_whole(view: GraphView) -> None:
    """Ids are unique, edges join nodes that exist, namespaces have attributes, every value is a string."""
    document = json.loads(ModelExplorerDrawing().render(view))
    assert set(document) == {"label", "graphs"}
    (graph,) = document["graphs"]
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids)
    assert {edge["sourceNodeId"] for node in graph["nodes"] for edge in node["incomingEdges"]} <= set(ids)
    assert all(isinstance(attr["value"], str) for node in graph["nodes"] for attr in node["attrs"])
    assert {node["namespace"] for node in graph["nodes"]} <= graph["groupNodeAttributes"].keys()
    values = [value for attributes in graph["groupNodeAttributes"].values() for value in attributes.values()]
    assert all(isinstance(value, str) for value in values)


def test_model_explorer_nests_as_the_view_does() -> None:
    view = deepseek_ocr_view()
    (graph,) = json.loads(ModelExplorerDrawing().render(view))["graphs"]
    depths = Counter(node["namespace"].count("/") for node in graph["nodes"] if not node["label"].endswith("own ops"))
    assert max(depths) == 4
    (attention,) = [name for name in graph["groupNodeAttributes"] if name.endswith("blocks.[0-11].attn")]
    assert attention.split("/")[3] == "Block @ model.sam_model.blocks.[0-11] (for 12)"


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("view", PRICED.values(), ids=PRICED)
def test_node_data_belongs_to_nodes_and_adds_up(view: GraphView, metric: Metric) -> None:
    (graph,) = json.loads(ModelExplorerDrawing().render(view))["graphs"]
    document = json.loads(ModelExplorerDataDrawing(metric).render(view))
    results = document[graph["id"]]["results"]
    assert results.keys() == {node["id"] for node in graph["nodes"]}
    assert sum(result["value"] for result in results.values()) == total(view, metric)
