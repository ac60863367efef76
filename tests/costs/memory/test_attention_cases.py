"""Eager against fused attention in runs by hand: the modules are found by what they run, and only those that differ."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.costs.memory.memory_report import AttentionPeak, attention_cases, attention_table, memory_json
from llm_perf_opt.costs.memory.need import run_memory
from tests.costs.made_kinds import kind, tensor
from tests.costs.small_run import finished

Q, SCORES = tensor(1, 2, 6, 4), tensor(1, 2, 6, 6)
Q_BYTES, SCORE_BYTES = 4 * 48, 4 * 72
TIMES = kind("aten.matmul.default", {"self": Q, "other": Q}, SCORES, output_aliases=(-1,))
SOFTMAX = kind("aten.softmax.int", {"self": SCORES}, SCORES, output_aliases=(-1,))
WEIGH = kind("aten.matmul.default", {"self": SCORES, "other": Q}, Q, output_aliases=(-1,))
FUSED = kind("aten.scaled_dot_product_attention.default", {"query": Q, "key": Q, "value": Q}, Q, output_aliases=(-1,))


def made_run(*, is_fused: bool) -> CallGraph:
    """A tower whose attention is always fused, then two decoder layers whose attention may be either."""
    run = CallGraphBuilder()
    paths = ("encoder", "layers.0", "layers.1")
    run.module("", "Model", ("encoder", "layers"), {})
    run.module("layers", "ModuleList", paths[1:], {})
    for path in paths:
        run.module(path, "Attention", (), {})
    tokens = iter(range(10, 100))
    run.enter("", [(Q, 1)])
    state = 1
    for path in paths:
        run.enter(path, [(Q, state)])
        output = _fused(run, state, tokens) if is_fused or path == "encoder" else _eager(run, state, tokens)
        run.leave([(Q, output)])
        if state != 1:
            run.free(state)
        state = output
    run.leave([(Q, state)])
    return finished(run, "prefill")


def _fused(run: CallGraphBuilder, state: int, tokens: Iterator[int]) -> int:
    run.allocate(output := next(tokens), Q_BYTES)
    run.op(FUSED, [state] * 3, [output])
    return output


def _eager(run: CallGraphBuilder, state: int, tokens: Iterator[int]) -> int:
    scores, weights, output = (next(tokens) for _ in range(3))
    run.allocate(scores, SCORE_BYTES)
    run.op(TIMES, [state, state], [scores])
    run.allocate(weights, SCORE_BYTES)
    run.op(SOFTMAX, [scores], [weights])
    run.free(scores)
    run.allocate(output, Q_BYTES)
    run.op(WEIGH, [weights, state], [output])
    run.free(weights)
    return output


EAGER, FUSED_RUN = made_run(is_fused=False), made_run(is_fused=True)


def test_the_made_runs_are_sound() -> None:
    assert EAGER.problems() == FUSED_RUN.problems() == []


def test_only_the_modules_that_differ_are_a_case() -> None:
    (case,) = attention_cases([EAGER], [FUSED_RUN])
    assert (case.phase, case.stage, case.modules) == ("prefill", "prefill", "layers.[0-1]")
    # What came in, and two score matrices; or what came in and what goes out.
    assert case.eager == AttentionPeak(
        bytes=Q_BYTES + 2 * SCORE_BYTES, added_bytes=2 * SCORE_BYTES, stage_bytes=Q_BYTES + 2 * SCORE_BYTES
    )
    assert case.fused == AttentionPeak(bytes=2 * Q_BYTES, added_bytes=Q_BYTES, stage_bytes=2 * Q_BYTES)


def test_without_an_eager_trace_its_side_is_unknown() -> None:
    vision, prefill = attention_cases([], [FUSED_RUN])
    assert (vision.stage, prefill.stage) == ("vision", "prefill")
    assert vision.eager is prefill.eager is None
    assert prefill.fused is not None
    table = attention_table([prefill])
    assert [row[1] for row in table.rows] == ["eager", "fused"]
    assert table.rows[0][2:5] == (None, None, None)


def test_without_a_fused_trace_nothing_tells_what_attention_is() -> None:
    assert attention_cases([EAGER], []) == ()


def test_the_document_holds_both_sides() -> None:
    cases = attention_cases([EAGER], [FUSED_RUN])
    (held,) = memory_json(run_memory([EAGER]), cases)["attention_cases"]
    assert held["eager"]["added_bytes"] == 2 * SCORE_BYTES
    assert held["fused"]["added_bytes"] == Q_BYTES
