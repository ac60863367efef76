"""The page beside other tools is its record, and what it says of this project comes out again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer_probes.environment import PEERS, SUBJECTS, names_about, reason
from benchmarks.peer_probes.probes import own_count as count
from benchmarks.peer_probes.probes import torch_count
from benchmarks.peer_probes.questions import EXACT_FLOPS, Asked
from benchmarks.peers import page_of, short_table

ROOT = Path(__file__).parents[2]
RECORD: dict[str, Any] = json.loads((ROOT / "docs" / "data" / "peers.json").read_text())
PAGE = (ROOT / "docs" / "evidence" / "other-tools.md").read_text(encoding="utf-8")


def test_the_page_is_the_record() -> None:
    assert page_of(RECORD) == PAGE


def test_the_short_table_has_a_row_per_tool() -> None:
    rows = short_table(RECORD).splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [peer.title for peer in PEERS.values()]
    assert short_table(RECORD) in PAGE


def test_every_tool_has_a_row_or_a_reason() -> None:
    assert RECORD["peers"].keys() == PEERS.keys()
    for told in RECORD["peers"].values():
        assert told.get("failure") or told["runs"]
        assert all(row.get("reason") for row in told["runs"] if row["status"] != "ok")


def test_a_tool_that_is_missing_has_a_row_with_the_reason() -> None:
    without = RECORD | {"peers": RECORD["peers"] | {"llm-viewer": {"failure": "no package", "runs": []}}}
    assert "| LLM-Viewer | not asked: no package |" in short_table(without)
    assert page_of(without).count("no package |") == 3


def test_a_tool_that_answers_without_flops_is_not_one_that_gives_no_answer() -> None:
    """aiconfigurator answered for the language model, with times; it does not know the other one."""
    (row,) = (row for row in short_table(RECORD).splitlines() if row.startswith("| aiconfigurator"))
    cells = row.split(" | ")
    assert (cells[1], cells[3]) == ("counts no FLOPs", "no answer")


def test_the_exact_counts_are_still_the_closed_forms() -> None:
    assert RECORD["exact_flops"] == {name: exact() for name, exact in EXACT_FLOPS.items()}


def test_this_project_counted_every_subject_exactly() -> None:
    counts = [row for row in RECORD["peers"]["llm-perf-opt"]["runs"] if row["question"] == "count"]
    without_weights = {row["subject"]: row.get("flops") for row in counts if row["weights"] == "none"}
    assert without_weights == RECORD["exact_flops"]


@pytest.mark.parametrize("name", ["fused-attention", "direct-call", "experts"])
def test_a_small_subject_comes_out_again(name: str) -> None:
    assert count(Asked(name, "none")).flops == EXACT_FLOPS[name]()


@pytest.mark.parametrize("name", ["fused-attention", "direct-call", "experts"])
def test_torchs_counter_says_again_what_the_record_says(name: str) -> None:
    (row,) = (
        row
        for row in RECORD["peers"]["torch-counter"]["runs"]
        if (row["question"], row["subject"], row["weights"]) == ("count", name, "random")
    )
    assert torch_count(Asked(name, "random")).flops == row["flops"]


def test_no_place_on_a_disk_is_told() -> None:
    assert re.findall(r"/(?:tmp|home|root|opt|work|usr)/", PAGE) == []


def test_a_reason_is_the_first_error_without_its_place() -> None:
    stderr = (
        "Traceback (most recent call last):\nValueError: no file at /srv/someone/model/config.json\n"
        "The above exception was the direct cause:\nRuntimeError: failed, see above\n"
    )
    assert reason(stderr) == "ValueError: no file at config.json"
    assert reason("killed\n") == "killed"


def test_names_are_looked_for_in_definitions_alone(tmp_path: Path) -> None:
    source = "class Summary:\n    total_bytes: int\n    def _latency(self): ...\ndef draw(): memory = 1\n"
    (tmp_path / "tool.py").write_text(source)
    assert names_about(tmp_path) == {key: [] for key in SUBJECTS} | {"memory": ["total_bytes"], "picture": ["draw"]}
