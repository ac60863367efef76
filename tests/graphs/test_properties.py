"""Whatever a model does, nothing is lost: runs made up by hypothesis, folded and unfolded again."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.graphs.call_tree import call_figures, call_tree, called_modules
from llm_perf_opt.graphs.conservation import check_conservation
from llm_perf_opt.graphs.data_flow import data_flow
from llm_perf_opt.graphs.families import Families
from llm_perf_opt.graphs.groups import Grouper
from llm_perf_opt.graphs.view import group
from tests.examples import examples
from tests.graphs.made_runs import PROJECT, Body, MadeRun, Token, boxes, made
from tests.graphs.random_runs import CLASSES, graphs


def calls_by_path(view: GraphView) -> dict[str, int]:
    """Every box opened: what each member did in each of them, added up."""
    calls: Counter[str] = Counter()
    for box in boxes(view):
        if not box.is_split:
            calls.update(dict(zip(box.members, box.member_calls, strict=True)))
    return {path: count for path, count in calls.items() if count}


@settings(max_examples=examples(150), deadline=None)
@given(graph=graphs())
def test_expanding_every_box_returns_the_raw_graph(graph: CallGraph) -> None:
    view = group(graph)
    assert check_conservation(view, graph) == []
    assert calls_by_path(view) == graph.call_counts
    assert group(graph) == view


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs())
def test_every_call_is_in_one_group_under_the_group_of_its_caller(graph: CallGraph) -> None:
    tree = call_tree(graph)
    modules = called_modules(graph, tree.paths)
    families = Families(graph, tree, modules, data_flow(graph, tree, modules))
    roots = Grouper(graph, tree, families, call_figures(graph).flops).roots()
    home_of: dict[int, int] = {}
    above = {}
    for root in roots:
        for found in root.walk():
            above.update({id(child): id(found) for child in found.children})
            if not found.is_split:
                assert not home_of.keys() & set(found.rows)
                home_of.update(dict.fromkeys(found.rows, id(found)))
    splits = {id(found) for root in roots for found in root.walk() if found.is_split}
    assert sorted(home_of) == list(range(len(tree.path)))
    for row, caller in enumerate(tree.parent):
        outer = above.get(home_of[row])
        outer = above.get(outer) if outer in splits else outer
        assert outer == home_of.get(caller)


@settings(max_examples=examples(60), deadline=None)
@given(graph=graphs(), depth=st.integers(0, 4), max_boxes=st.integers(1, 40))
def test_however_much_is_open_the_boxes_are_the_same(graph: CallGraph, depth: int, max_boxes: int) -> None:
    whole, deep, fitted = group(graph), group(graph, depth=depth), group(graph, max_boxes=max_boxes)
    assert [box.id for box in boxes(deep)] == [box.id for box in boxes(fitted)] == [box.id for box in boxes(whole)]
    assert len(fitted.visible()) <= max(max_boxes, len(fitted.roots))
    assert {box.class_name for box in boxes(whole)} <= {*CLASSES, "Root"}


@settings(max_examples=examples(60), deadline=None)
@given(graph=graphs())
def test_edges_alone_conserve_calls_too(graph: CallGraph) -> None:
    bare = CallGraph(phase="prefill", call_counts=graph.call_counts, edges=graph.edges, root_calls=graph.root_calls)
    assert calls_by_path(group(bare)) == graph.call_counts


@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs(), data=st.data())
def test_a_focus_shows_a_part_and_counts_nothing_twice(graph: CallGraph, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(graph.call_counts)))
    view = group(graph, focus=path)
    assert check_conservation(view, graph) == []
    assert view.roots[0].members == (path,)


@st.composite
def layers(draw: st.DrawFn) -> list[tuple[int, int, bool]]:
    """Structure, FLOPs in matmuls, and whether it runs, of each layer of a stack."""
    layer = st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(0, 4).map(bool))
    return [*draw(st.lists(layer, max_size=6)), (0, 1, True)]


@settings(max_examples=examples(100), deadline=None)
@given(stack=layers(), is_chain=st.booleans())
def test_a_stack_of_layers_is_parted_by_structure_and_gaps_stay_in(
    stack: list[tuple[int, int, bool]], is_chain: bool
) -> None:
    classes = {"layers": "ModuleList"}
    for number, (structure, _, _) in enumerate(stack):
        classes |= {f"layers.{number}": "Layer", f"layers.{number}.part": ("Dense", "Sparse")[structure]}

    def forward(run: MadeRun, x: Token) -> Token:
        last = x
        for number, (_, matmuls, runs) in enumerate(stack):
            if runs:
                last = run.call(f"layers.{number}", last if is_chain else x, body(run, number, matmuls))
        return last

    def body(run: MadeRun, number: int, matmuls: int) -> Body:
        def part(token: Token) -> Token:
            for _ in range(matmuls):
                token = run.op(PROJECT, token, token)
            return token

        return lambda token: run.call(f"layers.{number}.part", token, part)

    view = group(made(classes, forward))
    found = {
        frozenset(int(path.split(".")[1]) for path in box.members): " ".join(loop.text for loop in box.loops)
        for box in view.roots[0].children
    }
    assert found == expected_families(stack, is_chain)


def expected_families(stack: list[tuple[int, int, bool]], is_chain: bool) -> dict[frozenset[int], str]:
    """By the rules of `docs/how/reading-the-graph.md`, worked out without any data flow."""
    families: dict[int, list[int]] = {}
    for number, (structure, _, runs) in enumerate(stack):
        if runs:
            families.setdefault(structure, []).append(number)
    gaps = [number for number, (_, _, runs) in enumerate(stack) if not runs]
    largest = max(families.values(), key=len)
    expected = {}
    for members in families.values():
        extra = gaps if members is largest else []
        kind = "for" if is_chain and len(members) > 1 else "parfor"
        of = f" of {len(members) + len(extra)}" if extra else ""
        loop = f"{kind} {len(members)}{of}" if len(members) + len(extra) > 1 else ""
        expected[frozenset(members + extra)] = loop
    return expected
