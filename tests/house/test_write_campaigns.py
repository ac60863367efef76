"""Slices of the campaigns on writes, kills and interrupts find nothing, and their checks find what is planted."""

from __future__ import annotations

import errno
import random
import signal
from pathlib import Path

import pytest

from llm_perf_opt.core import output_files
from scripts.campaigns import study_faults, verb_faults, writers
from scripts.campaigns.run_faults import quiet_streams, traced
from scripts.campaigns.stand_in import make_target, plain_model
from scripts.campaigns.verbs import VERBS, Ended, half_files, is_whole, restore, results, temporaries, workplace


def in_place(path: Path, pieces: list[bytes]) -> None:
    """A write that is not whole: it truncates the old file first."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)


@pytest.mark.slow  # a tiny model is traced, and torch is loaded
def test_faults_and_kills_at_writes_leave_whole_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with workplace(("trace", "graph")) as place:
        for verb in ("trace", "graph"):
            row = verb_faults.fault_row(verb, place, 5, random.Random(1))
            assert (row.tried, row.findings) == (5, [])
        row = verb_faults.kill_row("graph", place, 4, random.Random(1))
        assert (row.tried, row.findings) == (4, [])
        row = verb_faults.interrupted_row("graph", place, 2, random.Random(1))
        assert (row.tried, row.findings) == (2, [])
        monkeypatch.setattr(
            "llm_perf_opt.cli.graph_command.write_result", lambda file, text: in_place(file, [text.encode()])
        )
        row = verb_faults.fault_row("graph", place, None, random.Random(1))
        assert any("half a file" in finding for finding in row.findings)


def test_an_interrupt_in_process_leaves_torch_as_it_was() -> None:
    module = plain_model()
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    try:
        with quiet_streams():
            row = verb_faults.pressed_in_process(
                "weightless", lambda: traced("weightless", make_target()), module, 12, random.Random(2)
            )
    finally:
        signal.signal(signal.SIGINT, found)
    assert (row.tried, row.findings) == (12, [])


def test_half_files_and_temporaries_are_seen(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    old = {"graph.html": b"<html></html>", "run/decode.callgraph.json": b"{}\n"}
    restore(tmp_path, old)
    assert results(tmp_path) == old
    assert list(half_files(tmp_path, old)) == []
    (tmp_path / "graph.html").write_bytes(b"<html></ht")
    (tmp_path / "run" / "decode.callgraph.json").write_bytes(b"{")
    assert len(list(half_files(tmp_path, old))) == 2
    with output_files.temporary_path(tmp_path / "run") as path:
        path.touch()
        assert temporaries(tmp_path) == [f"run/{path.name}"]
    (tmp_path / "tmp" / "tmpabc").mkdir()
    assert temporaries(tmp_path) == ["tmp/tmpabc"]
    assert not is_whole("operators.csv", b"a,b\n1,")


def test_ends_that_are_wrong_are_seen() -> None:
    assert list(verb_faults.interrupted(Ended(code=130, out="", err="Interrupted.\n"))) == []
    assert len(list(verb_faults.interrupted(Ended(code=1, out="", err="Aborted!\n")))) == 1
    traceback = "Traceback (most recent call last):\nKeyboardInterrupt\n"
    assert len(list(verb_faults.interrupted(Ended(code=-2, out="", err=traceback)))) == 2
    assert Ended(code=1, out="", err="error: x\n  why: y\n  fix: z").is_told
    assert not Ended(code=1, out="", err="error: x").is_told


def test_the_plan_counts_and_acts_at_files_below_its_place(tmp_path: Path) -> None:
    def act() -> None:
        raise OSError(errno.EIO, "planned")

    (tmp_path / "place").mkdir()
    with verb_faults.planned(tmp_path / "place") as plan:
        output_files.write_whole(tmp_path / "place" / "file", [b"1"])
        output_files.write_whole(tmp_path / "elsewhere", [b"1"])
    assert {kind: plan.counts[kind] for kind in ("open", "rename")} == {"open": 1, "rename": 1}
    with pytest.raises(OSError, match="planned"), verb_faults.planned(tmp_path / "place", ("open", 1), act):
        (tmp_path / "place" / "file").write_bytes(b"2")


@pytest.mark.slow  # tiny models are traced
def test_every_writer_leaves_whole_files(tmp_path: Path) -> None:
    """Kills, two writers, a full disk, errors: some cases of each."""
    (tmp_path / "inputs").mkdir()
    content = writers.made(tmp_path / "inputs")
    for name, make in writers.WRITERS.items():
        row = writers.attacked(name, make(content), tmp_path / "written", 10, random.Random(f"3 {name}"))
        assert (row.tried, row.findings) == (10, []), name


def test_a_writer_that_is_not_whole_is_found(tmp_path: Path) -> None:
    plain = writers.attacked(
        "in place", lambda place: in_place(place / "a", [b"x" * 900] * 9), tmp_path / "written", 20, random.Random(1)
    )
    assert any("OSError" in finding for finding in plain.findings), "an error without a remedy"
    assert any("half a file" in finding for finding in plain.findings)
    kept = writers.attacked(
        "whole",
        lambda place: output_files.write_whole(place / "a", [b"x" * 900] * 9),
        tmp_path / "b",
        20,
        random.Random(1),
    )
    assert kept.findings == []


def test_the_full_campaigns_are_as_large_as_promised() -> None:
    assert writers.FULL >= 1_000
    assert study_faults.KILLS[False] >= 200 and study_faults.PAIRS[False] >= 20
    assert sum(verb_faults.KILLS.values()) >= 200
    assert verb_faults.KILLS.keys() == VERBS.keys()
    count = sum(verb_faults.HERE.values()) + verb_faults.CHILDREN * len(VERBS) + verb_faults.STARTS
    assert count >= 500
