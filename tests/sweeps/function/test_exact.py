"""Functions of real models against fresh traces of the same points: ops, shapes, memory and figures, to the integer.

One or two layers of each stack, in the released widths, and contexts that are as short as what a model shows allows.
`scripts/function_table.py` compares all models, over longer contexts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the models are those of transformers")

import llm_perf_opt as lpo
from benchmarks.function.exactness import CONFIGURATIONS, SUBJECTS, compared, figures_of, make_function
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction

POINTS = 10
TWO_LAYERS = ("kimi-k2",)  # whose layers are of two kinds
IN_A_LOOP = "mixtral-8x7b, experts in a loop"
QUICK = ("llama32-1b", "bart")
SLOW = ("kimi-k2", "whisper-large-v3", IN_A_LOOP, "mistral-7b-v0.1", "mamba2-2.7b", "mamba", "qwen25-vl-7b")
NOT_ALL_PROVEN = ("mamba2-2.7b",)  # remainders of its chunks, and contexts below its kernel: more cells than traces
LONGEST = {"mamba2-2.7b": 1300, "mamba": 40, "whisper-large-v3": 440}  # several chunks; a step for each token
CHANGES = {"mistral-7b-v0.1": {"sliding_window": 300}}
OPTIONS = {"qwen25-vl-7b": {"image": "112x112"}}


def is_all_proven(phase: PhaseFunction) -> bool:
    return not phase.open_regions


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_function_is_what_fresh_traces_say(name: str, tmp_path: Path, one_thread: None) -> None:
    subject = replace(
        SUBJECTS[name],
        layers=2 if name in TWO_LAYERS else 1,
        depth={},
        batch=(1, 8),
        context=(1, LONGEST.get(name, 700)),
        changes={**SUBJECTS[name].changes, **CHANGES.get(name, {})},
        options=OPTIONS.get(name, {}),
    )
    model = subject.model(tmp_path)
    function = make_function(model, subject)
    records, points = compared(function, model, subject, POINTS, seed=3)
    assert len(points) >= POINTS
    for phase, record in zip(function.phases, records, strict=True):
        assert record.differences == []
        assert record.exact + record.outside == len(points)
        assert phase.traces <= 40
        if name not in NOT_ALL_PROVEN:
            assert is_all_proven(phase)
            assert record.outside == 0


def test_a_model_without_a_prompt_has_no_context(one_thread: None) -> None:
    trace = lpo.trace(CONFIGURATIONS / "vit-h")
    with pytest.raises(UsageError, match=r"The context of .* cannot vary"):
        trace.over(batch=(1, 2), context=(1, 4))


def test_a_wrong_program_is_noticed(tmp_path: Path, one_thread: None) -> None:
    """The comparison itself: a function of one model, compared with traces of a wider one, differs everywhere."""
    subject = replace(SUBJECTS["llama32-1b"], layers=1, batch=(2, 2), context=(5, 9))
    wider = replace(subject, name="wider", changes={"intermediate_size": 8200})
    function = make_function(subject.model(tmp_path), subject)
    records, points = compared(function, wider.model(tmp_path), subject, 2, seed=3)
    for record in records:
        assert record.exact == 0
        assert {one.what for one in record.differences} >= {"op table (sizes)", "flops", "bytes_moved", "parameters"}
    assert points


def test_the_figures_of_a_graph_are_those_of_a_hand_count(tmp_path: Path, one_thread: None) -> None:
    subject = replace(SUBJECTS["llama32-1b"], layers=1)
    trace = lpo.trace(subject.model(tmp_path), batch=3, prompt_tokens=7)
    decode = figures_of(trace.graphs[1])
    hidden, heads, cached_heads, wide, vocabulary = 2048, 32, 8, 8192, 128256
    head = hidden // heads
    weights = hidden * hidden * 2 + 2 * hidden * cached_heads * head + 3 * hidden * wide + hidden * vocabulary
    assert decode["flops"] >= 2 * 3 * weights
    assert decode["cache_bytes"] == 2 * 3 * 7 * cached_heads * head * 2
    assert decode["parameters"] == weights + 3 * hidden  # three norms; the embedding is the head's
