"""What kernel names say, held against recordings that know which op launched each of them."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.kernel_names import kernel_meaning, launch_words
from tests.measurements.join.condensed_runs import FACTS, Row, facts

RUNS = sorted(file.stem for file in FACTS.glob("*.json"))
X = TensorMeta((4, 8), "float32", "cuda:0")


@pytest.mark.parametrize("run", RUNS)
def test_a_kernel_means_the_op_that_launched_it(run: str) -> None:
    """Of eight recorded runs on two vendors' GPUs: no kernel is taken for that of another op."""
    _, rows = facts(run)
    assert rows
    assert [(row.op, row.kernel) for row in rows if not _agrees(row)] == []


def _agrees(row: Row) -> bool:
    """The kernel is the op's own, or one that runs beside it; a name that says nothing is no lie."""
    meaning = kernel_meaning(row.kernel)
    if meaning is None or not row.words:
        return True
    is_own = not row.words.isdisjoint(meaning.words | meaning.helps)
    kind = OpKind(name=row.op.replace("::", ".").rstrip("_"), inputs=(X, X, X), outputs=(X,))
    helpers = frozenset[str]().union(*(words.helpers for words in launch_words(kind)))
    return is_own or not helpers.isdisjoint(meaning.words) or row.op in BIASED


BIASED = {"aten::addmm"}  # with one column it is a matmul of a vector, to which a small kernel adds the bias


@pytest.mark.parametrize("run", RUNS)
def test_most_of_the_time_has_a_known_name(run: str) -> None:
    _, rows = facts(run)
    spent = {row: row.count * row.median_us for row in rows}
    assert sum(us for row, us in spent.items() if kernel_meaning(row.kernel)) >= 0.99 * sum(spent.values())


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "matmul"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "matmul"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>", "convolution"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::X&)::{lambda}>", "rsqrt"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>", "mean"),
        ("void at::native::elementwise_kernel<128, 4>", "elementwise"),
        ("vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel", "add and RMS norm"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>", "attention"),
        ("Memcpy HtoD (Pageable -> Device)", "host transfer"),
    ],
)
def test_names_of_libraries_and_engines(name: str, label: str) -> None:
    meaning = kernel_meaning(name)
    assert meaning is not None
    assert meaning.label == label


def test_a_name_that_no_rule_knows_means_nothing() -> None:
    assert kernel_meaning("frobnicate_v2") is None
    assert kernel_meaning("") is None


def test_torch_compile_names_the_ops_it_fused() -> None:
    meaning = kernel_meaning("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3")
    assert meaning is not None
    assert meaning.fuses == {"copy", "add", "mean", "mul", "pow", "rsqrt"}


def test_a_view_launches_nothing_and_a_composite_op_what_its_parts_do() -> None:
    view = OpKind(name="aten.transpose.int", inputs=(X,), outputs=(X,), output_aliases=(0,))
    add = OpKind(name="aten.add.Tensor", inputs=(X, X), outputs=(X,))
    mean = OpKind(name="aten.mean.dim", inputs=(X,), outputs=(X,))
    both = OpKind(name="vendor.both.default", inputs=(X,), outputs=(X,), parts=(view, mean, add))
    assert launch_words(view) == ()
    assert [words.word for words in launch_words(both)] == ["mean", "add"]
