"""Each invariant, with a graph that breaks it and nothing else before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, Coverage, Observation, Parameter
from tests.core.callgraph.made_graphs import changed, finished, meta, toy_graph

TOY = toy_graph()
MINIMAL = CallGraph(call_counts={"": 1, "a": 2, "b": 6}, edges={"->a": 2, "a->b": 6})


def without_columns(graph: CallGraph) -> CallGraph:
    return replace(graph, calls=None, ops=None, storages=None, parameters=())


def test_totals_alone_are_enough() -> None:
    assert MINIMAL.problems() == []
    assert without_columns(TOY).problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"call_counts": {"": 1, "a": 3, "b": 6}}, "'a' was called 3 times, 2 by edges and 0 as a root"),
        ({"edges": {"->a": 2, "a->b": 5}}, "'b' was called 6 times, 5 by edges and 0 as a root"),
        ({"edges": {"->a": 2, "a->b": 6, "a->c": 1}}, "edge 'a->c': 'c' was never called"),
        ({"edges": {"->a": 2, "a=>b": 6}}, "edge 'a=>b' does not name a parent and a child"),
        ({"edges": {"->a": 2, "a->b": 6, "->b": 0}}, "edges['->b'] is 0, below 1"),
        ({"call_counts": {"": 0, "a": 2, "b": 6}}, "call_counts[''] is 0, below 1"),
        ({"root_calls": {"": 1, "b": 1}}, "'b' was called 6 times, 6 by edges and 1 as a root"),
        ({"root_calls": {"": 1, "c": 1}}, "root_calls has 'c', which was never called"),
        ({"op_call_counts": {"c": 1}}, "op_call_counts has 'c', which was never called"),
        ({"op_call_counts": {"a": -1}}, "op_call_counts['a'] is -1, below 0"),
        (
            {"call_counts": {"": 1, "a": 2, "b": 2}, "edges": {"a->b": 2, "b->a": 2}},
            "'a' was called, yet no chain of calls leads to it from a root",
        ),
        ({"module_types": {"": "Toy", "a": "A"}}, "'b' was called and is not declared"),
        (
            {"module_types": {"": "", "a": "", "b": ""}, "stopped_in": "x"},
            "the run stopped in 'x', which is not declared",
        ),
        (
            {"module_types": {"": "", "a": "", "b": ""}, "constructor_params": {"x": {}}},
            "'x' has children or constructor parameters and is not declared",
        ),
        (
            {"module_types": {"": "", "a": "", "b": ""}, "module_children": {"": ("a", "b", "a")}},
            "'' lists a child twice",
        ),
        (
            {"module_types": {"": "", "a": "", "b": ""}, "module_children": {"": ("a", "b", "c")}},
            "'' lists the child 'c', which is not declared; a shared module keeps its one path",
        ),
        (
            {"module_types": {"": "", "a": "", "b": ""}, "module_children": {"": ("a",), "a": ("b",)}},
            "'b' is declared and is no child of ''",
        ),
        (
            {"input_metadata": {"b": (Observation(tensors=(), calls=7),)}},
            "input_metadata['b'] covers 7 calls of 6",
        ),
        (
            {"output_metadata": {"b": (Observation(tensors=(), calls=6), Observation(tensors=(meta(1),), calls=0))}},
            "output_metadata['b'] has an observation without a call",
        ),
        (
            {"output_metadata": {"b": (Observation(tensors=(), calls=5), Observation(tensors=(), calls=1))}},
            "output_metadata['b'] has the same tensors twice",
        ),
        (
            {"op_call_counts": {"a": 3}, "coverage": Coverage(ops=2, op_kinds=1)},
            "op_call_counts adds up to 3 ops, the tracer saw 2",
        ),
    ],
)
def test_a_contradiction_between_totals(changes: dict[str, Any], problem: str) -> None:
    assert problem in replace(MINIMAL, **changes).problems()


def test_observations_may_miss_calls_only_where_no_column_shows_them() -> None:
    some = {"b": (Observation(tensors=(), calls=5),)}
    assert replace(MINIMAL, input_metadata=some).problems() == []
    path = next(path for path, rows in TOY.input_metadata.items() if rows[0].calls > 1)
    fewer = (replace(TOY.input_metadata[path][0], calls=1),)
    problems = replace(TOY, input_metadata={**TOY.input_metadata, path: fewer}).problems()
    assert any(problem.startswith(f"input_metadata[{path!r}] covers 1 calls of") for problem in problems)


def test_a_module_may_be_called_from_outside_as_well() -> None:
    graph = replace(MINIMAL, call_counts={"": 1, "a": 2, "b": 7}, root_calls={"": 1, "b": 1})
    assert graph.problems() == []


def test_an_arrow_in_a_module_name_is_no_edge() -> None:
    graph = CallGraph(call_counts={"": 1, "a->b": 1, "c": 1}, edges={"->a->b": 1, "a->b->c": 1})
    assert graph.problems() == []


def test_an_edge_that_could_be_read_two_ways_is_refused() -> None:
    graph = CallGraph(call_counts={"a": 1, "b->c": 1, "a->b": 1, "c": 1}, edges={"a->b->c": 1})
    assert "edge 'a->b->c' does not name a parent and a child" in graph.problems()


def test_an_edge_of_arrows_alone_is_cheap_to_refuse() -> None:
    edge = "->" * 200_000
    assert CallGraph(call_counts={"": 1}, edges={edge: 1}).problems()


EVENTS = (("enter", ""), ("enter", "a"), ("exit", "a"), ("exit", ""))


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (EVENTS[:3], "events: the call of '' is never left"),
        ((*EVENTS[:2], ("exit", "")), "events[2] leaves '', which is not the innermost open call"),
        (EVENTS[2:], "events[0] leaves 'a', which is not the innermost open call"),
        (
            (("enter", ""), ("exit", ""), ("enter", "a"), ("exit", "a")),
            "events show edges: '->a' is 1 in the file, counted none",
        ),
        (
            (*EVENTS[:3], ("enter", "a"), ("exit", "a"), EVENTS[3]),
            "events show calls: 'a' is 1 in the file, counted 2",
        ),
    ],
)
def test_events_that_show_something_else(events: tuple[tuple[str, str], ...], problem: str) -> None:
    graph = CallGraph(call_counts={"": 1, "a": 1}, edges={"->a": 1}, events=events)
    assert problem in graph.problems()
    assert replace(graph, events=EVENTS).problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"call_counts": {**TOY.call_counts} | {"head": 2}},
            "calls add up to call_counts: 'head' is 2 in the file, counted 1",
        ),
        (
            {"edges": {**TOY.edges} | {"head->vision": 1}},
            "calls add up to edges: 'head->vision' is 1 in the file, counted none",
        ),
        ({"root_calls": {"head": 1}}, "calls add up to root_calls: '' is missing in the file, counted 1"),
        (
            {"op_call_counts": {**TOY.op_call_counts} | {"head": 1, "vision": 0}},
            "ops add up to op_call_counts: 'vision' is 0 in the file, counted 1",
        ),
        (
            {"input_metadata": {**TOY.input_metadata} | {"head": (Observation(tensors=(meta(3),), calls=1),)}},
            "input_metadata['head'] differs from the tensors of the calls",
        ),
        (
            {"output_metadata": {k: v for k, v in TOY.output_metadata.items() if k != "head"}},
            "output_metadata['head'] differs from the tensors of the calls",
        ),
        (
            {"coverage": Coverage(ops=5, op_kinds=4)},
            "coverage says 5 ops of 4 kinds, the columns hold 5 of 3",
        ),
        ({"paths": ("", "vision", "vision", "head", "blocks.0")}, "paths: a module path has two rows"),
        ({"parameters": (TOY.parameters[0],) * 2}, "parameters: a name occurs twice"),
        (
            {"parameters": (Parameter(name="w", meta=meta(1), storage=7),)},
            "parameter 'w': there is no storage 7",
        ),
        (
            {"op_kinds": (replace(TOY.op_kinds[0], input_names=("self",)), *TOY.op_kinds[1:])},
            "op_kinds[0] (aten.mm.default): 1 input names for 2 inputs",
        ),
        (
            {"op_kinds": (replace(TOY.op_kinds[0], output_aliases=(0, 0)), *TOY.op_kinds[1:])},
            "op_kinds[0] (aten.mm.default): 2 aliases for 1 outputs",
        ),
        (
            {"op_kinds": (replace(TOY.op_kinds[0], output_aliases=(2,)), *TOY.op_kinds[1:])},
            "op_kinds[0] (aten.mm.default): an output shares the storage of input 2, of 2 inputs",
        ),
        (
            {"op_kinds": (TOY.op_kinds[1], *TOY.op_kinds[1:])},
            "ops: 8 input storages, the kinds have 5 inputs",
        ),
        ({"tensor_metas": ()}, "calls.input_metas[0] is 2, not below 0"),
        (
            {"op_call_counts": {}, "input_metadata": {}, "output_metadata": {}, "root_calls": {}, "coverage": None},
            None,
        ),
    ],
)
def test_totals_against_columns(changes: dict[str, Any], problem: str | None) -> None:
    problems = replace(TOY, **changes).problems()
    assert problems == [] if problem is None else problem in problems


@pytest.mark.parametrize(
    ("table", "columns", "problem"),
    [
        ("calls", {"path": [0, 1, 2, 3, 2, 4]}, "calls: the columns differ in length"),
        ("calls", {"path": [0, 1, 2, 3, 2, 4, 5]}, "calls.path[6] is 5, not below 5"),
        ("calls", {"parent": [-1, 0, 1, 0, 3, 0, -2]}, "calls.parent[6] is -2, below -1"),
        ("calls", {"parent": [-1, 2, 0, 0, 3, 0, 5]}, "call 1 has parent 2: a parent precedes its children"),
        (
            "calls",
            {"parent": [-1, 0, 1, 0, 1, 0, 5]},
            "call 4 of 'vision.proj' was entered under call 1, which had already returned",
        ),
        (
            "calls",
            {"first_op": [1, 1, 1, 3, 3, 3, 4]},
            "call 5 of 'blocks.0' begins at op 3, inside the call before it",
        ),
        ("calls", {"end_op": [5, 3, 4, 4, 4, 5, 5]}, "call 1 of 'vision' ends at op 3, before a call inside it does"),
        ("calls", {"end_op": [4, 3, 2, 4, 4, 5, 5]}, "call 0 of '' ends at op 4, before a call inside it does"),
        ("calls", {"end_op": [6, 3, 2, 4, 4, 5, 5]}, "calls.end_op[0] is 6, not below 6"),
        ("calls", {"input_count": [1, 1, 1, 1, 1, 1, -1]}, "calls.input_count[6] is -1, below 0"),
        (
            "calls",
            {"output_count": [1, 1, 1, 1, 1, 1, 0]},
            "calls: output_count adds up to 6, for 7 metas and 7 storages",
        ),
        ("calls", {"output_storages": [5, 4, 4, 4, 5, 5, 7]}, "calls.output_storages[6] is 7, not below 7"),
        (
            "calls",
            {"input_storages": [3, 3, 5, 4, 4, 5]},
            "a call has storage 5 as input at op 1, which lives from op 3 up to op 5",
        ),
        ("ops", {"kind": [0, 0, 1, 0]}, "ops: 4 kinds for 5 calls"),
        ("ops", {"kind": [0, 0, 1, 0, 3]}, "ops.kind[4] is 3, not below 3"),
        ("ops", {"call": [-1, 2, 1, 4, 7]}, "ops.call[4] is 7, not below 7"),
        ("ops", {"call": [-1, 2, 1, 4, 5]}, "op 4 is said to run in call 5, the innermost call around it is 6"),
        ("ops", {"call": [0, 2, 1, 4, 6]}, "op 0 is said to run in call 0, the innermost call around it is -1"),
        ("ops", {"output_storages": [3, 4, 4, 5]}, "ops: 4 output storages, the kinds have 5 outputs"),
        (
            "ops",
            {"input_storages": [2, 6, 5, 0, 4, 4, 0, 5]},
            "op 1 has storage 5 as input, which lives from op 3 up to op 5",
        ),
        (
            "ops",
            {"output_storages": [3, 4, 3, 5, 5]},
            "op 2 has storage 3 as output, which lives from op 0 up to op 2",
        ),
        ("storages", {"bytes": [32, 2, 16]}, "storages: the columns differ in length"),
        ("storages", {"bytes": [32, 2, 16, 16, 16, 16, -1]}, "storages.bytes[6] is -1, below 0"),
        ("storages", {"freed_op": [5, 5, 5, 2, 4, 6, 5]}, "storages.freed_op[5] is 6, not below 6"),
        ("storages", {"born_op": [0, 0, 0, 3, 1, 3, 0]}, "storage 3 is freed before op 2 and born at op 3"),
    ],
)
def test_columns_that_cannot_have_happened(table: str, columns: dict[str, list[int]], problem: str) -> None:
    assert problem in changed(TOY, table, **columns).problems()


def test_an_unknown_origin() -> None:
    storages = TOY.storages
    assert storages is not None
    graph = replace(TOY, storages=replace(storages, origin=("heap", *storages.origin[1:])))
    assert graph.problems() == [
        "storages: 'heap' is no origin; known are parameter, buffer, input, activation, external, scratch"
    ]


def test_a_flood_of_problems_is_summed_up() -> None:
    graph = CallGraph(call_counts={f"m{i}": 0 for i in range(1000)}, edges={})
    problems = graph.problems()
    assert len(problems) == 21
    assert problems[-1] == "and 980 more like the last one"


def test_a_call_of_an_undeclared_module_is_a_problem() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Toy", (), {})
    builder.enter("", ())
    builder.enter("ghost", ())
    builder.leave(())
    builder.leave(())
    assert finished(builder).problems() == ["'ghost' was called and is not declared"]
