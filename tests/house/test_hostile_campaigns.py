"""A slice of the campaigns with hostile files and names finds nothing, and their checks find what is planted."""

from __future__ import annotations

import json
import pickle
import runpy
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import sealed_text, split_seal
from scripts.campaigns import hostile_files, hostile_names
from scripts.campaigns.file_kinds import Kind, file_kinds
from scripts.campaigns.hostile_names import CRAFTED, PLACES, unseen
from scripts.campaigns.hostile_names import hostile_names as made_names

pytest.importorskip("safetensors", reason="weights are one of the kinds of files")
pytest.importorskip("transformers", reason="so is the configuration of a folder")
pytest.importorskip("hydra", reason="Hydra values are one of the texts")
pytest.importorskip("duckdb", reason="the extra `study` is not installed")

MUTATIONS = 150
NAMES = (
    "\x1b]0;t\x07",
    "\u202egpj",
    "</script><script>x</script>",
    '"]; A -> B; "',
    "=1+1",
    "two\nlines",
    "\ud800",
    "`|\\",
)
KINDS = (
    *("call graph", "static costs", "grouped view", "function", "calibration", "metrics", "request of a run"),
    *(
        "page of a run",
        "environment of a run",
        "operators of a run",
        "operators of a run, digest",
        "device table",
        "expert counts",
        "plan rules",
    ),
    *(
        "config.json of a folder",
        "config.json of DeepSeek-OCR",
        "hf_quant_config.json",
        "index of weights",
        "weights",
        "tokenizer.json",
    ),
    *("image", "list of pages", "config.json, traced", "operators of a run, with a new digest"),
    *("Chrome trace", "Chrome trace, packed", "Nsight database", "Nsight table, JSON", "Nsight table, CSV"),
    *("older call graph, totals", "older call graph, rows", "older call graph, events alone"),
    *("runtime log of an older call graph", "weights of a part", "weights of a part, header alone"),
    "weights of a part, index",
    "entry of the cache",
)
SERVED = (
    "measurement, vllm bench serve",
    "measurement, genai-perf",
    "measurement, guidellm",
    "measurement, metrics of vLLM",
    "measurement, log of steps",
    "measurement, TOML",
    "measurement, CSV",
    "traffic, vllm bench serve",
    "traffic, lines.jsonl",
    "traffic, table.csv",
    "traffic, distribution.toml",
    "list of lengths",
    "list of page sizes",
    "line of traffic",
    "line of figures",
    "range of numbers",
    "size of a page",
    "message of an engine's process",
    "name of vLLM's Python",
)
STUDIES = (
    *("part of a study", "part of a study, with a new digest", "manifest of a study"),
    *("manifest of a study, sealed anew", "line of SQL", "study file", "override of a study", "question to a study"),
)
TABLES = ("wheel of tables", "table of kernels", "list of added tables", "list of added tables, without seal")
NEVER_REFUSED = ("lease of a study",)  # whatever a dead run left in it, the next one takes over
UNSEALED = tuple(f"{name}, without seal" for name in (*KINDS[:9], "any result"))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kind]]:
    with hostile_files.quiet():
        yield {kind.name: kind for kind in file_kinds(tmp_path_factory.mktemp("kinds"))}


def test_every_kind_is_attacked(kinds: dict[str, Kind]) -> None:
    assert set(kinds) == {*KINDS, *UNSEALED, *SERVED, *STUDIES, *TABLES, *NEVER_REFUSED, "any result"}
    sealed = {name for name, kind in kinds.items() if kind.is_sealed}
    assert sealed == {
        *KINDS[:11],
        "any result",
        "entry of the cache",
        "part of a study",
        "manifest of a study",
        "list of added tables",
    }


@pytest.mark.parametrize("name", [*KINDS, "any result", *UNSEALED, *SERVED, *STUDIES, *TABLES, *NEVER_REFUSED])
def test_hostile_files_are_refused_or_read_as_they_are(kinds: dict[str, Kind], name: str) -> None:
    with hostile_files.quiet():
        tally = hostile_files.attack(kinds[name], MUTATIONS, 7, hostile_files.others_of(kinds[name], kinds.values()))
    assert tally.findings == []
    assert tally.tried == MUTATIONS // kinds[name].one_in
    # A line or a log is often another good one.
    assert name in (*SERVED, *NEVER_REFUSED) or tally.refused >= tally.tried // 4


GOOD = sealed_text(json.dumps({"calls": 17, "name": "a"})).encode()


def test_damage_that_a_reader_lets_pass_is_found() -> None:
    """A reader that forgets the seal takes another digit for the number."""

    def careless(raw: bytes) -> object:
        try:
            return json.loads(split_seal(raw)[0])
        except (ValueError, RecursionError) as error:
            raise PerfOptError("bad", why=str(error)[:100], fix="none") from error

    kind = Kind(name="careless", good=GOOD, read=careless, is_sealed=True)
    found = hostile_files.attack(kind, 200, 0, [])
    assert any("changed" in finding for finding in found.findings)
    assert hostile_files.attack(replace(kind, is_sealed=False), 200, 0, []).findings == []


def test_a_traceback_is_found_and_says_where() -> None:
    found = hostile_files.attack(Kind(name="frank", good=GOOD, read=json.loads), 50, 0, [])
    assert any("JSONDecodeError at decoder.py" in finding for finding in found.findings)


def test_a_reader_that_runs_something_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("x = 1\n")
    runs: dict[str, Callable[[bytes], object]] = {
        "subprocess.Popen": lambda raw: subprocess.run(["true"], check=True).returncode,
        "pickle.find_class": lambda raw: pickle.loads(pickle.dumps(Path)),
        "the code in": lambda raw: runpy.run_path(str(planted))["x"],
    }
    for what, read in runs.items():
        found = hostile_files.attack(Kind(name="runs", good=GOOD, read=read), 3, 0, [])
        assert len(found.findings) == 3
        assert all(f"it ran {what}" in finding for finding in found.findings)


