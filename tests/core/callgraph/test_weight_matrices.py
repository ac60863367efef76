"""Which parameters a quantised checkpoint may convert, told from classes, names and shapes."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph import CallGraph, Parameter
from llm_perf_opt.core.callgraph.queries import Role, weight_matrices
from tests.core.callgraph.made_graphs import meta


def graph_of(*weights: tuple[str, str, tuple[int, ...]], tied: dict[str, str] | None = None) -> CallGraph:
    """(parameter name, class of its module, shape) each; `tied` names share the memory of others."""
    storages = {name: row for row, (name, _, _) in enumerate(weights)}
    for name, other in (tied or {}).items():
        storages[name] = storages[other]
    return CallGraph(
        module_types={name.rpartition(".")[0]: class_name for name, class_name, _ in weights},
        parameters=tuple(Parameter(name=name, meta=meta(*shape), storage=storages[name]) for name, _, shape in weights),
    )


@pytest.mark.parametrize(
    ("name", "class_name", "shape", "role"),
    [
        ("layers.0.mlp.up_proj.weight", "Linear", (96, 64), Role.LINEAR),
        ("h.0.mlp.c_fc.weight", "Conv1D", (64, 96), Role.LINEAR),
        ("layers.0.mlp.up_proj.bias", "Linear", (96,), None),
        ("layers.0.mlp.experts.gate_up_proj", "MixtralExperts", (8, 192, 64), Role.EXPERTS),
        ("layers.0.mlp.experts.gate_up_proj_bias", "GptOssExperts", (8, 192), None),
        ("layers.0.mlp.experts.3.w1.weight", "Linear", (96, 64), Role.LINEAR),
        ("layers.0.mlp.gate.weight", "MixtralTopKRouter", (8, 64), Role.ROUTER),
        ("layers.0.mlp.gate.weight", "Linear", (8, 64), Role.ROUTER),
        ("layers.0.mlp.gate_proj.weight", "Linear", (96, 64), Role.LINEAR),
        ("layers.0.mlp.shared_expert_gate.weight", "Linear", (1, 64), Role.ROUTER),
        ("layers.0.moe.router.layer.weight", "Linear", (8, 64), Role.ROUTER),
        ("layers.0.input_layernorm.weight", "RMSNorm", (64,), None),
        ("embed_tokens.weight", "Embedding", (200, 64), None),
        ("patch_embed.proj.weight", "Conv2d", (64, 3, 16, 16), None),
        ("mixer.conv1d.weight", "Conv1d", (64, 1, 4), None),
        ("position_embedding", "Tower", (1, 256, 64), None),
        ("lm_head.weight", "Linear", (200, 64), Role.HEAD),
    ],
)
def test_a_parameter_has_the_role_of_its_module(
    name: str, class_name: str, shape: tuple[int, ...], role: Role | None
) -> None:
    assert weight_matrices(graph_of((name, class_name, shape))).get(name) is role


def test_an_output_head_is_told_by_its_tie_or_by_the_shape_of_the_vocabulary() -> None:
    embedding = ("embed.weight", "Embedding", (200, 64))
    positions = ("positions.weight", "Embedding", (32, 64))
    graph = graph_of(
        embedding,
        positions,
        ("out.weight", "Linear", (200, 64)),
        ("scores.weight", "Linear", (50, 64)),
        ("lm_head.decoder.weight", "Linear", (200, 128)),  # as many outputs, inside a module of that name
        ("lm_head.dense.weight", "Linear", (64, 64)),
        ("layers.0.wide.weight", "Linear", (200, 64)),  # of that shape, and in a layer
        ("narrow.weight", "Linear", (32, 64)),  # of the shape of the positions
        tied={"scores.weight": "embed.weight"},
    )
    assert weight_matrices(graph) == {
        "out.weight": Role.HEAD,
        "scores.weight": Role.HEAD,
        "lm_head.decoder.weight": Role.HEAD,
        "lm_head.dense.weight": Role.LINEAR,
        "layers.0.wide.weight": Role.LINEAR,
        "narrow.weight": Role.LINEAR,
    }


def test_a_trace_without_classes_tells_nothing() -> None:
    graph = CallGraph(parameters=(Parameter(name="a.weight", meta=meta(4, 4), storage=0),))
    assert weight_matrices(graph) == {}
