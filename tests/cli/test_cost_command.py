"""`cost`: sources by name, files that are never overwritten silently, and holes that `--strict` refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.cli.conftest import Run
from tests.cli.stand_ins import FLOPS
from tests.costs.test_static_compute import SCHEMA
from tests.slowness import slowness


def test_the_count_of_every_stage_is_printed(run: Run) -> None:
    code, out, err = run("cost", "stand-in", "--sources", "counted", "--json")
    assert code == 0
    (stages,) = (table for table in json.loads(out)["tables"] if table["title"] == "Stages")
    assert stages["total"]["flops"] == 2 * FLOPS  # prefill and decode
    assert "The report was not saved" in err


def test_a_model_without_closed_forms_is_a_note_and_not_the_end(run: Run) -> None:
    code, out, _ = run("cost", "stand-in", "--sources", "counted,closed-form")
    assert code == 0
    assert "closed-form has no figures for" in out


def test_an_unknown_source_is_refused_before_any_work(run: Run) -> None:
    code, _, err = run("cost", "stand-in", "--sources", "counted,fvcor")
    assert code == 2
    assert "did you mean 'fvcore'?" in err
    assert "Tracing" not in err


def test_the_files_are_written_whole_and_never_twice(run: Run, tmp_path: Path) -> None:
    code, _, err = run("cost", "stand-in", "--sources", "counted", "--out", tmp_path)
    assert code == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"static_compute.json", "static_compute.md", "static_compute.csv", "static_compute.html"}
    assert all(str(tmp_path / name) in err for name in written)
    jsonschema.validate(json.loads((tmp_path / "static_compute.json").read_text()), SCHEMA)
    code, _, err = run("cost", "stand-in", "--sources", "counted", "--out", tmp_path)
    assert code == 1
    assert "--force" in err
    assert run("cost", "stand-in", "--sources", "counted", "--out", tmp_path, "--force")[0] == 0


def test_a_trace_made_earlier_is_counted_again_without_running_anything(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, err = run("cost", tmp_path, "--json")
    assert code == 0
    assert "Tracing" not in err
    (stages,) = (table for table in json.loads(out)["tables"] if table["title"] == "Stages")
    assert stages["total"]["flops"] == 2 * FLOPS


def test_an_op_without_a_price_is_listed_and_refused_by_strict(run: Run) -> None:
    code, out, err = run("cost", "stand-in", "--mode", "odd", "--sources", "counted", "--strict")
    assert code == 1
    assert "odd.scan.default has no price" in out
    assert "--strict was given" in err


def test_a_difference_without_a_cause_is_refused_by_strict(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.core.plugins import SOURCES

    monkeypatch.setitem(SOURCES._entries, "wrong", "tests.cli.stand_ins:WrongSource")
    code, out, err = run("cost", "stand-in", "--sources", "counted,wrong", "--strict")
    assert code == 1
    assert "has no known cause" in " ".join(out.split())
    assert "no known cause" in err


def test_of_a_trace_only_the_sources_that_were_named_are_asked(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, _ = run("cost", tmp_path, "--sources", "closed-form", "--json")
    assert code == 0
    assert "counted" not in out
    assert totals(out)["flops"] is None


@pytest.mark.parametrize("words", [("--batch", "16"), ("--routing", "one"), ("--dtype", "float32"), ("--mode", "odd")])
def test_an_option_that_a_trace_cannot_have_is_refused(run: Run, tmp_path: Path, words: tuple[str, str]) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, err = run("cost", tmp_path, *words)
    assert (code, out) == (2, "")
    assert f"A saved trace does not take {words[0]}." in err


def totals(out: str) -> dict[str, object]:
    (table,) = (table for table in json.loads(out)["tables"] if table["title"] == "Totals")
    (row,) = table["rows"]
    return dict(row)


def test_a_trace_that_stopped_half_way_is_no_total(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--mode", "broken-decode", "--out", tmp_path)[0] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["decode.partial.callgraph.json"]
    code, out, _ = run("cost", tmp_path, "--sources", "counted", "--json")
    assert code == 0
    assert totals(out)["flops"] is None
    assert "counted has no figures for decode (decode): the run stopped in head, and what follows is missing." in out
    assert run("cost", tmp_path, "--strict")[0] == 1


def test_an_older_trace_of_the_phase_that_stopped_is_no_total_either(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    assert run("trace", "stand-in", "--mode", "broken-decode", "--out", tmp_path, "--force")[0] == 1
    assert len(list(tmp_path.iterdir())) == 3
    code, out, _ = run("cost", tmp_path, "--json")
    assert (code, totals(out)["flops"]) == (0, None)


def test_a_model_that_raises_in_the_decode_keeps_its_prefill(run: Run) -> None:
    code, out, _ = run("cost", "stand-in", "--mode", "broken-decode", "--sources", "counted", "--json")
    assert code == 0
    (stages,) = (table for table in json.loads(out)["tables"] if table["title"] == "Stages")
    assert [(row["stage"], row["flops"]) for row in stages["rows"]] == [
        ("head", FLOPS),
        ("prefill", 0),
        ("decode", None),
    ]
    assert totals(out)["flops"] is None
    assert (
        "counted has no figures for decode (decode): The model raised RuntimeError in module head. no decode today"
        in out
    )
    (memory,) = (chapter for chapter in json.loads(out)["chapters"] if chapter["title"] == "Does it fit?")
    assert [row["phase"] for row in memory["tables"][0]["rows"]] == ["prefill"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--mode", "broken", "--sources", "counted"), "counted has no figures for prefill (prefill)."),
        (("--mode", "broken-decode", "--sources", "counted"), "counted has no figures for decode (decode)."),
        (("--sources", "closed-form"), "closed-form has no figures for total (total)."),
        (("--sources", "counted,closed-form"), "closed-form has no figures for total (total)."),
    ],
)
def test_strict_does_not_pass_what_is_not_known(run: Run, words: tuple[str, ...], told: str) -> None:
    code, _, err = run("cost", "stand-in", *words, "--strict")
    assert code == 1
    assert told in err


def test_strict_wants_no_answer_of_a_source_that_nobody_named(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, _ = run("cost", tmp_path, "--strict")
    assert code == 0
    assert "closed-form has no figures for" in out


def test_strict_wants_a_total(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that tells one phase in full and has no figure for the other."""
    from llm_perf_opt.core.plugins import SOURCES

    monkeypatch.setitem(SOURCES._entries, "vague", "tests.cli.stand_ins:VagueSource")
    code, _, err = run("cost", "stand-in", "--sources", "vague", "--strict")
    assert code == 1
    assert "The total is unknown." in err


