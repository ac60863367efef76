"""What a model's loops did, written to and read from a file of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.callgraph.runtime_log import read_runtime_log, runtime_events, runtime_facts, write_runtime_log
from llm_perf_opt.core.errors import PerfOptError

GRAPH = CallGraph(
    stages=(("sam", ("model.sam_model",)),),
    runtime={"images": 2, "crops_per_image": [6, 0], "decoder_depth": 12, "decode_steps": 3},
)


def test_one_event_per_image_one_for_the_decoder_and_one_for_its_steps() -> None:
    vision = {"kind": "vision_inputs", "stage": "sam", "module": "model.sam_model", "num_images": 2}
    assert runtime_events(GRAPH) == [
        {**vision, "image_index": 0, "num_crops": 6},
        {**vision, "image_index": 1, "num_crops": 0},
        {"kind": "llm_stack", "num_layers": 12},
        {"kind": "decode_steps", "num_steps": 3},
    ]
    assert runtime_events(CallGraph()) == []
    assert runtime_events(replace(GRAPH, stages=(), runtime={"images": 1}))[0] == {
        "kind": "vision_inputs",
        "num_images": 1,
    }


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = write_runtime_log(GRAPH, tmp_path / "run-runtime-metadata.json")
    facts = runtime_facts(read_runtime_log(file))
    assert {name: facts[name] for name in GRAPH.runtime} == GRAPH.runtime
    with pytest.raises(PerfOptError, match="Would overwrite"):
        write_runtime_log(GRAPH, file)
    write_runtime_log(CallGraph(), file, overwrite=True)
    assert json.loads(file.read_text()) == {"events": []}


@pytest.mark.parametrize(
    ("events", "facts"),
    [
        ([{"kind": "vision_inputs", "num_images": 1, "num_crops_total": 4}], {"images": 1, "crops_per_image": [4]}),
        ([{"kind": "vision_inputs", "num_images": 1, "num_crops_total": 1}], {"images": 1, "crops_per_image": [0]}),
        ([{"kind": "vision_inputs", "num_images": 2, "num_crops_total": 5}], {"images": 2}),
        (
            [{"kind": "vision_inputs", "num_images": 2, "images_spatial_crop": [[2, 3], [1, 1]]}],
            {"images": 2, "crops_per_image": [6, 0], "images_spatial_crop": [[2, 3], [1, 1]]},
        ),
        ([{"kind": "vision_inputs", "num_images": 2, "images_spatial_crop": [[2], "wide"]}], {"images": 2}),
        (
            [{"kind": "vision_inputs", "crops_per_image": [2, 3], "num_images": 2}],
            {"images": 2, "crops_per_image": [2, 3]},
        ),
        ([{"kind": "llm_stack", "num_layers": 12}], {"decoder_depth": 12}),
        ([{"kind": "llm_stack", "num_layers": 0}], {}),
        ([{"kind": "vision_inputs", "num_images": -1, "num_crops": "many"}, {"kind": 3}, {}], {}),
    ],
)
def test_every_form_of_the_older_events(events: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    found = runtime_facts(events)
    assert sorted(found.pop("observed", [])) == sorted(facts)
    assert found == facts


def beside(tmp_path: Path, *logs: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    (tmp_path / "graph.json").write_text(json.dumps({"call_counts": {"a": 1}}))
    for number, text in enumerate(logs):
        (tmp_path / f"{number}-runtime-metadata.json").write_text(text)
    graph = read_callgraph(tmp_path / "graph.json")
    return dict(graph.runtime), graph.notes


def test_a_log_beside_an_older_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    runtime, notes = beside(tmp_path, "{")
    assert runtime == {}
    assert any(note.startswith("0-runtime-metadata.json is left out: Expecting property name") for note in notes)


def test_of_several_logs_none_is_read(tmp_path: Path) -> None:
    log = json.dumps({"events": [{"kind": "llm_stack", "num_layers": 2}]})
    runtime, notes = beside(tmp_path, log, log)
    assert runtime == {}
    assert "Runtime logs in the folder: 2, and none is read." in notes
