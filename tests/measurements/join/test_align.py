"""Alignments small enough to read: a layer of five launches, and what a recording may have more, less or other."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.measurements.join.attribution import Alignment, align
from llm_perf_opt.measurements.join.sides import Evidence, HostEvidence, Item, Launch
from llm_perf_opt.ops.kernel_names import LaunchWords, kernel_meaning

NAMES = {
    "norm": "vectorized_layer_norm_kernel<float>",
    "matmul": "sm90_xmma_gemm_bf16bf16_tilesize128x128x64",
    "split": "cublasLt::splitKreduce_kernel<32, 16>",
    "attention": "pytorch_flash::flash_fwd_kernel<64>",
    "add": "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "copy": "elementwise_kernel<128, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
    "gelu": "vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>",
    "fill": "Memset (Device)",
    "fused": "vllm::fused_add_rms_norm_kernel<c10::BFloat16>",
    "strange": "my_own_kernel",
}
WORDS = {"norm": "layer_norm"}
LAYER = ("norm", "matmul", "attention", "matmul", "add")


def launch(name: str, place: int, *, sizes: tuple[int, ...] = (), helpers: str = "") -> Launch:
    word = WORDS.get(name, name)
    words = LaunchWords(word=word, words=frozenset({word}), helpers=frozenset(helpers.split()))
    return Launch(ops=(place,), names=frozenset({f"aten.{word}"}), words=words, sizes=sizes)


def launches(*names: str) -> tuple[Launch, ...]:
    helpers = {"matmul": "fill"}
    return tuple(launch(name, place, helpers=helpers.get(name, "")) for place, name in enumerate(names))


def items(*names: str) -> tuple[Item, ...]:
    meanings = [kernel_meaning(NAMES[name]) for name in names]
    return tuple(
        Item(work=(row,), meanings=() if meaning is None else (meaning,), seen=None)
        for row, meaning in enumerate(meanings)
    )


def pairs(found: Alignment) -> list[tuple[int, int]]:
    """Item and launch; a fused one with its last launch."""
    return [(match.item, match.launches[-1]) for match in found.matches]


def test_the_same_run_costs_nothing() -> None:
    found = align(items(*LAYER), launches(*LAYER))
    assert (pairs(found), found.cost, found.forwards) == ([(row, row) for row in range(5)], 0.0, 1)


def test_a_kernel_that_the_trace_does_not_run_is_left_over() -> None:
    found = align(items("norm", "matmul", "copy", "attention", "matmul", "add"), launches(*LAYER))
    assert pairs(found) == [(0, 0), (1, 1), (3, 2), (4, 3), (5, 4)]


def test_an_op_that_the_recording_does_not_run_is_left_out() -> None:
    found = align(items("norm", "matmul", "attention", "matmul"), launches("norm", "matmul", "gelu", *LAYER[2:4]))
    assert pairs(found) == [(0, 0), (1, 1), (2, 3), (3, 4)]


def test_a_matmul_has_its_fill_before_and_its_split_sum_behind() -> None:
    found = align(items("norm", "fill", "matmul", "split", "attention", "fill", "matmul", "add"), launches(*LAYER))
    assert pairs(found) == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 3), (7, 4)]


def test_three_forwards_are_counted() -> None:
    found = align(items(*LAYER * 3), launches(*LAYER))
    assert found.forwards == 3
    assert [match.forward for match in found.matches] == [0] * 5 + [1] * 5 + [2] * 5
    assert pairs(found) == [(row, row % 5) for row in range(15)]


def test_layers_are_not_mistaken_for_one_another() -> None:
    """Twelve layers alike, of which one lacks an op in the recording: all others keep their number."""
    recorded = [*LAYER * 5, *LAYER[:4], *LAYER * 6]
    found = align(items(*recorded), launches(*LAYER * 12))
    assert found.forwards == 1
    assert pairs(found) == [(row, row if row < 29 else row + 1) for row in range(59)]


def test_a_recording_may_begin_and_end_inside_a_forward() -> None:
    found = align(items("attention", "matmul", "add", "gelu"), launches("norm", *LAYER * 2, "gelu", "copy", "norm"))
    assert pairs(found) == [(0, 8), (1, 9), (2, 10), (3, 11)]


def test_a_fused_kernel_does_a_run_of_ops() -> None:
    norm = ("add", "copy", "pow", "mean", "add", "rsqrt", "mul", "copy", "mul")
    found = align(items("matmul", "fused", "matmul"), launches("matmul", *norm, "matmul"))
    assert [match.launches for match in found.matches] == [range(1), range(1, 10), range(10, 11)]


def test_a_kernel_without_a_known_name_is_given_to_nothing() -> None:
    found = align(items("norm", "strange", "matmul", "attention", "matmul", "add"), launches(*LAYER))
    assert 1 not in {match.item for match in found.matches}


def test_the_hosts_shapes_decide_where_names_cannot() -> None:
    """Two matmuls alike by their kernels, in another order than the sizes allow: only one of them fits."""
    meaning = kernel_meaning(NAMES["matmul"])
    assert meaning is not None
    wide = Item(
        work=(0,), meanings=(meaning,), seen=HostEvidence(names=("aten.linear", "aten.mm"), sizes=((8, 64), (8, 64)))
    )
    traced = (launch("matmul", 0, sizes=(8, 16)), launch("matmul", 1, sizes=(8, 64)))
    (match,) = align((wide,), traced).matches
    assert (match.launches, match.evidence) == (range(1, 2), Evidence.SHAPES)


def test_the_work_grows_with_the_items_and_not_with_their_square() -> None:
    """Six hundred layers against as many: nine million pairs, of which few are looked at."""
    found = align(items(*LAYER * 600), launches(*LAYER * 600))
    assert pairs(found) == [(row, row) for row in range(3000)]


def test_a_routed_expert_is_known_by_its_weight_whatever_its_tokens() -> None:
    """Two experts of one shape; the first gets 3 tokens in the run where the trace has 5, the second none."""
    weight, of_trace = 64 * 8, tuple(sorted((5 * 8, 64 * 8)))
    expert = replace(launch("matmul", 0, sizes=of_trace), is_routed=True)
    both = (expert, replace(expert, ops=(1,)), launch("add", 2, sizes=(40, 40)))
    meaning = kernel_meaning(NAMES["matmul"])
    assert meaning is not None
    ran = HostEvidence(names=("aten.matmul",), sizes=((3 * 8, weight),))
    added = HostEvidence(names=("aten.add",), sizes=((40, 40),))
    recorded = (Item(work=(0,), meanings=(meaning,), seen=ran), Item(work=(1,), meanings=(), seen=added))
    found = align(recorded, both)
    assert pairs(found)[-1] == (1, 2)
    assert [match.evidence for match in found.matches] == [Evidence.ROUTED, Evidence.OP_AND_SHAPES]
    other = HostEvidence(names=("aten.matmul",), sizes=((3 * 8, weight + 8),))
    assert [match.item for match in align((replace(recorded[0], seen=other), recorded[1]), both).matches] == [1]


def test_a_long_row_of_helpers_without_their_kernel_still_ends() -> None:
    """A training step clears hundreds of gradients; the kernels behind them are still found."""
    assert align(items(*["fill"] * 300), launches("norm", "matmul")).forwards == 1
    found = align(items(*["fill"] * 300, *LAYER), launches(*LAYER))
    assert pairs(found)[-4:] == [(301, 1), (302, 2), (303, 3), (304, 4)]
