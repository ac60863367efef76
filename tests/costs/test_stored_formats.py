"""Weights and cache of a trace in another format: what is stored and read changes, what runs does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph import CallGraph, OpKind, from_json_dict, to_json_dict
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.stored_formats import store_cache, store_weights, what_if_formats
from llm_perf_opt.ops.table import price
from tests.costs.made_kinds import kind
from tests.costs.memory.made_decode import cached, cached_bytes, made_decode
from tests.costs.stored_runs import (
    HIDDEN,
    ROWS,
    WEIGHTS,
    WIDTH,
    half,
    mixture,
    operand_dtypes,
    storage_bytes,
    stored,
)


def bytes_moved(graph: CallGraph) -> int:
    costs = [(price(one), count) for one, count in count_kinds(graph).items()]
    return sum(cost.bytes_moved * count for cost, count in costs if cost is not None)


def flops(graph: CallGraph) -> int:
    costs = [(price(one), count) for one, count in count_kinds(graph).items()]
    return sum(cost.flops * count for cost, count in costs if cost is not None)


def test_the_weight_its_memory_and_the_ops_that_read_it_say_the_format() -> None:
    graph = store_weights(mixture(), {"layers.0.q.weight": "int4-g128"})
    assert graph.problems() == []
    assert stored(graph)["layers.0.q.weight"] == "int4-g128"
    assert storage_bytes(graph, "layers.0.q.weight") == 64 * 64 // 2 + 64 * 2 + 64 // 2  # values, scales, zero points
    assert operand_dtypes(graph)[0] == ("bfloat16", "int4-g128")
    assert bytes_moved(mixture()) - bytes_moved(graph) == 64 * 64 * 2 - storage_bytes(graph, "layers.0.q.weight")


def test_ops_that_shared_a_kind_differ_where_one_of_their_weights_does() -> None:
    """The clone's matmul and the first layer have the same shapes; only one of them reads the stored weight."""
    before = mixture()
    graph = store_weights(before, {"layers.0.q.weight": "fp8"})
    assert before.ops is not None and graph.ops is not None
    assert before.ops.kind[0] == before.ops.kind[-2]
    assert graph.ops.kind[0] != graph.ops.kind[-2]
    assert graph.coverage is not None and graph.coverage.op_kinds == len(graph.op_kinds) == len(before.op_kinds) + 1


def test_what_was_copied_out_of_a_weight_stays_dense() -> None:
    graph = store_weights(mixture(), {"layers.1.q.weight": "int8-channel"})
    assert operand_dtypes(graph)[-3:-1] == [("int8-channel",), ("bfloat16", "bfloat16")]
    assert graph.problems() == []


def test_a_stack_is_grouped_along_its_inputs_whichever_way_it_is_kept() -> None:
    """gate_up is [inputs, outputs] and down [outputs, inputs]: a scale per output is 96 of them, and 64 of them."""
    names = ("layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj")
    graph = store_weights(mixture(), dict.fromkeys(names, "int8-channel"))
    assert [stored(graph)[name] for name in names] == ["int8-channel.T", "int8-channel"]
    assert [storage_bytes(graph, name) for name in names] == [4 * (64 * 96 + 2 * 96), 4 * (64 * 96 + 2 * 64)]
    matmuls = [dtypes for dtypes in operand_dtypes(graph) if len(dtypes) == 2 and dtypes[1].startswith("int8")]
    assert matmuls == [("bfloat16", "int8-channel.T"), ("bfloat16", "int8-channel.T")]  # the second is a view


def test_a_view_of_a_weight_is_stored_as_the_weight_is() -> None:
    graph = store_weights(mixture(), {"layers.0.mlp.experts.down_proj": "mxfp4"})
    transpose = next(op_kind for op_kind in graph.op_kinds if op_kind.name == "aten.transpose.int")
    assert ([one.dtype for one in transpose.inputs], [output.dtype for output in transpose.outputs]) == (
        ["mxfp4"],
        ["mxfp4.T"],
    )


def test_a_module_that_is_handed_a_weight_sees_the_format_too() -> None:
    graph = store_weights(mixture(), {"layers.0.q.weight": "fp8"})
    (observation,) = graph.input_metadata[""]
    assert [tensor.dtype for tensor in observation.tensors] == ["bfloat16", "fp8"]
    assert graph.problems() == []


def test_the_flops_and_the_other_bytes_stay_what_they_were() -> None:
    graph = store_weights(mixture(), what_if_formats(mixture(), "int4-g128"))
    assert flops(graph) == flops(mixture())
    assert stored(graph)["embed.weight"] == stored(graph)["lm_head.weight"] == "bfloat16"


def test_there_and_back_is_where_it_began() -> None:
    graph = mixture()
    formats = what_if_formats(graph, "nvfp4")
    back = store_weights(store_weights(graph, formats), dict.fromkeys(formats, "bfloat16"))
    assert graph.storages is not None and back.storages is not None
    assert (back.storages.bytes, bytes_moved(back), stored(back)) == (
        graph.storages.bytes,
        bytes_moved(graph),
        stored(graph),
    )
    assert operand_dtypes(back) == operand_dtypes(graph)
    assert back.problems() == []


def test_a_stored_format_survives_a_file() -> None:
    graph = store_weights(mixture(), what_if_formats(mixture(), "mxfp4"))
    assert stored(from_json_dict(to_json_dict(graph))) == stored(graph)


