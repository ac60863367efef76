"""A function of a model, saved, and asked again in a process that has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import to_json_dict
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.sweeps.function.phase_function import FIGURES

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
POINTS = {"batch": [2, 3, 2], "context": [2, 9, 40]}


@pytest.fixture(scope="module")
def function(tmp_path_factory: pytest.TempPathFactory) -> lpo.TraceFunction:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return lpo.trace(folder, prompt_tokens=4).over(batch=(2, 3), context=(2, 40))


@pytest.fixture(scope="module")
def file(function: lpo.TraceFunction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return function.save(tmp_path_factory.mktemp("saved") / "llama.function.json")


def test_a_saved_function_gives_the_traces_of_the_first(function: lpo.TraceFunction, file: Path) -> None:
    read = lpo.load_function(file)
    assert (read.name, read.media_tokens, read.workload.prompt_tokens) == (function.name, 0, 4)
    assert read.origin is None
    for batch, context in zip(*POINTS.values(), strict=True):
        mine, theirs = function.at(batch=batch, context=context), read.at(batch=batch, context=context)
        assert mine.phases == theirs.phases == ("prefill", "decode")
        assert [to_json_dict(graph) for graph in mine.graphs] == [to_json_dict(graph) for graph in theirs.graphs]


ASK_WITHOUT_TORCH = """
import json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, NoTorch())
import llm_perf_opt as lpo

function = lpo.load_function(sys.argv[1])
points = json.loads(sys.argv[2])
figures = {phase.phase: function.figures(phase.phase, points) for phase in function.phases}
predicted = function.at(batch=3, context=9).predict("h100-sxm")
print(json.dumps({
    "figures": {phase: {name: column.tolist() for name, column in found.items()} for phase, found in figures.items()},
    "predicted": predicted.to_dict(),
}))
"""


def test_it_is_evaluated_without_torch(function: lpo.TraceFunction, file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK_WITHOUT_TORCH, str(file), json.dumps(POINTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for phase in ("prefill", "decode"):
        here = {name: column.tolist() for name, column in function.figures(phase, POINTS).items()}
        assert found["figures"][phase] == here
    assert found["predicted"] == json.loads(json.dumps(function.at(batch=3, context=9).predict("h100-sxm").to_dict()))


def test_the_flops_are_those_of_a_trace(function: lpo.TraceFunction) -> None:
    """Of a point at which no trace was made for the function."""
    assert function.origin is not None
    traced = lpo.trace(function.origin.name, batch=3, prompt_tokens=31).cost(("counted",))
    flops = {
        phase: function.figures(phase, {"batch": 3, "context": 31})["flops"].tolist() for phase in ("prefill", "decode")
    }
    assert sum(found[0] for found in flops.values()) == traced.flops


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_more_sequences_and_longer_contexts_never_cost_less(function: lpo.TraceFunction, phase: str) -> None:
    """FLOPs, bytes, peak, memory that is needed and cache, over all batches and contexts of the range."""
    names = [*FIGURES, "needed_bytes", *(["cache_bytes"] if phase == "decode" else [])]
    batches, contexts = [2, 3], list(range(2, 41))
    points = {
        "batch": [batch for batch in batches for _ in contexts],
        "context": [context for _ in batches for context in contexts],
    }
    for name, column in function.figures(phase, points, names).items():
        grid = [column.tolist()[: len(contexts)], column.tolist()[len(contexts) :]]
        assert all(row == sorted(row) for row in grid), name
        assert all(few <= many for few, many in zip(*grid, strict=True)), name
    # Keys and values of 2 layers, 2 heads of 8, in 2 bytes: of each token that the step finds in the cache.
    if phase == "decode":
        cache = function.figures(phase, {"batch": 3, "context": 40}, ["cache_bytes"])["cache_bytes"].tolist()
        assert cache == [3 * 40 * 2 * 2 * 2 * 8 * 2]


def test_a_point_outside_the_cells_is_refused_with_the_way_to_get_it(file: Path) -> None:
    read = lpo.load_function(file)
    with pytest.raises(UsageError, match=r"no prefill at batch 4, context 9") as refusal:
        read.at(batch=4, context=9)
    assert "no model to trace" in str(refusal.value.why)
    assert "over(batch=(..., 4), context=(..., 9))" in str(refusal.value.fix)
    with pytest.raises(UsageError, match=r"no decode at batch 2, context 41"):
        read.figures("decode", {"batch": 2, "context": [40, 41]})


def test_the_function_itself_traces_such_a_point(function: lpo.TraceFunction) -> None:
    assert function.at(batch=4, context=9).graphs[0].workload["batch"] == 4
    with pytest.raises(UsageError, match="no prefill at batch 4") as refusal:
        function.figures("prefill", {"batch": 4, "context": 9})
    assert "function.at(batch=4, context=9)" in str(refusal.value.fix)


@pytest.mark.parametrize(
    "points",
    [{"batch": 2}, {"batch": [2, 2], "context": [3, 4, 5]}, {"batch": 2.5, "context": 4}, {"batch": "2", "context": 3}],
    ids=["no context", "two lengths", "no whole number", "text"],
)
def test_points_that_are_none_are_refused(function: lpo.TraceFunction, points: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        function.figures("prefill", points)


def test_a_file_is_not_overwritten_unasked_and_its_name_says_what_it_is(
    function: lpo.TraceFunction, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PerfOptError, match="overwrite"):
        function.save(file)
    assert function.save(file, force=True) == file
    with pytest.raises(UsageError, match=r"ends in \.function\.json|no name of a function file"):
        function.save(tmp_path / "llama.json")


def test_a_loaded_function_is_saved_as_it_was(file: Path, tmp_path: Path) -> None:
    again = lpo.load_function(file).save(tmp_path / "again.function.json")
    assert again.read_bytes() == file.read_bytes()
    assert lpo.read_result(again).media_tokens == 0  # type: ignore[union-attr]


def test_it_lies_beside_the_trace(function: lpo.TraceFunction, tmp_path: Path) -> None:
    """The trace of the folder stays readable, and a function is no trace."""
    function.at(batch=2, context=4).save(tmp_path / "run")
    kept = function.save(tmp_path / "run" / "llama.function.json")
    assert lpo.load(tmp_path / "run").phases == ("prefill", "decode")
    with pytest.raises(PerfOptError):
        lpo.load(kept)
