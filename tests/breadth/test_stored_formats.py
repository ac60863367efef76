"""One model of every family with its weights in another format: sound, smaller, and back where it began."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.costs.stored_formats import store_weights, what_if_formats
from llm_perf_opt.ops.cost import FREE, OpCost
from llm_perf_opt.ops.table import price
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.breadth,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

ONE_OF_EACH = list({model.family: model for model in TINY_MODELS}.values())


def name_of(model: TinyModel) -> str:
    return model.model


def cost(graph: CallGraph) -> OpCost:
    total = FREE
    for kind, count in count_kinds(graph).items():
        total += (price(kind) or FREE).times(count)
    return total


@pytest.mark.parametrize("model", ONE_OF_EACH, ids=name_of)
def test_another_format_moves_fewer_bytes_and_computes_the_same(model: TinyModel) -> None:
    (graph,) = lpo.trace(model.build(), (), model.make_inputs()).graphs
    formats = what_if_formats(graph, "fp8")
    stored = store_weights(graph, formats)
    assert stored.problems() == []
    assert cost(stored).flops == cost(graph).flops
    assert cost(stored).bytes_moved < cost(graph).bytes_moved
    back = store_weights(stored, dict.fromkeys(formats, "float32"))
    assert back.problems() == []
    assert cost(back) == cost(graph)
    assert back.storages is not None and graph.storages is not None
    assert back.storages.bytes == graph.storages.bytes
