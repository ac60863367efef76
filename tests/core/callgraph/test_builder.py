"""The builder counts what it is told, once, and merges what is the same."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest

from llm_perf_opt import __version__
from llm_perf_opt.core.callgraph import CallGraphBuilder, Coverage, Observation, OpKind, OracleAnswer
from llm_perf_opt.core.errors import PerfOptError
from tests.core.callgraph.made_graphs import declare_toy, finished, matmul, meta, toy_graph

X, W = meta(2, 4), meta(4, 4)


def test_the_toy_graph_is_sound() -> None:
    assert toy_graph().problems() == []


def test_calls_edges_and_own_ops() -> None:
    graph = toy_graph()
    assert graph.call_counts == {"": 1, "vision": 1, "vision.proj": 2, "head": 1, "blocks.0": 2}
    assert graph.root_calls == {"": 1}
    assert graph.edges == {
        "->vision": 1,
        "vision->vision.proj": 1,
        "->head": 1,
        "head->vision.proj": 1,
        "->blocks.0": 1,
        "blocks.0->blocks.0": 1,
    }
    assert graph.op_call_counts == {"": 0, "vision": 1, "vision.proj": 2, "head": 0, "blocks.0": 1}
    assert graph.coverage == Coverage(ops=5, op_kinds=3)


def test_observations_are_distinct_and_counted() -> None:
    graph = toy_graph()
    assert graph.input_metadata["vision.proj"] == (Observation(tensors=(X,), calls=2),)
    assert graph.input_metadata["blocks.0"] == (Observation(tensors=(X,), calls=1), Observation(tensors=(), calls=1))
    assert graph.output_metadata["vision"] == (Observation(tensors=(X, X), calls=1),)


def test_outputs_belong_to_the_call_that_returned_them() -> None:
    calls = toy_graph().calls
    assert calls is not None
    assert list(calls.path) == [0, 1, 2, 3, 2, 4, 4]
    assert list(calls.parent) == [-1, 0, 1, 0, 3, 0, 5]
    assert list(calls.first_op) == [1, 1, 1, 3, 3, 4, 4]
    assert list(calls.end_op) == [5, 3, 2, 4, 4, 5, 5]
    assert list(calls.output_count) == [1, 2, 1, 1, 1, 1, 0]


def test_storages_are_born_used_and_freed() -> None:
    graph = toy_graph()
    storages, ops = graph.storages, graph.ops
    assert storages is not None
    assert ops is not None
    assert storages.origin == (
        "parameter", "buffer", "input", "activation", "activation", "activation", "external"
    )  # fmt: skip
    assert list(storages.bytes) == [32, 2, 16, 16, 16, 16, 32]  # the last is the weight that nobody allocated: [4, 4]
    assert list(storages.born_op) == [0, 0, 0, 0, 1, 3, 0]
    assert list(storages.freed_op) == [5, 5, 5, 2, 4, 5, 5]
    assert list(ops.call) == [-1, 2, 1, 4, 6]
    assert list(ops.input_storages) == [2, 6, 3, 0, 4, 4, 0, 5]
    assert list(ops.output_storages) == [3, 4, 4, 5, 5]


def test_tied_weights_share_a_storage_of_the_largest_size() -> None:
    builder = CallGraphBuilder()
    builder.parameter("slice", meta(2), 7, 4, is_buffer=False)
    builder.parameter("whole", meta(8), 7, 16, is_buffer=True)
    graph = finished(builder)
    assert [parameter.storage for parameter in graph.parameters] == [0, 0]
    assert graph.storages is not None
    assert (list(graph.storages.bytes), graph.storages.origin) == ([16], ("parameter",))


def test_a_weight_made_during_the_run_is_one_storage() -> None:
    builder = CallGraphBuilder()
    builder.allocate(7, 16)
    builder.parameter("cache", meta(8), 7, 16, is_buffer=True)
    graph = finished(builder)
    assert graph.storages is not None
    assert graph.storages.origin == ("activation",)
    assert graph.parameters[0].storage == 0


def test_kinds_of_equal_content_become_one_row() -> None:
    builder = CallGraphBuilder()
    for _ in range(3):
        builder.op(matmul(builder, 2), (1, 2), (1,))
    builder.op(matmul(builder, 3), (1, 2), (1,))
    graph = finished(builder)
    assert graph.ops is not None
    assert list(graph.ops.kind) == [0, 0, 0, 1]
    assert [kind.inputs[0].shape for kind in graph.op_kinds] == [(2, 4), (3, 4)]


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), ("inf", "-inf"), (None, 0), ([1], [1, 1])])
def test_kinds_that_differ_in_an_argument_stay_apart(one: object, other: object) -> None:
    builder = CallGraphBuilder()
    for argument in (one, other):
        builder.op(matmul(builder, 2, {"value": argument}), (1, 2), (1,))
    assert len(finished(builder).op_kinds) == 2


def test_kinds_that_differ_in_a_part_stay_apart() -> None:
    builder = CallGraphBuilder()
    whole = matmul(builder, 2)
    for part in (matmul(builder, 3), matmul(builder, 3), matmul(builder, 5)):
        builder.op(replace(whole, parts=(part,)), (1, 2), (1,))
    kinds = finished(builder).op_kinds
    assert [kind.parts[0].inputs[0].shape[0] for kind in kinds] == [3, 5]
    assert meta(5, 4) in finished(builder).tensor_metas


def test_arguments_read_the_same_before_and_after_saving() -> None:
    builder = CallGraphBuilder()
    builder.op(matmul(builder, 2, {"dims": (0, 1), "value": float("-inf"), "big": 2**70}), (1, 2), (1,))
    assert finished(builder).op_kinds[0].arguments == {"dims": [0, 1], "value": "-inf", "big": str(2**70)}


def test_a_storage_from_outside_may_still_be_freed() -> None:
    builder = CallGraphBuilder()
    builder.op(matmul(builder, 2), (1, 2), (3,))
    builder.free(3)
    builder.free(12345)
    builder.op(matmul(builder, 2), (1, 2), (1,))
    graph = finished(builder)
    assert graph.storages is not None
    assert list(graph.storages.freed_op) == [2, 2, 1]
    assert graph.problems() == []


def test_memory_of_unknown_dtype_is_not_guessed() -> None:
    builder = CallGraphBuilder()
    odd = builder.meta((2,), "float3", "cpu")
    builder.op(OpKind(name="odd", inputs=(odd,), outputs=()), (1,), ())
    with pytest.raises(PerfOptError, match="float3"):
        finished(builder)


def test_the_header() -> None:
    graph = toy_graph()
    assert graph.tool_version == __version__
    assert graph.workload == {"batch": 1, "crops": [2, 3]}
    assert graph.stages == (("tower", ("vision",)), ("head", ("head", "vision.proj")))
    assert graph.oracle_answers == (
        OracleAnswer(op="topk", policy="balanced", site="moe.py:12 in route", count=2),
    )  # fmt: skip
    assert graph.stopped_in is None


def test_a_tracer_that_sees_no_ops_claims_nothing_about_them() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Toy", (), {})
    builder.enter("", [(X, 1)])
    builder.leave([(X, 2)])
    graph = finished(builder)
    assert (graph.ops, graph.coverage, graph.op_call_counts) == (None, None, {})
    assert graph.problems() == []


def test_a_partial_run_is_closed_where_it_stopped() -> None:
    builder = CallGraphBuilder()
    declare_toy(builder)
    builder.enter("", [(X, 1)])
    builder.enter("vision", [(X, 1)])
    assert builder.current_path == "vision"
    builder.op(matmul(builder, 2), (1, 2), (1,))
    graph = finished(builder, stopped_in="vision")
    assert graph.stopped_in == "vision"
    assert graph.call_counts == {"": 1, "vision": 1}
    assert graph.problems() == []


def test_an_open_call_in_a_whole_run_is_a_mistake() -> None:
    builder = CallGraphBuilder()
    builder.enter("head", ())
    with pytest.raises(ValueError, match="'head' was never left"):
        finished(builder)


def test_mistakes_of_a_tracer_are_refused() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Toy", (), {})
    builder.parameter("w", W, 1, 32, is_buffer=False)
    with pytest.raises(ValueError, match="declared twice"):
        builder.module("", "Toy", (), {})
    with pytest.raises(ValueError, match="'w' was declared twice"):
        builder.parameter("w", W, 2, 32, is_buffer=False)
    with pytest.raises(ValueError, match="without a matching enter"):
        builder.leave(())
    with pytest.raises(ValueError, match="takes 2 tensors and gives 1; got 1 and 1"):
        builder.op(matmul(builder, 2), (1,), (1,))
    with pytest.raises(ValueError, match="has no JSON form"):
        builder.module("x", "X", (), {"weight": object()})
    builder.allocate(5, 1)
    builder.allocate(5, 1)
    with pytest.raises(ValueError, match="token 5 was allocated twice"):
        finished(builder)


def test_one_module_under_two_names_is_one_child() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Toy", ("a", "a"), {})
    assert finished(builder).module_children[""] == ("a",)


def test_metas_are_interned() -> None:
    builder = CallGraphBuilder()
    assert builder.meta((1, 2), "float32", "cpu") is builder.meta((1, 2), "float32", "cpu")


def test_an_op_leaves_nothing_for_the_garbage_collector() -> None:
    builder = CallGraphBuilder()
    kind = matmul(builder, 2)
    builder.op(kind, (1, 2), (3,))
    gc.collect()
    before = len(gc.get_objects())
    for token in range(1000):
        builder.allocate(10 + token, 16)
        builder.op(kind, (1, 2), (10 + token,))
        builder.free(10 + token)
    assert len(gc.get_objects()) - before < 10


@pytest.mark.slow
def test_the_millionth_op_costs_what_the_first_did() -> None:
    """The target is 1 microsecond of CPU per op; the bound leaves room for a slow machine."""

    def us_per_op(builder: CallGraphBuilder, kind: OpKind, count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            builder.op(kind, (1, 2, 3), (4,))
        return (time.process_time() - start) / count * 1e6

    kind = OpKind(name="aten.addmm.default", inputs=(X, X, W), outputs=(X,))
    full = CallGraphBuilder()
    us_per_op(full, kind, 1_000_000)
    # In turns, so that a busy machine slows both.
    costs = [(us_per_op(CallGraphBuilder(), kind, 10_000), us_per_op(full, kind, 10_000)) for _ in range(10)]
    early, late = (min(side) for side in zip(*costs, strict=True))
    assert early < 4
    assert late < 1.5 * early
