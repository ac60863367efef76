"""Whatever a file holds: a clear error or the graph that was written, never a traceback and never a wrong graph."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import from_json_dict, json_reader, read_callgraph, to_json_dict, write_callgraph
from llm_perf_opt.core.errors import PerfOptError
from tests.core.callgraph.made_graphs import toy_graph
from tests.examples import examples

DOCUMENT = to_json_dict(toy_graph(), with_events=True)
SMALL = {"schema_version": 1, "call_counts": {"": 1}, "edges": {}}
FUZZ = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("sealed") / "g.json"
    write_callgraph(toy_graph(), file, overwrite=False)
    return file.read_bytes()


def read_bytes(raw: bytes, folder: Path) -> object:
    (folder / "g.json").write_bytes(raw)
    return read_callgraph(folder / "g.json")


@FUZZ
@given(data=st.data())
def test_a_truncated_file_is_refused(data: st.DataObject, sealed: bytes, tmp_path: Path) -> None:
    end = data.draw(st.integers(0, len(sealed.rstrip()) - 1))
    with pytest.raises(PerfOptError):
        read_bytes(sealed[:end], tmp_path)


@FUZZ
@given(data=st.data())
def test_a_file_with_changed_bytes_is_refused(data: st.DataObject, sealed: bytes, tmp_path: Path) -> None:
    content = sealed.rstrip()
    at = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(0, 3))
    put = data.draw(st.binary(max_size=3) | st.sampled_from([b"0", b"-", b",", b'"', b"[", b"}", b"1e9", b"true"]))
    mutated = content[:at] + put + content[at + length :]
    if b"".join(mutated.split()) == b"".join(content.split()):
        return  # the same document with other white space
    with pytest.raises(PerfOptError):
        read_bytes(mutated, tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The address of every value in a document, containers included."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


PLACES = list(places(DOCUMENT))
NUMBERS: list[Any] = [-1, 0, 1, 7, 2**31, 2**63, -(2**63), 10**400, 0.0, 1.0, 1.5, float("nan"), float("inf"), 1j]
OTHERS: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    "->",
    "\ud800",
    b"",
    [],
    [0],
    [True],
    [[]],
    (),
    {},
    {"": 1},
    {"a": "b"},
]
JUNK = st.sampled_from(NUMBERS + OTHERS)


@FUZZ
@given(place=st.sampled_from(PLACES[1:]), junk=JUNK)
@example(place=("ops", "kind", 0), junk=True)
@example(place=("calls", "end_op", 0), junk=2**62)
@example(place=("storages", "bytes", 0), junk=1.0)
def test_a_document_with_a_changed_value_is_refused_or_sound(place: tuple[Any, ...], junk: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = junk
    refused_or_sound(document)


@FUZZ
@given(place=st.sampled_from(PLACES[1:]))
def test_a_document_with_something_missing_is_refused_or_sound(place: tuple[Any, ...]) -> None:
    document = copy.deepcopy(DOCUMENT)
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    del holder[place[-1]]
    refused_or_sound(document)


def refused_or_sound(document: Any) -> None:
    """A value no rule speaks about (a note, a class name) may change: the graph then says what the document says."""
    try:
        graph = from_json_dict(document)
    except PerfOptError as error:
        assert error.why
        return
    assert graph.problems() == []
    again = to_json_dict(graph)
    for key in document.keys() - {"part_kinds"}:  # a part that no op refers to any more is left out
        assert json.dumps(again.get(key, [])) == json.dumps(document[key]), key


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@FUZZ
@given(key=st.sampled_from(sorted(DOCUMENT)), value=JSON)
def test_any_json_under_any_key_is_refused_or_sound(key: str, value: Any) -> None:
    refused_or_sound(SMALL | {key: value})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ('{"schema_version": 1, "schema_version": 1}', "the key 'schema_version' occurs twice"),
        ('{"runtime": {"a": 1, "a": 2}}', "the key 'a' occurs twice"),
        ('{"runtime": {"a": NaN}}', "NaN is not a JSON number"),
        ('{"runtime": {"a": -Infinity}}', "-Infinity is not a JSON number"),
        ('{"runtime": {"a": 1e999}}', "the number 1e999 is too large"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"a":' * 1_000_000, "nested too deeply"),
        ('{"schema_version": ' + "9" * 1_000_000 + "}", "is too large"),
        ("\ufeff{}", "BOM"),
        ("[]", "expected an object, found a list of 0"),
        ("null", "expected an object, found null"),
        ("{}", "expected a whole number, found null"),
        ('{"schema_version": true}', "expected a whole number, found true"),
        ('{"schema_version": 1.0}', "expected a whole number, found 1.0"),
        ('{"schema_version": 1}', "expected the key 'call_counts'"),
        ('{"schema_version": 1, "call_counts": {}}', "expected the key 'edges'"),
        ('{"schema_version": 1, "call_counts": {}, "edges": {}, "edge": {}}', "found the text 'edge'"),
    ],
)
def test_text_that_is_no_call_graph(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(PerfOptError) as caught:
        read_bytes(text.encode(), tmp_path)
    assert why in caught.value.why
    assert str(tmp_path) in caught.value.what
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b"\x00", '{"schema_version": 1}'.encode("utf-16"), b"\x80"])
def test_bytes_that_are_no_text(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="not valid JSON"):
        read_bytes(raw, tmp_path)


@pytest.mark.parametrize("version", [0, 2, -1, 10**30])
def test_another_version_is_refused_with_the_reason(version: int) -> None:
    with pytest.raises(PerfOptError, match="this program reads version 1") as caught:
        from_json_dict({"schema_version": version, "call_counts": {}, "edges": {}})
    assert "mean something else" in caught.value.why


def test_a_file_too_large_to_be_a_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "CALLGRAPH_FILE", replace(json_reader.CALLGRAPH_FILE, max_bytes=100))
    with pytest.raises(PerfOptError, match="larger than 100 bytes"):
        read_bytes(json.dumps(DOCUMENT).encode(), tmp_path)


def kind_of_parts(*parts: int) -> dict[str, Any]:
    lists: dict[str, Any] = {key: [] for key in ("inputs", "outputs", "input_names", "output_aliases")}
    return lists | {"name": "op", "arguments": {}, "mutates": False, "parts": list(parts)}


@pytest.mark.parametrize(
    "part_kinds",
    [
        [kind_of_parts(0)],
        [kind_of_parts(1), kind_of_parts()],
        [kind_of_parts(), *(kind_of_parts(row, row) for row in range(100))],
        [kind_of_parts(), *(kind_of_parts(row) for row in range(100))],
    ],
    ids=["of itself", "of a later one", "doubling", "a long chain"],
)
def test_parts_that_never_end_are_refused(part_kinds: list[Any]) -> None:
    with pytest.raises(PerfOptError, match="malformed at part_kinds"):
        from_json_dict(SMALL | {"part_kinds": part_kinds})


def test_columns_that_claim_more_than_they_hold_take_no_memory() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["calls"]["input_count"] = [2**62, 0, 0, 0, 0, 0, 0]
    document["calls"]["end_op"] = [2**62, 0, 0, 0, 0, 0, 0]
    with pytest.raises(PerfOptError, match="contradicts itself"):
        from_json_dict(document)
    document["calls"]["end_op"] = [2**62, 2**62, 2**62, 0, 0, 0, 0]
    with pytest.raises(PerfOptError, match=r"malformed at calls\.end_op"):
        from_json_dict(document)


def test_a_contradiction_in_an_unsealed_file_is_refused(tmp_path: Path) -> None:
    document = SMALL | {"call_counts": {"": 1, "a": 2}, "edges": {"->a": 1}}
    with pytest.raises(PerfOptError, match="contradicts itself") as caught:
        read_bytes(json.dumps(document).encode(), tmp_path)
    assert caught.value.why == "'a' was called 2 times, 1 by edges and 0 as a root"


@pytest.mark.parametrize("shape", [[2**62, 4], [0, 2**62, 4], [2**63 - 1] * 20])
def test_a_tensor_of_more_elements_than_torch_can_count_is_refused(shape: list[int]) -> None:
    """2^64 elements fit no 64-bit number; twenty such dimensions are more than a float can hold."""
    document = copy.deepcopy(DOCUMENT)
    document["tensor_metas"][0]["shape"] = shape
    with pytest.raises(PerfOptError, match="2\\^63 elements"):
        from_json_dict(document)
