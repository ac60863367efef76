"""`--tracer` and `--load-weights`: the options reach the tracer, misfits are refused, a fault leaves a partial file."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, read_callgraph
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import PartialTrace, Sight
from llm_perf_opt.core.target import Target
from tests.cli.conftest import Run


class TimedStandIn:
    """A tracer of real runs: it measures, sees no ops, and stops half-way in a model whose mode is `broken`."""

    sees = frozenset({Sight.MODULES, Sight.TIME})
    takes = frozenset({"weights", "device"})

    def __init__(self, weights: str = "random", device: str = "cpu") -> None:
        self.settings = {"weights": weights, "device": device}

    def trace(self, target: Target) -> CallGraph:
        is_broken = target.workload["mode"] == "broken" and target.phase == "decode"
        builder = CallGraphBuilder()
        builder.module("", "StandIn", ("head",), {})
        builder.module("head", "Head", (), {})
        builder.enter("", (), 0)
        builder.enter("head", (), 1_000_000)
        builder.leave((), 3_000_000)
        builder.leave((), 4_000_000)
        graph = builder.finish(
            model=target.model,
            phase=target.phase,
            tracer="timed",
            workload={**target.workload, **self.settings},
            stages=[(stage.name, stage.paths) for stage in target.stages],
            runtime={},
            library_versions={},
            stopped_in="head" if is_broken else None,
        )
        if is_broken:
            raise PartialTrace(graph, RuntimeError("out of range"))
        return graph


@pytest.fixture(autouse=True)
def timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACERS._entries, "hooks", f"{__name__}:TimedStandIn")
    monkeypatch.setitem(TRACERS._entries, "profiler", f"{__name__}:TimedStandIn")


def test_the_options_reach_the_tracer(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(
        "trace",
        "stand-in",
        "--tracer",
        "hooks",
        "--load-weights",
        "some/dir",
        "--torch-device",
        "cpu",
        "--out",
        tmp_path,
    )
    assert code == 0
    graph = read_callgraph(tmp_path / "prefill.callgraph.json")
    assert (graph.workload["weights"], graph.workload["device"]) == ("some/dir", "cpu")
    assert "Time by stage, prefill" in out
    assert "2.00 ms" in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--load-weights", "random"], "does not take --load-weights"),
        (["--tracer", "hooks", "--routing", "one"], "does not take --routing"),
        (["--tracer", "hoks"], "did you mean 'hooks'?"),
        (["--torchlens-picture", "layer"], "[MODULE=]FILE"),
        (["--torchlens-picture", "head=layer.txt:rolled"], "cannot be written as 'layer.txt'"),
        (["--torchlens-picture", "head=a.svg", "--torchlens-picture", "a.svg:rolled"], "2 pictures"),
        (["--torchlens-picture", "head=layer.svg"], "add --tracer torchlens"),
    ],
)
def test_an_option_that_the_tracer_cannot_have_is_refused(words: list[str], hint: str, run: Run) -> None:
    code, out, err = run("trace", "stand-in", *words)
    assert (code, out) == (2, "")
    assert hint in err


def test_no_weights_are_what_weightless_has(run: Run) -> None:
    assert run("trace", "stand-in", "--load-weights", "none")[0] == 0


def test_strict_does_not_take_unknown_for_zero(run: Run) -> None:
    code, _, err = run("trace", "stand-in", "--tracer", "hooks", "--strict")
    assert code == 1
    assert "The costs are unknown" in err


def test_nor_does_it_of_a_trace_made_earlier(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--tracer", "hooks", "--out", tmp_path)[0] == 0
    code, out, err = run("cost", tmp_path, "--strict")
    assert code == 1
    assert "counted has no figures for head (prefill)." in err
    assert "sees no ops" in out


def test_a_model_that_stops_half_way_leaves_a_partial_file(run: Run, tmp_path: Path) -> None:
    broken = ("trace", "stand-in", "--tracer", "hooks", "--mode", "broken", "--out", tmp_path)
    code, out, err = run(*broken)
    assert (code, out) == (1, "")
    assert [file.name for file in tmp_path.iterdir()] == ["decode.partial.callgraph.json"]
    assert "raised RuntimeError in module head" in err
    assert "out of range" in err
    assert "Traceback" not in err
    assert read_callgraph(tmp_path / "decode.partial.callgraph.json").stopped_in == "head"
    assert "Would overwrite" in run(*broken)[2]
    code, _, _ = run("trace", "stand-in", "--tracer", "hooks", "--out", tmp_path, "--force")
    assert code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["decode.callgraph.json", "prefill.callgraph.json"]


def test_a_chrome_trace_is_not_overwritten_either(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prefill.chrome-trace.json").write_text("{}")
    code, _, err = run("trace", "stand-in", "--tracer", "profiler", "--out", tmp_path)
    assert code == 1
    assert "prefill.chrome-trace.json" in err
    assert run("trace", "stand-in", "--tracer", "hooks", "--out", tmp_path)[0] == 0


def test_report_puts_times_on_costs(run: Run, tmp_path: Path) -> None:
    run("trace", "stand-in", "--out", tmp_path / "priced")
    run("trace", "stand-in", "--tracer", "hooks", "--out", tmp_path / "timed")
    code, out, _ = run("report", tmp_path / "priced", "--times", tmp_path / "timed")
    assert code == 0
    assert "60.0 kFLOP/s" in out  # 120 FLOPs in 2 ms


@pytest.mark.parametrize("tracer", ["weightless", "hooks", "torchlens"])
@pytest.mark.parametrize("option", ["--with-stack", "--with-modules", "--profile-memory"])
def test_an_option_of_the_profiler_is_refused_by_other_tracers(run: Run, tracer: str, option: str) -> None:
    if tracer == "torchlens":
        pytest.importorskip("torchlens", reason="the tracer needs it")
    code, out, err = run("trace", "stand-in", "--tracer", tracer, option)
    assert (code, out) == (2, "")
    assert f"The tracer {tracer!r} does not take {option}." in err
    assert "an option of torch.profiler" in err
