"""The hash of what a trace rests on: bounded, whatever lies in a model folder, and told apart by content and name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.sweeps.studies.tasks import content_hash


def test_the_hash_is_of_names_sizes_and_bytes_of_configuration_and_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "weights.bin").write_bytes(b"not read")
    expected = hashlib.sha256(b"config.json\x002\x00{}").hexdigest()
    assert content_hash(str(tmp_path)) == expected
    assert content_hash(str(tmp_path / "config.json")) == expected
    (tmp_path / "modeling.py").write_bytes(b"x = 1")
    assert content_hash(str(tmp_path)) == hashlib.sha256(b"config.json\x002\x00{}modeling.py\x005\x00x = 1").hexdigest()


def test_a_file_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        os.truncate(file.fileno(), 2**40)  # takes no room on the disk
    with pytest.raises(UsageError, match="is larger than 268,435,456 bytes"):
        content_hash(str(tmp_path))


@pytest.mark.parametrize("source", ["x" * 5000, "a/" * 3000, "a\0b", "org/name"])
def test_a_text_that_names_no_file_has_no_hash(source: str) -> None:
    assert content_hash(source) is None


def test_a_file_whose_name_is_no_text_has_one(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    (tmp_path / name).write_bytes(b"{}")
    assert content_hash(str(tmp_path)) == hashlib.sha256(b"\xff.json\x002\x00{}").hexdigest()
