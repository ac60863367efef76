"""Runs written by hand for the grouping: modules that pass tensors to each other, and the ops between them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind
from llm_perf_opt.core.graph_view import Box, GraphView
from tests.costs.made_kinds import kind, tensor

X = tensor(4, 8)
HALF = tensor(2, 8)
WEIGHT = tensor(8, 8)
PROJECT = kind("aten.mm.default", {"self": X, "mat2": WEIGHT}, X, output_aliases=(-1,))
ADD = kind("aten.add.Tensor", {"self": X, "other": X}, X, output_aliases=(-1,))
ADD_INTO = kind("aten.add_.Tensor", {"self": X, "other": X}, X, output_aliases=(0,), mutates=True)
INDEX_ADD_INTO = kind("aten.index_add_.default", {"self": X, "source": X}, X, output_aliases=(0,), mutates=True)
SLICE = kind("aten.slice.Tensor", {"self": X}, HALF, output_aliases=(0,))
PROJECT_FLOPS = 2 * 4 * 8 * 8

Token = int
Body = Callable[[Token], Token]


class MadeRun:
    """A model is a table of path -> class; every `Linear` in it has one weight."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self.builder = CallGraphBuilder()
        self._tokens = 100
        self._weights: dict[str, Token] = {}
        for path, class_name in {"": "Root", **classes}.items():
            below = [other for other in classes if other and other.rpartition(".")[0] == path]
            self.builder.module(path, class_name, tuple(below), {"size": 8})
            if class_name == "Linear":
                self._weights[path] = self.fresh()
                self.builder.parameter(f"{path}.weight", WEIGHT, self._weights[path], 256, is_buffer=False)

    def fresh(self) -> Token:
        self._tokens += 1
        return self._tokens

    def input(self) -> Token:
        token = self.fresh()
        self.builder.allocate(token, 128, "input")
        return token

    def op(self, op_kind: OpKind, *inputs: Token) -> Token:
        token = inputs[0] if op_kind.output_aliases[0] == 0 else self.fresh()
        if token != inputs[0]:
            self.builder.allocate(token, 128)
        self.builder.op(op_kind, inputs, [token])
        return token

    def call(self, path: str, token: Token, body: Body | None = None) -> Token:
        """Run a module on one tensor; a leaf multiplies by its weight."""
        self.builder.enter(path, [(X, token)])
        output = self.op(PROJECT, token, self._weights.get(path, token)) if body is None else body(token)
        self.builder.leave([(X, output)])
        return output

    def chain(self, paths: Sequence[str], token: Token, body: Callable[[str, Token], Token] | None = None) -> Token:
        for path in paths:
            token = self.call(path, token) if body is None else body(path, token)
        return token

    def finish(self, **header: Any) -> CallGraph:
        full: dict[str, Any] = {
            "model": "made",
            "phase": "prefill",
            "tracer": "hand",
            "workload": {},
            "stages": [],
            "runtime": {},
            "library_versions": {},
        }
        graph = self.builder.finish(**full | header)
        assert graph.problems() == []
        return graph


def made(classes: Mapping[str, str], forward: Callable[[MadeRun, Token], Token], **header: Any) -> CallGraph:
    """One call of the root, whose forward is `forward`."""
    run = MadeRun(classes)
    run.call("", run.input(), lambda token: forward(run, token))
    return run.finish(**header)


def boxes(view: GraphView) -> list[Box]:
    return [box for root in view.roots for box in root.walk()]


def drawn(view: GraphView) -> dict[str, str]:
    """Label -> loops, for every box below the root."""
    return {box.label: " ".join(loop.text for loop in box.loops) for box in boxes(view)[1:]}


def box_at(view: GraphView, path: str) -> Box:
    (found,) = [box for box in boxes(view) if box.path == path]
    return found


def without_op_tensors(graph: CallGraph) -> CallGraph:
    """The same run as a tracer leaves it that sees ops and not their tensors."""
    assert graph.ops is not None
    bare = tuple(replace(kind, inputs=(), outputs=(), input_names=(), output_aliases=()) for kind in graph.op_kinds)
    ops = replace(graph.ops, input_storages=array("q"), output_storages=array("q"))
    return replace(graph, ops=ops, op_kinds=bare)
