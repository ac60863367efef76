"""`--weights` and `--cache` on the command line: the same in every verb, and refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import read_callgraph, write_callgraph
from tests.cli.conftest import Run
from tests.costs.memory.made_decode import made_decode
from tests.costs.stored_runs import mixture, stored

VERBS = ("cost", "trace", "report", "graph")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two phases of a run: a mixture of experts, and a decode with a cache."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_callgraph(mixture(), folder / "prefill.callgraph.json", overwrite=False)
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_a_saved_trace_is_asked_what_another_format_would_be(verb: str, saved: Path, run: Run) -> None:
    device = ("--device", "h100-sxm") if verb == "trace" else ()
    code, out, err = run(verb, saved, "--weights", "fp8", *device, "--verbose")
    assert (code, "error" in err) == (0, False)
    text = " ".join(out.split())
    assert "Weights: fp8 in 3 matrices and 2 expert stacks, bfloat16 elsewhere: 113 KiB stored (what-if)." in text
    assert "routers and convolutions keep their type" in text


def test_the_fit_follows_the_format(saved: Path, run: Run) -> None:
    """Dense weights are 2 x 89,344 bytes = 174 KiB, of which 2 x 25,856 are not converted.

    The other 63,488 values are as many bytes in fp8, with 4 for each of 11 matrices; and in int4 half as many, with 2.5
    for each group of at most 128: 2 x 64, 96, 4 x 96 and 4 x 64 of them.
    """
    assert 51_712 + 63_488 + 44 == 115_244  # 113 KiB
    assert 51_712 + 31_744 + (128 + 96 + 384 + 256) * 5 // 2 == 85_616  # 83.6 KiB
    for words, size in (((), "174 KiB"), (("--weights", "fp8"), "113 KiB"), (("--weights", "int4"), "83.6 KiB")):
        out = run("trace", saved, "--device", "h100-sxm", *words)[1]
        row = next(
            line for line in out[out.index("Does this forward fit") :].splitlines() if line.startswith("prefill")
        )
        assert size in row


@pytest.mark.parametrize("verb", (*VERBS, "trace"))
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--weights", "random"), "--load-weights"),
        (("--weights", "q4_k_m"), "'q4_k_m' is not a weight format"),
        (("--cache", "int4"), "'int4' is not a cache format"),
    ],
)
def test_a_word_that_is_no_format_is_refused_in_every_verb(
    verb: str, words: tuple[str, str], hint: str, run: Run
) -> None:
    code, out, err = run(verb, "stand-in", *words)
    assert (code, out) == (2, "")
    assert hint in err


def test_a_cache_is_asked_for_where_something_decodes(tmp_path: Path, run: Run) -> None:
    write_callgraph(made_decode(tokens=100), tmp_path / "decode.callgraph.json", overwrite=False)
    code, out, _ = run("trace", tmp_path, "--device", "h100-sxm", "--cache", "fp8", "--verbose")
    assert code == 0
    assert "Cache: float8_e4m3fn (what-if)." in " ".join(out.split())


def test_a_calibration_is_not_asked_for_formats_it_did_not_time(saved: Path, tmp_path: Path, run: Run) -> None:
    code, _, err = run("trace", saved, "--calibration", tmp_path / "none.json", "--weights", "fp8")
    assert code == 2
    assert "A calibration has no use for --weights" in err


def test_a_trace_keeps_the_format_it_was_asked_for(run: Run, tmp_path: Path) -> None:
    """The stand-in has no linear layer, so there is nothing to convert, and that is said."""
    code, _, err = run("trace", "stand-in", "--weights", "fp8", "--out", tmp_path)
    assert code == 2
    assert "No matrix of this trace can be stored in another format" in err
    assert list(tmp_path.iterdir()) == []


def test_compare_names_the_format(saved: Path, tmp_path: Path, run: Run) -> None:
    from llm_perf_opt.core.workload import Deployment
    from llm_perf_opt.tracing.deployed_traces import redeployed

    (graph,) = redeployed([mixture()], Deployment(weights="int4-g128"))
    other = tmp_path / "other.callgraph.json"
    write_callgraph(graph, other, overwrite=False)
    assert stored(read_callgraph(other)) == stored(graph)
    code, out, _ = run("compare", saved, other, "--strict")
    assert code == 0
    assert "weights bfloat16 -> int4-g128" in out
    assert "agree in everything" not in out