def test_a_source_that_left_something_out_is_no_total_and_refused_by_strict(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_perf_opt.core.plugins import SOURCES

    monkeypatch.setitem(SOURCES._entries, "partial", "tests.cli.stand_ins:PartialSource")
    code, out, _ = run("cost", "stand-in", "--sources", "partial", "--json")
    assert code == 0
    assert (totals(out)["flops"], totals(out)["macs"]) == (None, None)
    assert totals(out)["flops_at_least"] == FLOPS + FLOPS - 20
    (stages,) = (table for table in json.loads(out)["tables"] if table["title"] == "Stages")
    assert [row["flops"] for row in stages["rows"]] == [FLOPS, None]
    assert stages["total"]["flops"] is None
    code, out, err = run("cost", "stand-in", "--sources", "partial", "--strict")
    assert code == 1
    told = " ".join(out.split())
    assert (
        "decode (decode): FLOPs unknown, at least 100 FLOP by partial, which leaves out 20 FLOP of odd.attend." in told
    )
    assert "The total is unknown." in err
    assert "--strict was given, and partial leaves out 20 FLOP of odd.attend in decode (decode)" in err
    assert "add a source that sees everything: --sources counted\n" in err


def test_strict_refuses_a_named_source_that_left_something_out_beside_one_that_did_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage has the figure of the count; the other one has its list."""
    from llm_perf_opt.core.plugins import SOURCES

    monkeypatch.setitem(SOURCES._entries, "partial", "tests.cli.stand_ins:PartialSource")
    code, out, err = run("cost", "stand-in", "--sources", "counted,partial", "--strict")
    assert code == 1
    assert "partial left something out, or added something, in 1 of" in err
    assert "leaves out 20 FLOP of odd.attend in decode (decode)" in err
    assert "Sources that left something out" in out
    code, out, _ = run("cost", "stand-in", "--sources", "counted,partial", "--json")
    assert code == 0
    assert totals(out)["flops"] is not None
    tables = {table["title"]: table["rows"] for table in json.loads(out)["tables"]}
    (decode,) = (row for row in tables["FLOPs by source"] if row["stage"] == "decode")
    assert (decode["taken_from"], decode["partial_flops"]) == ("counted", None)
    (row,) = tables["Sources that left something out"]
    assert (row["flops_at_least"], row["ops_left_out"]) == (FLOPS - 20, 2)


def test_one_source_alone_says_so(run: Run) -> None:
    code, out, _ = run("cost", "stand-in", "--sources", "counted", "--strict", "--verbose")
    assert code == 0
    assert "One source: counted." in out.split("\n\n")[0]
    assert "counted is the only source, so nothing was compared." in out


CLOSED_FORM = """
import sys, time
sys.argv = ["llm-perf-opt", "cost", "deepseek-ocr", "--image", "1240x1754", "--sources", "closed-form", "--json"]
from llm_perf_opt.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = sorted({"torch", "numpy", "PIL", "transformers"} & set(sys.modules))
print(time.process_time(), *heavy, file=sys.stderr)
"""


def test_closed_forms_need_no_torch_and_half_a_second() -> None:
    """CPU time from the start of the interpreter. Other work on the machine lengthens it, so one of a dozen counts."""
    for _ in range(12):
        done = subprocess.run([sys.executable, "-c", CLOSED_FORM], capture_output=True, text=True, check=True)
        seconds, *heavy = done.stderr.splitlines()[-1].split()
        assert heavy == []
        if float(seconds) < (limit := 0.5 * slowness()):
            break
    (stages,) = (table for table in json.loads(done.stdout)["tables"] if table["title"] == "Stages")
    assert {row["stage"] for row in stages["rows"]} == {"sam", "clip", "projector", "prefill", "decode"}
    assert float(seconds) < limit
