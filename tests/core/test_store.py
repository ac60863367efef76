"""Entries of the cache: found by their key alone, whole or not at all, and never in the way."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_perf_opt.core import store

KEY = "a" * 64


@dataclass(frozen=True)
class Answer:
    seconds: tuple[float, ...]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


def answered(seconds: float, ingredients: dict[str, object] | None = None) -> tuple[Answer, bool]:
    """The answer to a question, and whether it was made now."""
    made: list[bool] = []

    def make() -> Answer:
        made.append(True)
        return Answer((seconds, 1 / 3))

    asked = {"of": "it"} if ingredients is None else ingredients
    return store.stored_record("answers", asked, "an answer", Answer, make), bool(made)


def test_the_second_question_is_answered_from_the_first(folder: Path) -> None:
    assert answered(0.1) == (Answer((0.1, 1 / 3)), True)
    assert answered(0.7) == (Answer((0.1, 1 / 3)), False)
    assert answered(0.7, {"of": "another"}) == (Answer((0.7, 1 / 3)), True)
    assert [(entry.kind, entry.about) for entry in store.entries()] == [("answers", "an answer")] * 2


def test_a_program_or_library_that_changed_finds_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(0.1)
    monkeypatch.setattr(store, "program_digest", lambda: "another")
    assert answered(0.7)[1]


def test_the_digest_of_the_program_changes_with_each_source_and_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(store, "_PACKAGE", tmp_path)
    found = [store.program_digest.__wrapped__()]
    os.utime(source, (1, 1))
    found.append(store.program_digest.__wrapped__())
    (tmp_path / "b.py").write_text("")
    found.append(store.program_digest.__wrapped__())
    monkeypatch.setattr(store, "installed_version", lambda name: "9.9" if name == "torch" else "1")
    found.append(store.program_digest.__wrapped__())
    monkeypatch.setattr(store, "installed_version", lambda name: "9.9" if name == "transformers" else "1")
    found.append(store.program_digest.__wrapped__())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("damage", ["one byte", "cut", "empty", "another file", "no header", "not packed"])
def test_a_damaged_entry_is_made_again_with_a_warning(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    answered(0.1)
    (file,) = folder.glob("*/*")
    raw = file.read_bytes()
    header, _, packed = raw.partition(b"\n")
    file.write_bytes(
        {
            "one byte": raw[:-1] + bytes([raw[-1] ^ 1]),
            "cut": raw[:-4],
            "empty": b"",
            "another file": b"\x89PNG\r\n\x1a\n" + bytes(64),
            "no header": b"[]\n" + packed,
            "not packed": header.replace(b'"format": 1', b'"format": 2') + b"\n" + packed,
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        assert answered(0.7) == (Answer((0.7, 1 / 3)), True)
    assert "It is made again." in caplog.text
    assert answered(0.9) == (Answer((0.7, 1 / 3)), False)


def test_an_entry_of_another_record_is_made_again(folder: Path) -> None:
    store.keep_entry("answers", store.entry_key("answers", {"of": "it"}), "an answer", b"\x81\xa1x\x01")
    assert answered(0.7)[1]


def test_switched_off_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, "off")
    assert answered(0.1)[1]
    assert answered(0.1)[1]
    assert not folder.exists()


def test_a_question_without_ingredients_is_never_kept(folder: Path) -> None:
    store.stored_record("answers", None, "an answer", Answer, lambda: Answer(()))
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("a file where the folder should be")
    assert answered(0.1) == (Answer((0.1, 1 / 3)), True)
    assert "not kept" in caplog.text


def test_beyond_the_limit_the_entry_unused_for_longest_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        store.keep_entry("answers", str(number) * 64, str(number), os.urandom(1000))
        os.utime(folder / "answers" / f"{str(number) * 64}{store.SUFFIX}", (number, number))
    store.find_entry("answers", "0" * 64, bytes)  # used again: now the newest
    monkeypatch.setattr(store, "MOST_BYTES", 4500)
    store.keep_entry("answers", "4" * 64, "4", os.urandom(1000))
    assert sorted(entry.about for entry in store.entries()) == ["0", "3", "4"]


def test_clearing_removes_every_entry(folder: Path) -> None:
    answered(0.1)
    count, size_bytes = store.clear()
    assert (count, size_bytes > 0, store.entries()) == (1, True, [])


def _written(number: int) -> int:
    """In a process of its own: the same few entries as every other process, each read back."""
    for turn in range(20):
        key = f"{turn % 3:064d}"
        store.keep_entry("answers", key, "shared", b"content %d" % (turn % 3))
        assert store.find_entry("answers", key, bytes) in (b"content %d" % (turn % 3), None)
    return number


def test_several_processes_write_and_read_the_same_entries(folder: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(_written, range(4))) == [0, 1, 2, 3]
    assert len(store.entries()) == 3
