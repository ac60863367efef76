"""Which parameters are matrices that a quantised checkpoint may convert, and what each of them does in the model.

Told from the classes and names of modules and from the shapes, so that it holds for any model and for a saved trace.
Embeddings, norms, convolutions, biases and positions are none of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import Parameter

_LINEAR = re.compile(r"Linear|^Conv1D$")  # transformers' Conv1D is a linear layer with a transposed weight
_EXPERTS = re.compile(r"Expert")
_ROUTER = re.compile(r"(Router|Gate)$")
_ROUTER_NAMES = frozenset({"gate", "router", "shared_expert_gate"})
_HEAD_NAMES = frozenset({"lm_head", "embed_out"})


class Role(StrEnum):
    """What a weight matrix is for; formats treat them differently."""

    LINEAR = "matrix"
    EXPERTS = "expert stack"  # all experts of a layer in one tensor; in a checkpoint each of them is a linear layer
    ROUTER = "router"
    HEAD = "output head"


def weight_matrices(graph: CallGraph) -> dict[str, Role]:
    """Parameter name -> role, in the order of the parameters; empty where the trace tells no classes of modules."""
    heads = frozenset(_heads(graph))
    return {
        parameter.name: Role.HEAD if parameter.name in heads else role
        for parameter in graph.parameters
        if (role := _role(parameter, graph)) is not None
    }


def module_of(parameter_name: str) -> str:
    """The path of the module that owns a parameter."""
    return parameter_name.rpartition(".")[0]


def _role(parameter: Parameter, graph: CallGraph) -> Role | None:
    path, _, name = parameter.name.rpartition(".")
    class_name, dimensions = graph.module_types.get(path), len(parameter.meta.shape)
    if class_name is None or parameter.is_buffer or dimensions < 2 or "bias" in name:
        return None
    names = path.split(".")
    if _ROUTER.search(class_name) or names[-1] in _ROUTER_NAMES or "router" in names:
        return Role.ROUTER
    if _EXPERTS.search(class_name):
        return Role.EXPERTS
    return Role.LINEAR if _LINEAR.search(class_name) and name == "weight" and dimensions == 2 else None


def _heads(graph: CallGraph) -> Iterator[str]:
    """Linear layers that turn hidden states into scores of tokens: tied to an embedding, named so, or of its shape."""
    embeddings = [
        parameter
        for parameter in graph.parameters
        if "Embedding" in graph.module_types.get(module_of(parameter.name), "") and len(parameter.meta.shape) == 2
    ]
    tied = {parameter.storage for parameter in embeddings if parameter.storage >= 0}
    vocabulary = max((parameter.meta.shape for parameter in embeddings), key=math.prod, default=None)
    for parameter in graph.parameters:
        names, shape = module_of(parameter.name).split("."), parameter.meta.shape
        is_in_a_layer = any(name.isdigit() for name in names)
        has_its_shape = shape == vocabulary and not is_in_a_layer
        is_inside_one = not _HEAD_NAMES.isdisjoint(names) and vocabulary is not None and shape[:1] == vocabulary[:1]
        if parameter.storage in tied or names[-1] in _HEAD_NAMES or has_its_shape or is_inside_one:
            yield parameter.name
