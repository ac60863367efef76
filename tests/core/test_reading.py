"""One reader for every file: bounds, strictness, and an error that says which file, where in it, and what to do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph.json_layout import CallGraphFile
from llm_perf_opt.core.callgraph.json_reader import CALLGRAPH_FILE
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, decode_json, parse_toml, read_foreign_json, read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: int
    by_stage: dict[str, tuple[int, ...]] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    samples: tuple[Sample, ...]
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    schema_version: int = 3


KIND = FileKind(name="file of samples", fix="measure again", schema_version=3)
ONE = {"schema_version": 3, "samples": [{"count": 1, "by_stage": {"prefill": [1, 2], "decode": [3]}}]}


def read(document: Any, kind: FileKind = KIND) -> Samples:
    return decode_json(json.dumps(document).encode(), Samples, kind)


def test_a_file_becomes_its_record(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ONE))
    found = read_json(tmp_path / "a.json", Samples, KIND)
    assert found == Samples(samples=(Sample(count=1, by_stage={"prefill": (1, 2), "decode": (3,)}),))


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        ({"samples": 3}, "samples", "expected a list, found 3"),
        (
            {"samples": [{"count": 1}, {"count": "x"}]},
            "samples[1].count",
            "expected a whole number, found the text 'x'",
        ),
        ({"samples": [{"count": True}]}, "samples[0].count", "expected a whole number, found true"),
        ({"samples": [{"count": 1.0}]}, "samples[0].count", "expected a whole number, found 1.0"),
        ({"samples": [{}]}, "samples[0]", "expected the key 'count', found an object of 0"),
        ({"samples": [{"coumt": 1}]}, "samples[0]", "expected the key 'count' (not 'coumt'), found an object of 1"),
        (
            {"samples": [{"count": 1, "not": ""}]},
            "samples[0]",
            "expected a known key (did you mean 'note'?), found the text 'not'",
        ),
        ({"samples": [{"count": 1, "note": 5}]}, "samples[0].note", "expected text or null, found 5"),
        (
            {"samples": [{"count": 1, "by_stage": {"a": [], "b": [0, "x"], "c": [], "d": []}}]},
            "samples[0].by_stage['b'][1]",
            "expected a whole number, found the text 'x'",
        ),
        ({"names": {"a": {}, "b": {"c": "", "d": 1}}}, "names['b']['d']", "expected text, found 1"),
        ({"extra": 1}, "the top level", "expected a known key, found the text 'extra'"),
    ],
)
def test_the_error_says_where_what_was_expected_and_what_was_found(change: Any, where: str, why: str) -> None:
    with pytest.raises(PerfOptError) as caught:
        read(ONE | change)
    assert caught.value.what == f"The file of samples is malformed at {where}."
    assert (caught.value.why, caught.value.fix) == (why, "measure again")


@pytest.mark.parametrize("keys", [1, 2, 3, 1000])
def test_the_one_bad_entry_among_many_is_named(keys: int) -> None:
    stages: dict[str, Any] = {f"stage {number}": [number] for number in range(keys)}
    stages[f"stage {keys // 2}"] = [0, None]
    with pytest.raises(PerfOptError, match=rf"samples\[0\]\.by_stage\['stage {keys // 2}'\]\[1\]"):
        read(ONE | {"samples": [{"count": 1, "by_stage": stages}]})


@pytest.mark.parametrize(
    "key", ["a` - at `$.samples[99].count", "x` - at `$.names[...]", "x` - at `key` in `$.samples"]
)
def test_a_key_that_reads_like_a_place_misleads_nobody(key: str) -> None:
    with pytest.raises(PerfOptError, match="malformed at"):
        read(ONE | {key: 1})
    with pytest.raises(PerfOptError, match="malformed at"):
        decode_json(
            json.dumps({"schema_version": 1, "call_counts": {}, "edges": {}, key: 1}).encode(),
            CallGraphFile,
            CALLGRAPH_FILE,
        )


def test_a_file_of_another_version_is_refused_before_its_content_is_looked_at() -> None:
    with pytest.raises(PerfOptError, match="has schema version 4, this program reads version 3"):
        read({"schema_version": 4, "anything": "else"})


def test_a_key_may_be_left_out_only_where_the_kind_allows_it() -> None:
    assert read(ONE).names == {}
    with pytest.raises(PerfOptError, match="expected the key 'names'"):
        read(ONE, replace(KIND, has_every_key=True))


def test_the_bounds_of_a_kind(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ONE))
    with pytest.raises(PerfOptError, match="larger than 20 bytes"):
        read_json(tmp_path / "a.json", Samples, replace(KIND, max_bytes=20))
    with pytest.raises(PerfOptError, match="more than 3 values"):
        read(ONE, replace(KIND, max_elements=3))
    nested: Any = 1
    for _ in range(10):
        nested = [nested]
    with pytest.raises(PerfOptError, match="more than 5 levels"):
        read(ONE | {"names": nested}, replace(KIND, max_levels=5))
    assert decode_json(json.dumps(nested).encode(), Any, FileKind(name="list", fix="", max_levels=10)) == nested  # type: ignore[arg-type]


def test_keys_that_differ_only_in_a_list_of_numbers_are_different_keys() -> None:
    long = ", ".join(["1"] * 40)
    names = {f"a[{long}]": {}, f"a[{long}, 2]": {}}
    assert read(ONE | {"names": names}).names == names


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"schema_version": 3, "samples": [], "samples": []}', "the key 'samples' occurs twice"),
        (b'{"schema_version": 3, "samples": [{"count": 1, "count": 1}]}', "the key 'count' occurs twice"),
        (b'{"schema_version": 3, "names": {"a": {"\\ud800": ""}}}', "half of a surrogate pair"),
        (b'{"schema_version": 3, "samples": [' + b"1," * 100 + b"]}", "Expecting value"),
        (b'{"schema_version": 3, "samples": [' + b"1 " * 100 + b"]}", "Expecting ',' delimiter"),
        (b'{"schema_version": 3, "samples": [' + b"9" * 10_000 + b"]}", "is too large"),
        (b'{"schema_version": 3, "samples": []} {}', "Extra data"),
    ],
)
def test_text_that_is_not_strict_json(raw: bytes, why: str) -> None:
    with pytest.raises(PerfOptError) as caught:
        decode_json(raw, Samples, KIND)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["absent.json", ".", "a\0b"])
def test_what_is_no_file_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(PerfOptError, match="There is no file of samples"):
        read_json(tmp_path / name, Samples, KIND)


def test_a_file_of_another_program_may_hold_what_python_writes(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"limit": Infinity, "a": 1, "a": 2}')
    kind = FileKind(name="configuration", fix="fetch it again", error=UsageError)
    assert read_foreign_json(file, kind) == {"limit": float("inf"), "a": 2}
    for text in ("{", "[" * 100_000, "[" * 100 + "]" * 100, "9" * 10_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="configuration"):
            read_foreign_json(file, kind)


def test_toml_takes_the_same_way() -> None:
    kind = replace(KIND, schema_version=None)
    document = parse_toml(b"samples = [{ count = 1, by_stage = { a = [2] } }]", kind)
    assert as_record(document, Samples, kind) == Samples(samples=(Sample(count=1, by_stage={"a": (2,)}),))
    for raw in (b"samples = [", b"a = 1\na = 2", b"\xff", b"a = " + b"9" * 10_000, b"a = " + b"[" * 10_000):
        with pytest.raises(PerfOptError, match="not valid TOML"):
            parse_toml(raw, kind)
