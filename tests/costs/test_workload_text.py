"""The sentence on the workload: complete, said once, and what a phase has of its own beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.comparisons import Compared, compare, comparison_report
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import DRAWINGS
from llm_perf_opt.costs.run_description import run_notes, setting_texts, workload_note
from llm_perf_opt.costs.stage_costs import stage_report
from llm_perf_opt.graphs.view import group
from tests.costs.small_run import small_run

WORKLOAD: dict[str, Any] = {
    "prompt_tokens": 131072,
    "crops": [2, 3],
    "inputs": {"input_ids": [1, 131072], "keep": 1, "states": [[1, 2], [3, 4]]},
    "mode": None,
    "device": "cuda:0",
}
SENTENCE = (
    "Workload: prompt tokens 131,072, crops 2x3, inputs (input_ids 1x131072, keep 1, states (1x2, 3x4)), device cuda:0."
)


def made(phase: str = "prefill", notes: tuple[str, ...] = (), **changes: Any) -> CallGraph:
    return replace(small_run(phase=phase), workload={**WORKLOAD, **changes}, notes=notes)


def test_every_setting_is_told_and_what_is_not_set_is_left_out() -> None:
    assert workload_note([made()]).text == SENTENCE
    assert "mode" not in setting_texts(WORKLOAD)


def test_a_later_phase_adds_what_it_has_of_its_own() -> None:
    decode = made("decode", inputs={"input_ids": [1, 1]})
    assert workload_note([made(), decode]).text == f"{SENTENCE} Decode: inputs (input_ids 1x1)."
    assert workload_note([made(), made("decode")]).text == SENTENCE


@pytest.mark.parametrize("graphs", [[], [replace(small_run(), workload={})]])
def test_a_trace_that_does_not_say_is_not_guessed_for(graphs: list[CallGraph]) -> None:
    assert workload_note(graphs).text == "Workload: not stated in the trace."


def test_what_every_phase_notes_is_said_once() -> None:
    graphs = [made(notes=("both", "first")), made("decode", notes=("both",))]
    assert [note.text for note in run_notes(graphs)] == ["both", "prefill: first"]
    report = [note.text for note in stage_report(graphs).notes]
    assert (report.count("both"), report.count("prefill: first"), report[0]) == (1, 1, SENTENCE)


@pytest.mark.parametrize("name", ["text", "markdown", "json", "svg", "mermaid", "dot", "model-explorer", "html"])
def test_a_picture_says_what_was_run(name: str) -> None:
    drawn = DRAWINGS.get(name)().render(group(made(notes=("a note on it",))))
    text = drawn.decode() if isinstance(drawn, bytes) else drawn
    assert "prompt tokens 131,072" in text and "a note on it" in text


def test_a_comparison_says_what_both_ran() -> None:
    one, other = made(), made(prompt_tokens=7)
    same, apart = (
        [
            note.text
            for note in comparison_report(Compared(left="a", right="b", comparisons=(compare(one, graph),))).notes
            if note.text.startswith("Workload of")
        ]
        for graph in (one, other)
    )
    told = SENTENCE.removeprefix("Workload: ")
    assert same == [f"Workload of both: {told}"]
    assert apart == [f"Workload of A: {told}", f"Workload of B: {told.replace('131,072', '7')}"]
