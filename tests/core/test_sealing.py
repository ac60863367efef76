"""A seal breaks with any byte before it, and only with those."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import SEAL_KEY, check_seal, sealed_lines, sealed_text, split_seal
from llm_perf_opt.core.reading import FileKind, decode_json

KIND = FileKind(name="file of samples", fix="measure again", is_sealed=True)
DOCUMENT = {"name": "a", "values": [1, 2.5], "inner": {"empty": {}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: str
    values: list[float]
    inner: dict[str, dict[str, int]]


def decoded(raw: bytes) -> dict[str, object]:
    return decode_json(raw, dict[str, object], KIND)


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_a_sealed_text_reads_as_without_its_seal(indent: int | None) -> None:
    text = sealed_text(json.dumps(DOCUMENT, indent=indent))
    assert json.loads(text).keys() == {*DOCUMENT, SEAL_KEY}
    assert decoded(text.encode()) == DOCUMENT


def test_the_seal_is_the_digest_of_every_byte_before_it() -> None:
    """As `sha256sum` works it out, from the first byte up to the quote of the key."""
    raw = b"".join(sealed_lines(DOCUMENT))
    before, _, _ = raw.partition(f'"{SEAL_KEY}"'.encode())
    assert json.loads(raw)[SEAL_KEY] == hashlib.sha256(before).hexdigest()
    check_seal(raw, KIND)
    check_seal(raw + b" \n", KIND)


def test_each_single_byte_matters() -> None:
    """In a record of fixed keys: in one of any keys, a seal whose name is damaged is one more key."""
    raw = sealed_text(json.dumps(DOCUMENT, indent=1)).encode()
    end = raw.index(b"}\n", raw.index(SEAL_KEY.encode()))
    passed = []
    for place in range(end):
        for other in (0x30, 0x31, 0x20, 0x22, raw[place] ^ 1, raw[place] ^ 0x20):
            changed = raw[:place] + bytes([other]) + raw[place + 1 :]
            try:
                found = asdict(decode_json(changed, Sample, KIND))
            except PerfOptError:
                continue
            if changed != raw and found == DOCUMENT:
                passed.append(place)  # white space within the seal itself
            assert found == DOCUMENT
    assert all(raw[place : place + 1].isspace() for place in passed)


def test_the_error_says_what_to_do_about_a_change_that_was_meant() -> None:
    raw = sealed_text(json.dumps(DOCUMENT)).encode()
    with pytest.raises(PerfOptError, match="was changed after it was written") as refusal:
        decoded(raw.replace(b"2.5", b"2.6"))
    assert "measure again" in refusal.value.fix
    assert SEAL_KEY in refusal.value.fix
    body, _ = split_seal(raw.replace(b"2.5", b"2.6"))
    assert decoded(body)["values"] == [1, 2.6]


def test_nothing_can_be_added_behind_the_seal() -> None:
    raw = sealed_text(json.dumps(DOCUMENT)).rstrip()[:-1].encode() + b', "more": 1}'
    with pytest.raises(PerfOptError, match="was changed"):
        decoded(raw)


def test_the_word_itself_may_be_a_value() -> None:
    document = {"name": SEAL_KEY, "values": [SEAL_KEY]}
    assert decoded(json.dumps(document).encode()) == document
    assert decoded(sealed_text(json.dumps(document)).encode()) == document


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", "1", "{ }"])
def test_only_an_object_that_holds_something_is_sealed(text: str) -> None:
    with pytest.raises(ValueError, match="only a JSON object"):
        sealed_text(text)


@pytest.mark.parametrize("is_ascii", [True, False])
def test_half_of_a_surrogate_pair_is_spelled_out(is_ascii: bool) -> None:
    """No reader takes one. Whole characters beyond 16 bits, which JSON writes as a pair, stay."""
    names = {"half\ud800": 1, "low\udcff": 2, "\U0001f600": 3, "\\ud800": 4, "caf\u00e9": 5}
    raw = sealed_text(json.dumps(names, ensure_ascii=is_ascii)).encode()
    assert list(decoded(raw)) == ["half\\ud800", "low\\udcff", "\U0001f600", "\\ud800", "caf\u00e9"]
    assert list(json.loads(b"".join(sealed_lines({"names": names})))["names"]) == list(decoded(raw))
