"""Causes that lie in the tracer: what it cannot see, containers, direct forwards, how it lists tensors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llm_perf_opt.comparisons import compare, stages_by_name
from llm_perf_opt.comparisons.causes import CAUSES
from llm_perf_opt.core.callgraph import CallGraph, OpKind
from llm_perf_opt.costs.reconcile import Cause, CauseTable
from tests.comparisons.made_runs import MadeRun, Shape, causes

BLOCK = {"": "Net", "block": "Block", "block.attn": "Attention", "block.attn.proj": "Linear"}
X = (3, 4)


def block_run(
    *, tracer: str, seen: bool = True, proj_calls: int = 1, block_calls: int = 1, with_ops: bool = True
) -> CallGraph:
    """The block calls `attn.forward` directly; a tracer that does not see it counts its ops as the block's."""
    run = MadeRun(BLOCK)

    def attend() -> None:
        for _ in range(proj_calls):
            run.leaf("block.attn.proj", X)
        if with_ops:
            run.mm(3)

    with run.call("", X):
        for _ in range(block_calls):
            with run.call("block", X):
                if seen:
                    with run.call("block.attn", X):
                        attend()
                else:
                    attend()
    return run.graph(tracer=tracer)


def test_a_forward_called_directly_is_named_with_its_edges_and_ops() -> None:
    found = compare(block_run(tracer="weightless"), block_run(tracer="hooks", seen=False))
    assert causes(found) == {
        ("calls", "unseen direct forward"),
        ("caller", "unseen direct forward"),
        ("ops", "unseen direct forward"),
    }
    assert {finding.difference.path for finding in found.findings} == {"block", "block.attn", "block.attn.proj"}
    assert sum(finding.difference.flops_change for finding in found.findings) == 0


def test_two_runs_of_one_tracer_see_the_same_forwards() -> None:
    found = compare(block_run(tracer="hooks"), block_run(tracer="hooks", seen=False))
    assert {cause for _, cause in causes(found)} == {None}


def test_work_that_is_gone_is_no_unseen_forward() -> None:
    found = compare(block_run(tracer="weightless"), block_run(tracer="hooks", seen=False, proj_calls=0))
    assert ("calls", None) in causes(found)


def test_a_leaf_is_proved_by_its_ops_alone() -> None:
    def run(*, seen: bool, ops: int) -> CallGraph:
        made = MadeRun({"": "Net", "norm": "Norm"})
        with made.call("", X):
            if seen:
                with made.call("norm", X):
                    made.op("aten.rsqrt.default")
            for _ in range(ops):
                made.op("aten.rsqrt.default")
        return made.graph(tracer="weightless" if seen else "hooks")

    assert {cause for _, cause in causes(compare(run(seen=True, ops=1), run(seen=False, ops=2)))} == {
        "unseen direct forward"
    }
    assert ("calls", None) in causes(compare(run(seen=True, ops=1), run(seen=False, ops=1)))


def test_a_caller_that_ran_less_often_is_no_unseen_forward() -> None:
    found = compare(block_run(tracer="weightless", block_calls=2), block_run(tracer="hooks", seen=False))
    assert not any(cause == "unseen direct forward" for aspect, cause in causes(found) if aspect == "calls")


def test_a_tracer_without_ops_makes_cost_unknown_and_says_so_once() -> None:
    found = compare(block_run(tracer="weightless"), block_run(tracer="hooks", with_ops=False))
    assert causes(found) == {("ops", "tracer cannot see ops")}
    assert len(found.findings) == 1
    assert "'hooks'" in found.findings[0].detail


def test_ops_whose_results_are_not_known_have_no_cost() -> None:
    """A profiler notes what went into an op; priced like that it would seem to be free."""

    def run(tracer: str, *, results: bool) -> CallGraph:
        made = MadeRun({"": "Net"})
        with made.call("", X):
            meta = made.meta(X)
            kind = OpKind(name="aten.relu.default", inputs=(meta,), outputs=(meta,) if results else ())
            made.builder.op(kind, [1], [2] if results else [])
        return made.graph(tracer=tracer)

    found = compare(run("weightless", results=True), run("profiler", results=False))
    assert causes(found) == {("ops", "tracer cannot see ops")}
    total = stages_by_name([found])["total"]
    assert total.left is not None and total.right is not None
    assert (total.left.flops, total.right.flops, total.right.ops) == (0, None, 1)
    assert compare(run("profiler", results=False), run("profiler", results=False)).findings == ()


