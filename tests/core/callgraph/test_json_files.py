"""What is written is what is read, files stay whole, and old ones still load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llm_perf_opt.core import callgraph
from llm_perf_opt.core.callgraph import CallGraph, from_json_dict, read_callgraph, to_json_dict, write_callgraph
from llm_perf_opt.core.errors import PerfOptError
from tests.core.callgraph.made_graphs import toy_graph

FACTS = Path(__file__).parents[2] / "facts" / "deepseek_ocr"
SCHEMA = json.loads((Path(callgraph.__file__).parent / "schema.json").read_text("utf-8"))
CONTRACT_KEYS = (
    "call_counts", "edges", "op_call_counts", "module_children", "module_types", "constructor_params", "input_metadata",
    "output_metadata", "runtime",
)  # fmt: skip


def totals_only(graph: CallGraph) -> CallGraph:
    return replace(
        graph, calls=None, ops=None, storages=None, parameters=(), op_kinds=(), tensor_metas=(), paths=(), coverage=None
    )


GRAPHS = {
    "whole": toy_graph(),
    "totals": totals_only(toy_graph()),
    "partial": toy_graph(stopped_in="head"),
    "empty": CallGraph(),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("with_events", [False, True])
def test_a_written_file_reads_back_and_fits_the_schema(graph: CallGraph, with_events: bool, tmp_path: Path) -> None:
    if with_events and graph.calls is None:
        with pytest.raises(PerfOptError, match="holds no module calls"):
            write_callgraph(graph, tmp_path / "g.json", overwrite=False, with_events=True)
        assert list(tmp_path.iterdir()) == []
        return
    write_callgraph(graph, tmp_path / "g.json", overwrite=False, with_events=with_events)
    loaded = read_callgraph(tmp_path / "g.json")
    assert to_json_dict(loaded) == to_json_dict(graph, with_events=with_events)
    assert loaded.problems() == []
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads((tmp_path / "g.json").read_text("utf-8")))


def test_every_field_survives(tmp_path: Path) -> None:
    graph = toy_graph(stopped_in="head")
    write_callgraph(graph, tmp_path / "g.json", overwrite=False)
    loaded = read_callgraph(tmp_path / "g.json")
    by_identity = {"op_kinds"}
    for name in set(CallGraph.__dataclass_fields__) - by_identity:
        assert getattr(loaded, name) == getattr(graph, name), name
    for one, other in zip(loaded.op_kinds, graph.op_kinds, strict=True):
        assert (one.name, one.inputs, one.outputs, one.arguments) == (
            other.name, other.inputs, other.outputs, other.arguments
        )  # fmt: skip
        assert (one.input_names, one.output_aliases, one.mutates) == (
            other.input_names, other.output_aliases, other.mutates
        )  # fmt: skip
        assert [part.name for part in one.parts] == [part.name for part in other.parts]
    assert loaded.op_kinds[2].parts[0].arguments == {"other": "-inf"}


def test_the_schema_is_sound_and_names_the_contract() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(CONTRACT_KEYS) | {"events", "schema_version", "coverage"} <= set(SCHEMA["properties"])
    assert set(to_json_dict(toy_graph(), with_events=True)) == set(SCHEMA["properties"]) - {"content_sha256"}


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"call_counts": {"": 0}},
        {"edges": {"no arrow": 1}},
        {"input_metadata": {"": [{"tensors": [{"shape": [-1], "dtype": "int8", "device": "cpu"}], "calls": 1}]}},
        {"events": [["enter"]]},
        {"ops": {"kind": []}},
        {"something": 1},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(change: dict[str, Any]) -> None:
    document = {"schema_version": 1, "call_counts": {"": 1}, "edges": {}} | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)
    with pytest.raises(PerfOptError):
        from_json_dict(document)


def test_observations_are_readable_without_our_tables() -> None:
    tensor = {"shape": [2, 4], "dtype": "bfloat16", "device": "cuda"}
    document = to_json_dict(toy_graph())
    assert document["input_metadata"]["vision.proj"] == [{"tensors": [tensor], "calls": 2}]


def test_events_are_written_when_asked_for() -> None:
    assert "events" not in to_json_dict(toy_graph())
    events = to_json_dict(toy_graph(), with_events=True)["events"]
    assert events[:4] == [
        {"event": "enter", "path": "", "parent": None, "index": 0},
        {"event": "enter", "path": "vision", "parent": "", "index": 1},
        {"event": "enter", "path": "vision.proj", "parent": "vision", "index": 2},
        {"event": "exit", "path": "vision.proj", "parent": "vision", "index": 3},
    ]
    assert len(events) == 14
    assert from_json_dict(to_json_dict(toy_graph(), with_events=True)).events[0] == ("enter", "")


def test_events_as_pairs_are_read_as_well() -> None:
    document = to_json_dict(toy_graph(), with_events=True)
    pairs = [[event["event"], event["path"]] for event in document["events"]]
    assert to_json_dict(from_json_dict(document | {"events": pairs})) == document


@pytest.mark.parametrize("change", [{"parent": "vision"}, {"parent": None}, {"index": 7}])
def test_an_event_that_says_another_parent_or_number_is_refused(change: dict[str, Any]) -> None:
    document = to_json_dict(toy_graph(), with_events=True)
    document["events"][1] |= change
    with pytest.raises(PerfOptError, match=r"malformed at events\[1\]"):
        from_json_dict(document)


def test_a_minimal_old_file_loads() -> None:
    graph = from_json_dict({"schema_version": 1, "call_counts": {"": 1, "a": 2}, "edges": {"->a": 2}})
    assert graph.call_counts == {"": 1, "a": 2}
    assert (graph.input_metadata, graph.module_types, graph.calls, graph.coverage) == ({}, {}, None, None)


@pytest.mark.parametrize("phase", ["prefill", "decode_step"])
def test_the_calls_of_a_real_run_are_sound(phase: str, tmp_path: Path) -> None:
    recorded = json.loads((FACTS / "callgraph-base.json").read_text("utf-8"))[phase]
    document = {"schema_version": 1, "call_counts": recorded["call_counts"], "edges": recorded["edges"]}
    (tmp_path / "old.json").write_text(json.dumps(document, indent=2), "utf-8")
    graph = read_callgraph(tmp_path / "old.json")
    assert graph.problems() == []
    assert len(graph.call_counts) == {"prefill": 3373, "decode_step": 525}[phase]
    some_edge = next(iter(graph.edges))
    assert replace(graph, edges={**graph.edges, some_edge: 2}).problems() != []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text("mine")
    with pytest.raises(PerfOptError, match="exists"):
        write_callgraph(toy_graph(), file, overwrite=False)
    assert file.read_text() == "mine"
    write_callgraph(toy_graph(), file, overwrite=True)
    assert read_callgraph(file).model == "toy"
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text("old")
    with pytest.raises(TypeError):
        write_callgraph(replace(toy_graph(), workload={"page": object()}), file, overwrite=True)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="Cannot write"):
        write_callgraph(toy_graph(), tmp_path / "missing" / "g.json", overwrite=False)
    with pytest.raises(PerfOptError, match="no call-graph file"):
        read_callgraph(tmp_path / "missing.json")
    with pytest.raises(PerfOptError, match="no call-graph file"):
        read_callgraph(tmp_path)


def test_a_sealed_file_that_was_edited_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    write_callgraph(toy_graph(), file, overwrite=False)
    text = file.read_text("utf-8")
    file.write_text(text.replace('"made by hand"', '"made by foot"'), "utf-8")
    with pytest.raises(PerfOptError, match="changed after it was written"):
        read_callgraph(file)
    unsealed = text.replace('"made by hand"', '"made by foot"')
    unsealed = unsealed[: unsealed.rindex(",\n")] + "}"
    file.write_text(unsealed, "utf-8")
    assert read_callgraph(file).notes == ("made by foot",)


def test_nothing_can_be_added_behind_the_seal(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    write_callgraph(toy_graph(), file, overwrite=False)
    text = file.read_text("utf-8").rstrip()
    assert text.endswith('"}')
    file.write_text(text[:-1] + ',"events":[]}', "utf-8")
    with pytest.raises(PerfOptError, match="changed after it was written"):
        read_callgraph(file)
    file.write_text(text + " \n", "utf-8")
    assert read_callgraph(file).model == "toy"