def test_every_kind_is_attacked_a_thousand_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that takes twenty times as long as others; a sample stays as small as it is."""
    slow = Kind(name="slow", good=GOOD, read=len, one_in=20)
    monkeypatch.setattr(hostile_files, "file_kinds", lambda folder: [slow])
    monkeypatch.setattr(hostile_files, "attack", lambda kind, count, seed, others: count // kind.one_in)
    assert list(hostile_files.tallies(hostile_files.FULL, 0)) == [1_000]
    assert list(hostile_files.tallies(hostile_files.QUICK, 0)) == [3]


def test_an_error_without_a_remedy_is_found() -> None:
    def terse(raw: bytes) -> object:
        if raw != GOOD:
            raise PerfOptError("bad", why="", fix="")
        return 1

    found = hostile_files.attack(Kind(name="terse", good=GOOD, read=terse), 10, 0, [])
    assert found.findings
    assert all("does not say what, why" in finding for finding in found.findings)


def test_the_same_seed_gives_the_same_damage() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        given: list[bytes] = []
        hostile_files.attack(Kind(name="seen", good=GOOD, read=given.append), 40, 3, [])
        seen.append(given)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 30


def test_the_row_says_what_became_of_the_files() -> None:
    kind = Kind(name="made", good=GOOD, read=json.loads, is_sealed=True)
    tally = hostile_files.Tally(kind=kind, refused=9_000, same=999, changed=0, findings=["x"])
    assert (tally.row().what, tally.row().tried) == ("made (sealed): 9,000 refused, 999 read the same", 10_000)


@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES[2:], marks=pytest.mark.slow)], ids=["some", "more"])
def test_hostile_names_in_every_output(names: tuple[str, ...]) -> None:
    rows = hostile_names.output_rows(list(names))
    assert [finding for row in rows for finding in row.findings] == []
    assert sum(row.tried for row in rows) == len(names) * len(hostile_names.OUTPUTS)
    for output in ("drawing png", "drawing of --only svg", "join report html", "pages report csv"):
        assert output in hostile_names.OUTPUTS


def test_outputs_that_differ_in_format_alone_share_a_row() -> None:
    grouped = hostile_names._grouped({"trace file": [], "report text": ["a"], "report csv": ["b", "c"]})
    assert grouped == {"trace file": [[]], "report in 2 formats: text, csv": [["a"], ["b", "c"]]}


def test_a_picture_may_be_refused_with_a_reason_and_nothing_else_may() -> None:
    refusal = PerfOptError("It cannot be drawn.", why="a control character", fix="draw another")
    plain: tuple[set[str], object] = (set(), True)
    assert list(hostile_names._faults("TorchLens picture png", refusal, plain)) == []
    assert list(hostile_names._faults("TorchLens picture png", PerfOptError("No.", why="", fix=""), plain))
    assert list(hostile_names._faults("drawing png", refusal, plain))


def test_another_whole_file_of_the_same_kind_is_no_damage(kinds: dict[str, Kind]) -> None:
    older = kinds["older call graph, totals"]
    assert older.good not in hostile_files.others_of(kinds["call graph"], kinds.values())
    assert older.good in hostile_files.others_of(kinds["metrics"], kinds.values())
    assert kinds["metrics"].good not in hostile_files.others_of(kinds["any result"], kinds.values())


@pytest.mark.parametrize("place", PLACES)
def test_hostile_texts_on_the_terminal(place: str) -> None:
    for name in NAMES[:3]:
        assert unseen(PLACES[place](name)) == ""


def test_an_output_that_obeys_a_name_is_found() -> None:
    plain = hostile_names._seen("report html", "<html><script>1</script><p>plain</p></html>")
    for bad in ("<p><script>x</script></p>", "<p onclick=x>", "<img src=x>", "<a href='javascript:x'>", "\x1b"):
        made = f"<html><script>1</script><p>{bad}</p></html>"
        assert list(hostile_names._faults("report html", made, plain)), bad
    plain = hostile_names._seen("report csv", "a,b\n")
    assert list(hostile_names._faults("report csv", "a,=1\n", plain))
    plain = hostile_names._seen("drawing dot", 'digraph { b1 [label="x"]; }\n')
    assert list(hostile_names._faults("drawing dot", 'digraph { b1 [label="x"]; A -> B; "y"]; }\n', plain))
    plain = hostile_names._seen("drawing svg", "<svg><text>x</text></svg>")
    assert list(hostile_names._faults("drawing svg", "<svg><text><b>x</b></text></svg>", plain))
    assert list(hostile_names._faults("drawing svg", "<svg><text></svg>", plain))
    assert list(hostile_names._faults("drawing png", KeyError("x"), plain))


def test_there_are_enough_names_and_no_two_are_alike() -> None:
    names = made_names(200, 1)
    assert len(set(names)) == 200
    assert set(CRAFTED) <= set(names)
    assert made_names(200, 1) == names


def test_a_text_that_a_terminal_obeys_is_found() -> None:
    assert unseen("plain\n") == ""
    assert unseen("a\x1b[31m") == "holds '\\x1b'"
    assert unseen("\u202e") == "holds '\\u202e'"


def test_files_of_one_run_do_not_touch_the_next(tmp_path: Path) -> None:
    """A reader gets what it is given, whatever lay there before."""
    (first, *_) = (kind for kind in file_kinds(tmp_path) if kind.name == "metrics")
    expected = first.read(first.good)
    with pytest.raises(PerfOptError):
        first.read(b"{")
    assert first.read(first.good) == expected
