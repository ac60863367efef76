"""Files from before there were versions: one run of a small DeepSeek-OCR as nine older scripts wrote it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph, TensorMeta, from_json_dict, read_callgraph, to_json_dict
from llm_perf_opt.core.callgraph.older_files import UNKNOWN, is_older
from llm_perf_opt.core.errors import PerfOptError

DIALECTS = Path(__file__).parent / "dialects"
TORCHLENS = "torchlens/dsocr-call-graph-torchlens.json"
WITH_ROOT = {"dsocr-call-graph-hooks.json": "model", "edges-alone.json": "model", "counts-alone.json": ""}
NAMES = sorted(str(file.relative_to(DIALECTS)) for file in DIALECTS.rglob("*.json") if "runtime" not in file.name)


def read(name: str) -> CallGraph:
    return read_callgraph(DIALECTS / name)


def under_root(name: str, path: str) -> str:
    return f"{root}.{path}" if (root := WITH_ROOT.get(name)) else path


def test_there_is_a_file_of_every_dialect() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_is_sound_and_says_what_it_is(name: str) -> None:
    graph = read(name)
    assert graph.problems() == []
    assert graph.notes[0].startswith("Read from a call-graph file without schema_version")
    assert graph.notes[-1].startswith("Unknown, since the file has none: ")
    assert graph.notes[-1].endswith("weights, ops and their costs.")
    assert (graph.ops, graph.calls, graph.storages, graph.coverage, graph.parameters) == (None, None, None, None, ())


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_tells_the_same_calls_and_callers(name: str) -> None:
    """1 embedding, 2 x (1 + 1 + 12 x 3 + 1 + 4) SAM, 2 x (2 + 24 x 3) CLIP, 2 projector, decoder as routed, 1 norm."""
    graph = read(name)
    decoder = 4 * 3 + 3 * 2 + 2 * (8 + 6 + 7)  # layer, attention, mlp; gate and shared; experts with their down_proj
    assert sum(graph.call_counts.values()) == 1 + 2 * 43 + 2 * 74 + 2 + decoder + 1 + (name in WITH_ROOT)
    expected = {("sam_model", "sam_model.blocks.7"): 2, ("layers.2.mlp", "layers.2.mlp.experts.5"): 1}
    for (parent, child), calls in expected.items():
        assert graph.edges[f"{under_root(name, parent)}->{under_root(name, child)}"] == calls
    assert under_root(name, "layers.2.mlp.experts.4") not in graph.call_counts
    assert graph.call_counts[under_root(name, "vision_model.transformer.layers.23")] == 2
    tops = {under_root(name, path) for path in ("embed_tokens", "sam_model", "vision_model", "projector", "norm")}
    callers = WITH_ROOT.get(name)
    found = tops & graph.root_calls.keys() if callers is None else tops & {key.split("->")[1] for key in graph.edges}
    assert found == tops


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_is_a_file_of_this_version(name: str, tmp_path: Path) -> None:
    document = to_json_dict(read(name))
    assert document["schema_version"] == 1
    assert to_json_dict(from_json_dict(document)) == document


def test_edges_that_count_ops_tell_who_calls_whom_and_not_how_often() -> None:
    written = json.loads((DIALECTS / TORCHLENS).read_text())["edges"]
    assert written["sam_model->sam_model.blocks.0"] == 90  # 2 calls of 12 + 30 + 3 ops
    graph = read(TORCHLENS)
    assert graph.edges["sam_model->sam_model.blocks.0"] == 2
    assert any("count more than the calls (probably ops)" in note for note in graph.notes)
    assert graph.op_call_counts["sam_model.blocks.0.attn"] == 60


def test_the_runtime_log_beside_an_older_file_is_read() -> None:
    graph = read(TORCHLENS)
    assert graph.runtime == {
        "images": 1,
        "crops_per_image": [4],
        "decoder_depth": 4,
        "observed": ["crops_per_image", "decoder_depth", "images"],
    }
    assert "Runtime facts are read from dsocr-callgraph-runtime-metadata.json." in graph.notes
    assert read("events-alone.json").runtime["crops_per_image"] == [4]
    assert read("passes.json").runtime["crops_per_image"] == [4]
    assert read("bare-tensors.json").runtime == {}


@pytest.mark.parametrize(
    "name", ["dsocr-call-graph-hooks.json", "nested-children.json", "bare-tensors.json", TORCHLENS]
)
def test_classes_and_children_in_every_form(name: str) -> None:
    graph = read(name)
    classes = {path: graph.module_types[under_root(name, path)] for path in ("sam_model", "layers.3.mlp.experts.0")}
    assert classes == {"sam_model": "ImageEncoderViT", "layers.3.mlp.experts.0": "DeepseekV2MLP"}
    assert under_root(name, "layers.3.mlp.experts.0") not in graph.call_counts
    assert under_root(name, "sam_model.blocks.11") in graph.module_children[under_root(name, "sam_model.blocks")]


def test_a_class_that_no_key_tells_is_unknown_and_none_at_all_is_nothing() -> None:
    some = from_json_dict(
        {"call_counts": {"a": 1, "a.b": 1}, "edges": {"a->a.b": 1}, "module_types": {"a.b": "Linear"}}
    )
    assert some.module_types == {"": UNKNOWN, "a": UNKNOWN, "a.b": "Linear"}
    assert read("counts-alone.json").module_types == {}


def test_events_as_objects_with_parent_and_index() -> None:
    graph = read("dsocr-call-graph-hooks.json")
    assert graph.events[:3] == (("enter", "model"), ("enter", "model.embed_tokens"), ("exit", "model.embed_tokens"))
    assert len(graph.events) == 2 * sum(graph.call_counts.values())
    assert from_json_dict(to_json_dict(graph)).events == graph.events


def test_events_out_of_order_are_put_in_the_order_of_their_index() -> None:
    written = [{"event": "exit", "name": "a", "index": 1}, {"event": "enter", "name": "a", "index": 0}]
    assert from_json_dict({"events": written}).events == (("enter", "a"), ("exit", "a"))


@pytest.mark.parametrize(
    ("events", "note"),
    [
        ([["enter", "a"], ["exit", "b"]], "Its events do not nest, and are left out."),
        ([["enter", "a"]], "Its events do not nest, and are left out."),
        ([["enter", "b"], ["exit", "b"]], "Its events show other calls than its counts, and are left out."),
    ],
)
def test_events_that_cannot_be_are_left_out_with_a_note(events: list[Any], note: str) -> None:
    graph = from_json_dict({"call_counts": {"a": 1}, "events": events})
    assert (graph.call_counts, graph.events) == ({"a": 1}, ())
    assert note in graph.notes


def test_one_observation_per_call_is_counted_by_what_it_holds() -> None:
    graph = read("dsocr-call-graph-hooks.json")
    crops, page = graph.input_metadata["model.sam_model"]
    assert (crops.calls, crops.tensors) == (1, (TensorMeta((4, 3, 640, 640), "bfloat16", "cuda:0"),))
    assert (page.calls, page.tensors[0].shape) == (1, (1, 3, 1024, 1024))
    assert "model.layers.2" not in graph.input_metadata


def test_a_first_observation_covers_one_call_and_the_others_stay_unknown() -> None:
    graph = read("first-observation.json")
    (seen,) = graph.input_metadata["sam_model.blocks.3"]
    assert (seen.calls, graph.call_counts["sam_model.blocks.3"]) == (1, 2)
    assert seen.tensors == (TensorMeta((4, 40, 40, 768), "float16", UNKNOWN),)
    assert [meta.shape for meta in graph.input_metadata["layers.1.self_attn"][0].tensors] == [(1, 923, 1280), (1, 923)]
    assert "Arguments that are no tensors: 3, left out." in graph.notes
    assert any(note.startswith("Tensors of some calls only, for 12 inputs") for note in graph.notes)


def test_constructor_parameters_with_infinity_become_text() -> None:
    graph = read("first-observation.json")
    assert graph.constructor_params["sam_model.blocks.0.attn"] == {"hidden_size": 768, "num_heads": 12, "scale": "inf"}


def test_bare_tensors_and_shapes() -> None:
    graph = read("bare-tensors.json")
    shapes = {path: [meta.shape for meta in seen[0].tensors] for path, seen in graph.input_metadata.items()}
    assert shapes == {
        "sam_model": [(4, 3, 640, 640)],
        "projector": [(4, 100, 2048)],
        "layers.0": [(1, 923, 1280), (1, 1, 923, 923)],
        "norm": [(1, 923, 1280)],
    }


def test_observations_of_a_run_that_a_tracer_repeats_count_once() -> None:
    once = {"tensors": [{"shape": [2], "dtype": "torch.int8"}]}
    twice = from_json_dict({"call_counts": {"a": 2}, "input_metadata": {"a": [once, once, once, once]}})
    assert [seen.calls for seen in twice.input_metadata["a"]] == [2]
    odd = from_json_dict({"call_counts": {"a": 2}, "input_metadata": {"a": [once, once, once]}})
    assert odd.input_metadata == {}
    assert any(note.startswith("Observations that do not fit the calls: 1") for note in odd.notes)


def test_a_shared_module_is_divided_among_its_callers_and_said_to_be() -> None:
    calls = {"a": 1, "b": 1, "shared": 3}
    graph = from_json_dict({"call_counts": calls, "edges": {"a->shared": 8, "b->shared": 4}})
    assert graph.edges == {"a->shared": 2, "b->shared": 1}
    assert "Calls of 1 modules with several callers are divided in the ratio of their edges." in graph.notes


def test_edges_that_are_calls_leave_the_rest_to_the_outside() -> None:
    graph = from_json_dict({"call_counts": {"a": 1, "b": 3}, "edges": {"a->b": 2}})
    assert graph.root_calls == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"hello": "world"}, "schema_version"),
        ({"module_children": {"a": ["b"]}, "module_types": {"a": "A"}}, "schema_version"),
        ({"call_counts": [1, 2]}, "call_counts, expected an object"),
        ({"call_counts": {"a": -1}}, "expected a count"),
        ({"call_counts": {"a": "many"}}, "expected a count"),
        ({"call_counts": {"a": 1}, "edges": 3}, "expected an object or a list"),
        ({"call_counts": {"a": 1}, "edges": ["a to b"]}, 'expected "parent->child"'),
        ({"call_counts": {"a": 1}, "edges": [[1, 2, 3]]}, "expected the names of parent and child"),
        ({"call_counts": {"a." * 200 + "b": 1}}, "expected a path of at most 128 names"),
        ({"call_counts": {"a": 1}, "module_children": {"a": True}}, "expected children"),
        ({"events": "none"}, "expected a list"),
        ({"events": [3]}, "expected an event"),
        ({"call_counts": {"a": 2, "b": 2}, "edges": {"a->b": 2, "b->a": 2}}, "no chain of calls leads to it"),
    ],
)
def test_what_is_no_call_graph_is_refused_with_the_place(document: Any, why: str) -> None:
    with pytest.raises(PerfOptError) as caught:
        from_json_dict(document)
    assert why in f"{caught.value.what.rstrip('.')}, {caught.value.why}"


def test_a_present_file_without_its_version_is_no_older_file() -> None:
    document = to_json_dict(read(TORCHLENS))
    del document["schema_version"]
    assert not is_older(json.dumps(document).encode())
    with pytest.raises(PerfOptError, match="schema_version"):
        from_json_dict(document)


def test_another_version_is_refused_whatever_else_it_holds() -> None:
    with pytest.raises(PerfOptError, match="this program reads version 1"):
        from_json_dict({"schema_version": 7, "call_counts": {"a": 1}, "edges": {}, "module_classes": {"a": "A"}})


FUZZ = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JUNK: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        7,
        2**63,
        10**400,
        0.5,
        1.0,
        float("nan"),
        float("inf"),
        "",
        "x",
        "->",
        "\ud800",
        "a:2",
        "self",
    ),
    *([], [0], [[]], [None], {}, {"": 1}, {"a": {"a": []}}, {"shape": [1]}, {"tensors": [[]]}, {"event": "exit"}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The address of every value, of long lists and objects the first few."""
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (step, item) in enumerate(steps):
        if number < 12:
            yield from places(item, (*path, step))


