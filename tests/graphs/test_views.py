"""The whole view: who is in it, what is open, what the caption says, and that it adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import events_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import BoxLoop, LoopKind
from llm_perf_opt.costs.stage_costs import module_costs
from llm_perf_opt.graphs.conservation import check_conservation
from llm_perf_opt.graphs.view import group
from tests.costs.small_run import ACTIVATE_BYTES, small_run
from tests.costs.small_run import PROJECT_FLOPS as SMALL_FLOPS
from tests.graphs.made_runs import (
    ADD,
    PROJECT_FLOPS,
    MadeRun,
    Token,
    box_at,
    boxes,
    drawn,
    made,
    without_op_tensors,
)

STACK = {
    "embed": "Embedding",
    "layers": "ModuleList",
    **{f"layers.{n}": "Layer" for n in range(3)},
    **{f"layers.{n}.{name}": "Linear" for n in range(3) for name in ("up", "down")},
    "idle": "Linear",
}


def stack_graph(**header: object) -> CallGraph:
    return made(STACK, _stack, **header)


def _stack(run: MadeRun, x: Token) -> Token:
    def body(path: str, token: Token) -> Token:
        def forward(inner: Token) -> Token:
            raised = run.call(f"{path}.up", inner)
            return run.call(f"{path}.down", run.op(ADD, raised, inner))

        return run.call(path, token, forward)

    return run.chain([f"layers.{n}" for n in range(3)], run.call("embed", x), body)


def test_figures_are_those_of_the_module_costs() -> None:
    graph = small_run(with_unpriced=True)
    view = group(graph)
    costs = module_costs(graph)
    assert box_at(view, "encoder").figures.flops == costs.by_path["encoder"].inclusive.flops
    assert box_at(view, "encoder").own.bytes_moved == costs.by_path["encoder"].own.bytes_moved
    assert view.totals.flops == costs.by_path[""].inclusive.flops + costs.outside.flops
    assert view.totals.unpriced_ops == 1
    assert "Warning: 1 ops have no price and are left out of every total." in view.caption


def test_what_has_no_price_is_unknown_and_what_holds_it_is_a_lower_bound() -> None:
    """The decoder runs one op without a price; its norm activates, which is no matrix work, and moves 256 bytes."""
    view = group(small_run(with_unpriced=True))
    decoder = box_at(view, "decoder")
    assert (decoder.own.flops, decoder.own.macs, decoder.own.bytes_moved) == (None, None, None)
    assert (decoder.figures.flops, decoder.figures.macs) == (None, None)
    assert (decoder.figures.bytes_moved, decoder.figures.unpriced_ops) == (ACTIVATE_BYTES, 1)
    whole = box_at(view, "")
    assert (whole.figures.flops, whole.figures.unpriced_ops) == (2 * SMALL_FLOPS, 1)
    (norm,) = (box for box in decoder.children if box.path == "norm")
    assert norm.figures.flops == 0  # its op has a price: truly nothing


def test_a_run_of_which_no_op_has_a_price_has_no_figure_at_all() -> None:
    """What a profiler sees: names of ops, and neither shapes of results nor memory."""
    graph = small_run()
    nameless = tuple(replace(kind, name=f"aten::op{number}") for number, kind in enumerate(graph.op_kinds))
    assert graph.storages is not None
    no_memory = replace(graph.storages, origin=tuple("input" for _ in graph.storages.origin))
    view = group(replace(graph, op_kinds=nameless, storages=no_memory))
    for figures in (view.totals, *(box.figures for box in boxes(view) if box.own.unpriced_ops)):
        assert (figures.flops, figures.macs, figures.bytes_moved, figures.activation_bytes) == (None,) * 4
    assert (
        "Some work is outside any module; it is in the totals but in no box: 1 ops, FLOPs unknown, bytes unknown."
        in view.caption
    )


def test_a_shared_module_stands_under_each_caller_with_what_it_did_there() -> None:
    graph = small_run()
    shared = [box for box in boxes(group(graph)) if box.path == "norm"]
    assert [(box.calls, box.own.parameters) for box in shared] == [(2, 64), (1, 0)]
    costs = module_costs(graph).by_edge
    assert [box.figures.bytes_moved for box in shared] == [
        costs["encoder", "norm"].bytes_moved,
        costs["decoder", "norm"].bytes_moved,
    ]


def test_stages_come_from_the_trace() -> None:
    view = group(small_run())
    assert {box.path: box.stage for box in boxes(view)} == {
        "": "prefill",
        "encoder": "vision",
        "decoder": "prefill",
        "norm": "prefill",
    }
    assert [box.stage for box in boxes(view) if box.path == "norm"] == ["vision", "prefill"]
    assert view.stages == ("vision", "prefill")


def test_recursion_nests() -> None:
    def fold(run: MadeRun, x: Token, levels: int) -> Token:
        if not levels:
            return run.op(ADD, x, x)
        return run.call("tree", x, lambda token: fold(run, token, levels - 1))

    view = group(made({"tree": "Tree"}, lambda run, x: fold(run, x, 3)))
    assert [(box.path, box.calls) for box in boxes(view)] == [("", 1), ("tree", 1), ("tree", 1), ("tree", 1)]


def test_recursion_without_end_is_told_together_from_some_depth_on() -> None:
    def fold(run: MadeRun, x: Token, levels: int) -> Token:
        if not levels:
            return run.op(ADD, x, x)
        return run.call("tree", x, lambda token: fold(run, token, levels - 1))

    view = group(made({"tree": "Tree"}, lambda run, x: fold(run, x, 150)))
    assert len(boxes(view)) < 70
    assert sum(box.calls for box in boxes(view)) == 151


def steps(feeding: bool) -> CallGraph:
    run = MadeRun({"proj": "Linear"})
    token = run.input()
    for _ in range(3):
        output = run.call("", token, lambda inner: run.call("proj", inner))
        token = output if feeding else run.input()
    return run.finish(runtime={"decode_steps": 3})


def test_forwards_of_the_whole_model_that_feed_each_other_are_a_for_over_calls() -> None:
    view = group(steps(feeding=True))
    assert view.roots[0].loops == (BoxLoop(kind=LoopKind.FOR, count=3, over="calls"),)
    assert (view.roots[0].instances, view.roots[0].calls) == (1, 3)
    assert "Runtime: 3 decode steps, which the structure confirms." in view.caption
    assert group(steps(feeding=False)).roots[0].loops == (BoxLoop(kind=LoopKind.PARFOR, count=3, over="calls"),)


def test_what_did_not_run_is_in_the_totals_and_in_no_box() -> None:
    view = group(stack_graph())
    assert view.totals.parameters == 7 * 64
    assert view.roots[0].figures.parameters == 6 * 64
    assert "These modules did not run; their 64 parameters are in the totals but in no box: idle." in view.caption


def test_arrows_follow_the_tensors() -> None:
    view = group(stack_graph())
    layers = box_at(view, "layers.[0-2]")
    up, down = layers.children
    assert [(arrow.source, arrow.target, arrow.calls) for arrow in layers.arrows] == [(up.id, down.id, 3)]


def test_inputs_outputs_and_constructor_parameters() -> None:
    layers = box_at(group(stack_graph()), "layers.[0-2]")
    assert [(found.tensors, found.calls) for found in layers.inputs] == [(("float32[4, 8]",), 3)]
    assert sum(found.calls for found in layers.outputs) == 3
    assert layers.constructor_params == {"size": 8}


@pytest.mark.parametrize(("depth", "shown"), [(0, 1), (1, 3), (2, 5), (9, 5)])
def test_depth_opens_so_many_levels(depth: int, shown: int) -> None:
    assert len(group(stack_graph(), depth=depth).visible()) == shown


@pytest.mark.parametrize(("max_boxes", "shown"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (40, 5)])
def test_no_more_boxes_open_than_fit(max_boxes: int, shown: int) -> None:
    assert len(group(stack_graph(), max_boxes=max_boxes).visible()) == shown


@pytest.mark.parametrize(
    ("focus", "root", "instances"),
    [
        ("layers.1", "layers.1", 1),
        ("layers.[0-2]", "layers.[0-2]", 3),
        ("layers", "layers.[0-2]", 3),
        ("layers.[0-2].up", "layers.[0-2].up", 3),
    ],
)
def test_focus_on_a_module_a_family_or_a_container(focus: str, root: str, instances: int) -> None:
    graph = stack_graph()
    view = group(graph, focus=focus)
    assert [(box.path, box.instances) for box in view.roots] == [(root, instances)]
    assert view.totals == view.roots[0].figures
    assert check_conservation(view, graph) == []
    per_layer = 1 if focus.endswith("up") else 2
    assert view.totals.flops == instances * per_layer * PROJECT_FLOPS


def test_focus_on_what_is_not_there_says_what_is() -> None:
    with pytest.raises(UsageError, match=r"layers\.\[0-2\]"):
        group(stack_graph(), focus="layers.[0-3]")
    with pytest.raises(UsageError, match="did not run"):
        group(stack_graph(), focus="idle")


def test_the_same_trace_gives_the_same_view() -> None:
    graph = stack_graph()
    assert group(graph) == group(graph) == group(stack_graph())


RUNTIME = {"images": 1, "crops_per_image": [6], "decoder_depth": 3, "decode_steps": 0}


def test_runtime_facts_that_agree() -> None:
    view = group(stack_graph(runtime=RUNTIME))
    assert view.caption[1] == "Runtime: 1 image, 6 crops, decoder depth 3, which the structure confirms."


@pytest.mark.parametrize(
    ("change", "stages", "told"),
    [
        ({"decoder_depth": 4}, [], "the decoder should have 4 layers in series, but no chain is that long"),
        ({"decode_steps": 2}, [], "2 decode steps should call the model as often; it was called 1 time"),
        ({}, [("vision", ("embed",))], "vision (embed) ran 1 time, but the images and crops need 2"),
    ],
)
def test_runtime_facts_that_disagree(change: dict[str, int], stages: list[object], told: str) -> None:
    view = group(stack_graph(runtime={**RUNTIME, **change}, stages=stages))
    assert [line for line in view.caption if line.startswith(f"Warning: {told}")]


def minimal(graph: CallGraph) -> CallGraph:
    """As a file that holds nothing but call counts and edges."""
    return CallGraph(phase=graph.phase, call_counts=graph.call_counts, edges=graph.edges)


def test_a_file_with_edges_alone_shows_families_and_reads_their_loops_from_names() -> None:
    view = group(minimal(stack_graph()))
    assert drawn(view) == {
        "? @ embed": "",
        "? @ layers.[0-2]": "for 3",
        "? @ layers.[0-2].up": "",
        "? @ layers.[0-2].down": "",
    }
    assert view.totals.flops is view.totals.parameters is view.roots[0].figures.flops is None
    assert any("no data flow, so for and parfor are guessed from names" in line for line in view.caption)


def test_a_file_with_edges_alone_still_knows_repeated_use() -> None:
    view = group(minimal(small_run()))
    assert drawn(view)["? @ encoder"] == "parfor 2"
    assert sum(box.calls for box in boxes(view)) == 7


def test_events_tell_the_callers_of_a_shared_module_apart() -> None:
    graph = small_run()
    view = group(replace(minimal(graph), events=events_of(graph)))
    assert [box.calls for box in boxes(view) if box.path == "norm"] == [2, 1]


def test_without_ops_only_direct_chains_are_claimed() -> None:
    graph = replace(stack_graph(), ops=None, op_kinds=(), coverage=None, op_call_counts={})
    view = group(graph)
    assert drawn(view)["Layer @ layers.[0-2]"] == "for 3"
    assert any("does not follow tensors through ops" in line for line in view.caption)


def test_ops_without_tensors_claim_no_more_than_no_ops() -> None:
    def siblings(run: MadeRun, x: Token) -> Token:
        return run.op(ADD, *[run.call(f"experts.{n}", run.op(ADD, x, x)) for n in range(2)])

    graph = made({"experts": "ModuleList", "experts.0": "Expert", "experts.1": "Expert"}, siblings)
    assert drawn(group(graph)) == {"Expert @ experts.[0-1]": "parfor 2"}
    assert drawn(group(without_op_tensors(graph))) == {"Expert @ experts.[0-1]": ""}


def test_a_view_that_lost_something_is_found_out() -> None:
    graph = stack_graph()
    view = group(graph)
    root = view.roots[0]
    fewer = replace(root, children=root.children[:1])
    assert check_conservation(view, graph) == []
    assert any("figures" in problem for problem in check_conservation(replace(view, roots=(fewer,)), graph))
    more = replace(view, totals=replace(view.totals, flops=1))
    assert check_conservation(more, graph) == [f"flops: the view says 1 in all, the trace has {7 * PROJECT_FLOPS}"]
    recount = replace(root, calls=2, member_calls=(2,))
    assert any(
        "was called 1 times" in problem for problem in check_conservation(replace(view, roots=(recount,)), graph)
    )
