"""`graph`: what goes to stdout and what to a file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import write_callgraph
from llm_perf_opt.core.plugins import DRAWINGS
from tests.cli.conftest import Run
from tests.costs.small_run import small_run


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for phase in ("prefill", "decode"):
        write_callgraph(small_run(phase=phase), folder / f"{phase}.callgraph.json", overwrite=False)
    return folder


def test_text_to_stdout_by_default(run: Run, traces: Path) -> None:
    code, out, err = run("graph", traces)
    assert (code, err) == (0, "")
    assert out.startswith("small prefill: ")
    assert "Module @ encoder" in out
    assert "parfor 2" in out


def test_a_phase_of_a_run_and_a_file_alone(run: Run, traces: Path) -> None:
    assert run("graph", traces, "--phase", "decode")[1].startswith("small decode: ")
    assert run("graph", traces / "decode.callgraph.json")[1].startswith("small decode: ")
    code, _, err = run("graph", traces, "--phase", "vision")
    assert code == 2
    assert "it holds: prefill, decode" in err


def test_json_is_short_for_the_format(run: Run, traces: Path) -> None:
    _, short, _ = run("graph", traces, "--json")
    _, long, _ = run("graph", traces, "--format", "json")
    assert json.loads(short) == json.loads(long)
    code, _, err = run("graph", traces, "--json", "--format", "dot")
    assert code == 2
    assert "contradict" in err


@pytest.mark.parametrize("name", DRAWINGS.names())
def test_every_format_is_written_and_ends_with_the_next_command(
    run: Run, traces: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / f"picture{DRAWINGS.get(name).suffix}"
    code, stdout, err = run("graph", traces, "--format", name, "--out", out)
    assert (code, stdout) == (0, "")
    assert out.stat().st_size > 0
    assert err.splitlines()[0] == f"Wrote {out}"
    assert err.splitlines()[1].startswith(f"Next: llm-perf-opt graph {traces} ")


def test_the_ending_of_the_file_tells_the_format(run: Run, traces: Path, tmp_path: Path) -> None:
    for file, key in (("a.json", "boxes"), ("a.view.json", "boxes"), ("a.speedscope.json", "profiles")):
        run("graph", traces, "--out", tmp_path / file)
        assert key in json.loads((tmp_path / file).read_text())
    code, _, err = run("graph", traces, "--out", tmp_path / "a.unheard")
    assert code == 2
    assert "--format" in err


def test_nothing_is_overwritten_without_force(run: Run, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "picture.json"
    out.write_text("mine")
    code, _, err = run("graph", traces, "--out", out)
    assert code == 1
    assert "Would overwrite" in err
    assert out.read_text() == "mine"
    assert run("graph", traces, "--out", out, "--force")[0] == 0
    assert out.read_text() != "mine"


def test_a_picture_that_is_not_text_needs_a_file(run: Run, traces: Path) -> None:
    code, out, err = run("graph", traces, "--format", "png")
    assert (code, out) == (2, "")
    assert "--out" in err


def test_focus_and_depth_reach_the_view(run: Run, traces: Path) -> None:
    _, out, _ = run("graph", traces, "--focus", "encoder", "--json")
    assert json.loads(out)["boxes"][0]["path"] == "encoder"
    _, out, _ = run("graph", traces, "--depth", "0", "--json")
    assert json.loads(out)["boxes"][0]["is_open"] is False


@pytest.mark.parametrize("words", [["--depth", "-1"], ["--max-boxes", "0"], ["--metric", "joules"], ["--format", "x"]])
def test_wrong_usage_is_code_two(run: Run, traces: Path, words: list[str]) -> None:
    assert run("graph", traces, *words)[0] == 2


def test_a_filter_says_what_it_left_out(run: Run, traces: Path) -> None:
    code, out, _ = run("graph", traces, "--only", "encoder", "--metric", "activations")
    assert code == 0
    assert "Only encoder, with the boxes around it. Left out: " in out
    assert "of activation bytes; they are in the boxes named left out." in " ".join(out.split())
    assert "left out: " in out
    assert "activations share" in " ".join(out.split())


def test_a_share_and_a_stage(run: Run, traces: Path) -> None:
    assert "Only at least 0.5 % of FLOPs" in run("graph", traces, "--min-share", "0.5%")[1]
    code, _, err = run("graph", traces, "--min-share", "0.5")
    assert code == 2
    assert "write --min-share 0.5%" in err
    code, _, err = run("graph", traces, "--stage", "nowhere")
    assert code == 2
    assert "the stages are:" in err


def test_ungrouped_is_every_module_and_every_call(run: Run, traces: Path) -> None:
    graph = small_run()
    view = json.loads(run("graph", traces, "--ungrouped", "--json")[1])
    assert view["is_ungrouped"]
    assert {box["path"] for box in view["boxes"]} == set(graph.call_counts)
    assert all(box["instances"] == 1 and box["is_open"] for box in view["boxes"])
    dot = run("graph", traces, "--ungrouped", "--format", "dot")[1]
    assert dot.count(" -> ") == len(graph.edges)


def test_activation_bytes_are_a_column_of_text_and_markdown(run: Run, traces: Path) -> None:
    for name in ("text", "markdown"):
        assert "activations" in run("graph", traces, "--format", name)[1]


def test_a_page_holds_all_phases_and_begins_with_the_one_asked_for(run: Run, traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    def held(*words: str | Path) -> tuple[list[str], int]:
        assert run("graph", *words, "--out", page, "--force")[0] == 0
        document = json.loads(page.read_text("utf-8").partition('id="view">')[2].partition("</script>")[0])
        return [phase["name"] for phase in document["phases"]], document["first"]

    assert held(traces) == (["prefill", "decode"], 0)
    assert held(traces, "--phase", "decode") == (["prefill", "decode"], 1)
    assert held(traces / "decode.callgraph.json") == (["decode"], 0)