DOCUMENTS = {name: json.loads((DIALECTS / name).read_text()) for name in NAMES}
PLACES = {name: list(places(document))[1:] for name, document in DOCUMENTS.items()}


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_a_changed_older_file_is_refused_or_sound(name: str, data: st.DataObject, tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    for *way, last in data.draw(st.lists(st.sampled_from(PLACES[name]), min_size=1, max_size=3)):
        holder: Any = document
        for step in way:
            inside = isinstance(holder, dict) and step in holder
            inside = inside or (isinstance(holder, list) and isinstance(step, int) and step < len(holder))
            holder = holder[step] if inside else None
        if isinstance(holder, dict) and isinstance(last, str):
            change = data.draw(st.sampled_from(["put", "drop", "rename"]))
            value = holder.pop(last, None)
            if change != "drop":
                key = last if change == "put" else data.draw(st.sampled_from(["", "x", "a->b", "self", "layers.1:2"]))
                holder[key] = data.draw(st.sampled_from(JUNK)) if change == "put" else value
        elif isinstance(holder, list) and isinstance(last, int) and last < len(holder):
            holder[last] = data.draw(st.sampled_from(JUNK))
    file = tmp_path / "older.json"
    file.write_text(json.dumps(document))
    try:
        graph = read_callgraph(file)
    except PerfOptError as error:
        assert error.why
        assert str(file) in error.what
        return
    assert graph.problems() == []


@FUZZ
@given(data=st.data())
def test_damaged_bytes_of_an_older_file_are_refused_or_sound(data: st.DataObject, tmp_path: Path) -> None:
    raw = (DIALECTS / TORCHLENS).read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    put = data.draw(st.sampled_from([b"0", b"-", b",", b'"', b"[", b"}", b"1e999", b"NaN", b"\xff", b"\\ud800", b""]))
    (tmp_path / "older.json").write_bytes(raw[:at] + put + raw[at + data.draw(st.integers(0, 40)) :])
    try:
        assert read_callgraph(tmp_path / "older.json").problems() == []
    except PerfOptError as error:
        assert error.why
