"""Causes that lie in the run: routing, decode length, workload, a run that stopped, another model or version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.comparisons import Comparison, compare
from llm_perf_opt.core.callgraph import CallGraph
from tests.comparisons.made_runs import WIDTH, MadeRun, causes

EXPERTS = {
    "": "Net",
    "moe": "Moe",
    "moe.experts": "ModuleList",
    **{f"moe.experts.{index}": "Mlp" for index in range(4)},
    **{f"moe.experts.{index}.up": "Linear" for index in range(4)},
}


def moe_run(*rows_per_call: Sequence[int], width: int = WIDTH, with_extra_op: bool = False, **header: Any) -> CallGraph:
    """Each call of the mixture slices rows for the experts that get any, and each expert multiplies them."""
    run = MadeRun(EXPERTS)
    for rows_per_expert in rows_per_call:
        total = sum(rows_per_expert)
        with run.call("", (total, width)), run.call("moe", (total, width)):
            if with_extra_op:
                run.op("aten.sort.default")
            for expert, rows in enumerate(rows_per_expert):
                if rows:
                    run.op("aten.slice.Tensor")
                    inside = f"moe.experts.{expert}"
                    with run.call(inside, (rows, width)), run.call(f"{inside}.up", (rows, width)):
                        run.mm(rows)
    return run.graph(**header)


def cause_names(found: Comparison) -> set[str | None]:
    return {finding.cause for finding in found.findings}


def test_rows_that_went_to_other_experts() -> None:
    found = compare(moe_run([2, 2, 2, 2]), moe_run([5, 3, 0, 0]))
    assert cause_names(found) == {"routing"}
    assert causes(found) >= {("calls", "routing"), ("inputs", "routing"), ("ops", "routing"), ("FLOPs", "routing")}
    assert "moe" in {finding.difference.path for finding in found.findings}  # its slices are two fewer
    assert sum(finding.difference.flops_change for finding in found.findings) == 0


def test_rows_that_vanished_are_no_routing() -> None:
    assert "routing" not in cause_names(compare(moe_run([2, 2, 2, 2]), moe_run([5, 2, 0, 0])))


def test_an_op_around_the_experts_that_is_new_is_no_routing() -> None:
    found = compare(moe_run([2, 2, 2, 2]), moe_run([5, 3, 0, 0], with_extra_op=True))
    assert [finding.difference.path for finding in found.unexplained] == ["moe"]


def test_routing_holds_per_call_of_the_module_around() -> None:
    found = compare(moe_run([2, 2, 0, 0], [2, 2, 0, 0]), moe_run([0, 0, 3, 1]))
    by_path = {finding.difference.path: finding.cause for finding in found.findings}
    assert by_path["moe.experts.0"] == by_path["moe.experts.2"] == "routing"
    assert by_path[""] is None  # twice as many calls, and nothing says why


def layers_run(*rows: int, **header: Any) -> CallGraph:
    run = MadeRun({"": "Net", "layers": "ModuleList", **{f"layers.{index}": "Layer" for index in range(len(rows))}})
    with run.call("", (rows[0], WIDTH)):
        for index, count in enumerate(rows):
            with run.call(f"layers.{index}", (count, WIDTH)):
                run.mm(count)
    return run.graph(**header)


def test_layers_in_a_chain_are_no_experts() -> None:
    assert cause_names(compare(layers_run(4, 4), layers_run(6, 6))) == {None}


def decode_run(steps: int, *, context: int = 10, extra_calls: int = 0) -> CallGraph:
    run = MadeRun({"": "Net", "layer": "Layer"})
    for step in range(steps):
        with run.call("", (1, WIDTH)):
            for _ in range(1 + (extra_calls if step == 0 else 0)):
                with run.call("layer", (context + step, WIDTH)):
                    run.mm(1)
    return run.graph(
        phase="decode", runtime={"decode_steps": steps}, workload={"context_tokens": context, "decode_steps": steps}
    )


def test_more_steps_call_everything_in_proportion() -> None:
    found = compare(decode_run(3), decode_run(1))
    assert cause_names(found) == {"decode length"}
    assert causes(found) == {("calls", "decode length"), ("inputs", "decode length"), ("outputs", "decode length")} | {
        ("ops", "decode length")
    }


def test_calls_out_of_proportion_are_not_due_to_the_steps() -> None:
    found = compare(decode_run(3, extra_calls=1), decode_run(1))
    assert [finding.difference.path for finding in found.unexplained if finding.difference.aspect == "calls"] == [
        "layer"
    ]


def sized_run(tokens: int, *, calls: int = 1, dtype: str = "float32", **workload: Any) -> CallGraph:
    run = MadeRun({"": "Net"}, dtype=dtype)
    run.weight("w", WIDTH, WIDTH)
    for _ in range(calls):
        with run.call("", (1, tokens, WIDTH)):
            run.mm(tokens)
    return run.graph(workload=workload)


def details(found: Comparison) -> set[tuple[str | None, str]]:
    return {(finding.cause, finding.detail) for finding in found.findings}


def test_a_dimension_is_laid_to_the_field_that_moved_with_it() -> None:
    left = sized_run(20, context_tokens=20, image_tokens=16, mode="small")
    right = sized_run(30, context_tokens=30, image_tokens=26, mode="large")
    assert details(compare(left, right)) == {("workload", "context_tokens 20 -> 30")}


def test_a_number_that_moved_otherwise_is_not_blamed() -> None:
    assert cause_names(compare(sized_run(20, prompt_tokens=7), sized_run(30, prompt_tokens=9))) == {None}


def test_words_of_the_workload_may_change_any_size_and_number() -> None:
    found = compare(sized_run(20, calls=2, mode="small"), sized_run(30, mode="large"))
    assert details(found) == {("workload", "mode small -> large")}


def test_a_dtype_is_laid_to_the_dtype_asked_for() -> None:
    left, right = sized_run(20, dtype="float32"), sized_run(20, dtype="bfloat16")
    assert cause_names(compare(left, right)) == {None}
    asked = [replace(graph, workload={"dtype": dtype}) for graph, dtype in ((left, "float32"), (right, "bfloat16"))]
    assert details(compare(*asked)) == {("workload", "dtype float32 -> bfloat16")}


def test_a_dtype_explains_no_shape() -> None:
    run = MadeRun({"": "Net"}, dtype="bfloat16")
    run.leaf("", (1, 30, WIDTH))
    other = MadeRun({"": "Net"})
    other.leaf("", (1, 20, WIDTH))
    found = compare(other.graph(workload={"dtype": "float32"}), run.graph(workload={"dtype": "bfloat16"}))
    assert cause_names(found) == {None}


def test_another_attention_may_have_another_class_and_other_ops() -> None:
    def run(attention: str, class_name: str, *ops: str) -> CallGraph:
        made = MadeRun({"": class_name})
        with made.call("", (1, WIDTH)):
            for op in ops:
                made.op(op)
        return made.graph(workload={"attention": attention})

    left = run("eager", "Attention", "aten.softmax.int", "aten.mul.Tensor")
    right = run("sdpa", "SdpaAttention", "aten.scaled_dot_product_attention.default")
    assert details(compare(left, right)) == {("workload", "attention eager -> sdpa")}


def test_rows_of_experts_that_grew_with_a_field() -> None:
    left = moe_run([2, 2, 2, 2], workload={"context_tokens": 8})
    right = moe_run([5, 4, 4, 3], workload={"context_tokens": 16})
    assert details(compare(left, right)) == {("workload", "context_tokens 8 -> 16")}


def test_a_field_that_one_side_does_not_tell_explains_nothing() -> None:
    assert cause_names(compare(sized_run(20, mode="small"), sized_run(30))) == {None}


def test_a_run_that_stopped() -> None:
    def run(stop: bool) -> CallGraph:
        made = MadeRun({"": "Net", "a": "Part", "b": "Part"})
        made.builder.enter("", [(made.meta((1, WIDTH)), 90)])
        made.leaf("a", (1, WIDTH))
        if stop:
            return made.graph(stopped_in="b")
        made.leaf("b", (1, WIDTH))
        made.builder.leave([(made.meta((1, WIDTH)), 91)])
        return made.graph()

    found = compare(run(False), run(True))
    assert details(found) == {("partial run", "it stopped in b")}
    assert details(compare(run(True), run(False))) == details(found)


def test_a_stopped_run_does_not_explain_more_calls() -> None:
    twice = MadeRun({"": "Net"})
    for _ in range(2):
        twice.leaf("", (1, WIDTH))
    once = MadeRun({"": "Net"})
    once.leaf("", (1, WIDTH))
    found = compare(twice.graph(stopped_in=""), once.graph())
    assert cause_names(found) == {None}


@pytest.mark.parametrize(("field", "cause"), [("model", "another model"), ("phase", "another phase")])
def test_traces_of_different_things(field: str, cause: str) -> None:
    left = layers_run(4, 4, **{field: "one"})
    right = moe_run([1, 1, 1, 1], **{field: "two"})
    assert details(compare(left, right)) == {(cause, "one -> two")}


def test_a_library_version_explains_code_and_not_calls() -> None:
    def run(version: str, op: str, calls: int) -> CallGraph:
        made = MadeRun({"": "Net", "norm": f"Norm{version}"})
        with made.call("", (1, WIDTH)):
            made.op(op)
            for _ in range(calls):
                made.leaf("norm", (1, WIDTH))
        return made.graph(library_versions={"transformers": version})

    found = compare(run("4", "aten.mul.Tensor", 1), run("5", "aten.add.Tensor", 2))
    assert causes(found) == {("class", "library version"), ("ops", "library version"), ("calls", None)}


def test_a_module_that_is_missing_is_told_once_with_all_inside_it() -> None:
    whole = moe_run([2, 2, 2, 2])
    bare = MadeRun({"": "Net"})
    bare.leaf("", (8, WIDTH))
    found = compare(whole, bare.graph())
    assert [
        (str(f.difference.aspect), f.difference.path) for f in found.findings if f.difference.aspect == "module"
    ] == [("module", "moe")]
    assert cause_names(found) == {None, "tracer cannot see ops"}


FUSED = {"": "Net", "moe": "Experts", "moe.act": "SiLU", "moe.same": "Identity"}


def fused_run(rows_per_use: Sequence[int], untouched: Sequence[int] = (), **header: Any) -> CallGraph:
    """Experts in one module: a loop that calls the activation once per expert, on its rows; some pass rows on."""
    run = MadeRun(FUSED)
    with run.call("", (8, WIDTH)), run.call("moe", (8, WIDTH)):
        for path, uses in (("moe.act", rows_per_use), ("moe.same", untouched)):
            for rows in uses:
                run.op("aten.index.Tensor")
                run.leaf(path, (rows, WIDTH))
    return run.graph(**header)


def test_experts_inside_one_module_are_told_by_the_uses_of_its_activation() -> None:
    found = compare(fused_run([2, 2, 2, 2]), fused_run([5, 3]))
    assert cause_names(found) == {"routing"}
    assert {(f.difference.path, str(f.difference.aspect)) for f in found.findings} >= {
        ("moe.act", "calls"),
        ("moe.act", "inputs"),
        ("moe", "ops"),
    }
    assert "routing" not in cause_names(compare(fused_run([2, 2, 2, 2]), fused_run([5, 2])))


def test_experts_that_pass_rows_on_count_with_the_others() -> None:
    assert cause_names(compare(fused_run([3, 3], [1, 1]), fused_run([2, 2], [3, 1]))) == {"routing"}
    assert cause_names(compare(fused_run([3, 3], [1, 1]), fused_run([2, 2], [3, 2]))) == {None}