def test_a_tracer_without_tensors_or_weights() -> None:
    def run(shapes: Sequence[Shape], *, with_weight: bool) -> CallGraph:
        made = MadeRun({"": "Net"})
        if with_weight:
            made.weight("w", 4)
        made.leaf("", *shapes)
        return made.graph(tracer="full" if shapes else "blind")

    blind = run([], with_weight=False)
    assert [observation.tensors for observation in blind.input_metadata[""]] == [()]
    found = compare(run([X], with_weight=True), blind)
    assert ("weights", "tracer cannot see") in causes(found)


def container_run(*, listed: bool, of: str = "ModuleList") -> CallGraph:
    run = MadeRun({"": "Net", "layers": of, "layers.0": "Layer"})
    with run.call("", X):
        if listed:
            with run.call("layers"):
                run.leaf("layers.0", X)
        else:
            run.leaf("layers.0", X)
    return run.graph(tracer="other" if listed else "weightless")


def test_a_container_that_one_side_lists_as_called() -> None:
    found = compare(container_run(listed=True), container_run(listed=False))
    assert causes(found) == {("calls", "container"), ("caller", "container")}
    assert len(found.findings) == 3  # the container, and its child's caller before and after


def test_a_module_with_a_forward_is_no_container() -> None:
    found = compare(container_run(listed=True, of="Stack"), container_run(listed=False, of="Stack"))
    assert "container" not in {cause for _, cause in causes(found)}


WEIGHT = (6, 4)


def tensors_run(*inputs: Shape, tracer: str = "weightless") -> CallGraph:
    run = MadeRun({"": "Net"})
    run.weight("w", *WEIGHT)
    run.leaf("", *inputs, outputs=[X])
    return run.graph(tracer=tracer)


CACHE = [(1, 2, 7, 8)] * 2 + [(1, 2, 6, 8)] * 2


@pytest.mark.parametrize(
    ("left", "right", "cause"),
    [
        ([X, (5,)], [(5,), X], "order of tensors"),
        ([X, X, (5,)], [X, (5,)], "tensor listed once"),
        ([(1, 3, 4)], [(3, 4)], "written through a view"),
        ([X, *CACHE], [X], "cache objects"),
        ([X, *CACHE, (5,)], [X, (5,)], "cache objects"),
        ([X, *CACHE, (5,)], [(5,), X], "cache objects"),  # and in another order
        ([X, (3, 2, 5), (3, 7, 7, 7)], [X], "cache objects"),  # the state of a recurrent layer, the batch in front
        ([X, WEIGHT], [X], "weights listed as inputs"),
        ([X, WEIGHT, (5,)], [X], None),
        ([X, (1, 2, 7, 8)], [X], None),  # one tensor is no cache: keys and values come in pairs
        ([X, (1, 2, 7, 8), (1, 3, 6, 8)], [X], None),  # they differ in more than their length
        ([X, (5,), (5,)], [X], None),  # too flat
        ([X, *CACHE], [(4, 4)], None),
        ([(3, 4)], [(3, 5)], None),
    ],
)
def test_how_two_tracers_list_tensors(left: list[Shape], right: list[Shape], cause: str | None) -> None:
    one, other = tensors_run(*left), tensors_run(*right, tracer="other")
    assert causes(compare(one, other)) == {("inputs", cause)}
    assert causes(compare(other, one)) == {("inputs", cause)}


def test_one_tracer_does_not_list_in_two_ways() -> None:
    assert causes(compare(tensors_run(X, (5,)), tensors_run((5,), X))) == {("inputs", None)}


def test_a_cause_is_registered_once() -> None:
    with pytest.raises(ValueError, match="two causes have one name: gravity, gravity"):
        CauseTable(Cause(name="gravity", meaning="it falls"), Cause(name="gravity", meaning="it falls again"))


def test_the_documented_causes_are_the_registered_ones(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "start" / "what-changed.md").read_text("utf-8")
    assert [name for name in CAUSES if f"| `{name}` |" not in page] == []