def test_one_format_is_changed_for_another() -> None:
    """A trace of an AWQ checkpoint, asked what fp8 would be: every matrix that was stored otherwise follows."""
    awq = store_weights(mixture(), {**what_if_formats(mixture(), "int4-g128"), "lm_head.weight": "int4-g128"})
    graph = store_weights(awq, what_if_formats(awq, "fp8"))
    assert {name for name, dtype in stored(graph).items() if dtype.startswith("fp8")} == {
        "layers.0.q.weight",
        "layers.1.q.weight",
        "layers.0.up.weight",
        "layers.0.mlp.experts.gate_up_proj",
        "layers.0.mlp.experts.down_proj",
        "lm_head.weight",
    }
    assert storage_bytes(graph, "layers.0.up.weight") == 96 * 64 + 4


def test_what_if_converts_linear_layers_and_stacks_alone() -> None:
    assert set(WEIGHTS) - what_if_formats(mixture(), "fp8").keys() == {
        "embed.weight",
        "layers.0.mlp.gate.weight",
        "lm_head.weight",
    }


def test_what_if_on_a_trace_without_classes_is_refused() -> None:
    with pytest.raises(UsageError, match="No matrix of this trace"):
        what_if_formats(replace(mixture(), module_types={}), "fp8")


def test_weights_are_what_the_memory_table_says() -> None:
    graph = store_weights(mixture(), what_if_formats(mixture(), "fp8"))
    dense = {"embed.weight", "lm_head.weight", "layers.0.mlp.gate.weight"}
    matrices = {name: 4 if "experts" in name else 1 for name in WEIGHTS if name not in dense}
    expected = sum(
        2 * math.prod(shape) if name in dense else math.prod(shape) + 4 * matrices[name]
        for name, (_, shape) in WEIGHTS.items()
    )
    assert run_memory([graph]).phases[0].weight_bytes == expected


def test_the_parts_of_a_composite_op_read_the_stored_weight() -> None:
    """einsum turns its weight around and multiplies: the part is told by its number of values."""
    graph = mixture()
    part = kind(
        "aten.bmm.default", {"self": half(1, ROWS, HIDDEN), "mat2": half(1, HIDDEN, WIDTH)}, half(1, ROWS, WIDTH)
    )
    assert graph.ops is not None
    row = graph.ops.kind[1]  # of layers.0.up
    kinds = list(graph.op_kinds)
    kinds[row] = replace(kinds[row], name="aten.einsum.default", parts=(part,))
    changed = store_weights(replace(graph, op_kinds=tuple(kinds)), {"layers.0.up.weight": "fp8"})
    composite = next(op_kind for op_kind in changed.op_kinds if op_kind.name == "aten.einsum.default")
    assert [tensor.dtype for tensor in composite.parts[0].inputs] == ["bfloat16", "fp8.T"]
    assert [tensor.dtype for tensor in composite.parts[0].outputs] == ["bfloat16"]


def test_a_cache_of_one_byte_is_a_quarter_of_one_of_four() -> None:
    graph = made_decode(tokens=5, steps=2)
    (changed,) = store_cache([graph], "float8_e4m3fn")
    assert changed.problems() == []
    cache, before = run_memory([changed]).cache, run_memory([graph]).cache
    assert cache is not None and before is not None
    assert (cache.bytes, cache.bytes_per_token) == (before.bytes // 4, before.bytes_per_token // 4)
    assert before.bytes == 4 * cached_bytes(5)
    assert set(cache.tensors) == {replace(cached(5), dtype="float8_e4m3fn")}
    # two steps of four tensors: read as they were, written one token longer, a quarter of the bytes each time
    read_and_written = sum(4 * (cached_bytes(5 + step) + cached_bytes(6 + step)) for step in (0, 1))
    filled = 4 * cached_bytes(5)
    assert bytes_moved(graph) - bytes_moved(changed) == (read_and_written + filled) * 3 // 4


def test_logits_ids_and_images_keep_their_type() -> None:
    (changed,) = store_cache([made_decode()], "int8")
    (observation,) = changed.output_metadata[""]
    assert [tensor.dtype for tensor in observation.tensors] == ["float32", "int64", *["int8"] * 4]


@pytest.mark.parametrize("phase", ["prefill", "encode"])
def test_a_run_that_does_not_decode_has_no_cache_to_store(phase: str) -> None:
    with pytest.raises(UsageError, match="This run has no KV cache that could be stored"):
        store_cache([made_decode(phase=phase)], "int8")


def sliding(graph: CallGraph, *, name: str, shape: tuple[int, ...]) -> CallGraph:
    """The decode with caches of a fixed size, written by another op."""
    before, after = cached(5), cached(6)

    def resized(one: OpKind) -> OpKind:
        fixed = tuple(replace(meta, shape=shape) if meta in (before, after) else meta for meta in one.inputs)
        outputs = tuple(replace(meta, shape=shape) if meta in (before, after) else meta for meta in one.outputs)
        renamed = name if one.name == "aten.cat.default" else one.name
        return replace(one, name=renamed, inputs=fixed, outputs=outputs)

    metas = tuple(replace(meta, shape=shape) if meta in (before, after) else meta for meta in graph.tensor_metas)
    return replace(
        graph,
        tensor_metas=metas,
        op_kinds=tuple(map(resized, graph.op_kinds)),
        input_metadata={},
        output_metadata={},
    )


def test_a_sliding_window_is_a_cache_of_keys_and_values_though_it_does_not_grow() -> None:
    graph = sliding(made_decode(), name="aten.cat.default", shape=(1, 2, 5, 8))
    (changed,) = store_cache([graph], "int8")
    cache = run_memory([changed]).cache
    assert cache is not None and {meta.dtype for meta in cache.tensors} == {"int8"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("aten.mul.Tensor", (1, 2, 5, 8)),  # a recurrent state is overwritten
        ("aten.cat.default", (1, 8, 4)),  # that of a convolution slides, and has no heads
    ],
)
def test_recurrent_states_are_no_keys_and_values(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="This run has no KV cache that could be stored"):
        store_cache([sliding(made_decode(), name=name, shape=shape)], "int8")
