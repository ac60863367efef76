"""What the name of a kernel says: which ops launch it, and which ops it does the work of.

The names come from PyTorch's own kernels, from the matrix libraries it calls (cuBLAS, cuDNN, CUTLASS, hipBLASLt,
MIOpen), from Triton as torch.compile generates them, and from serving engines. They are no interface: a kernel that no
rule knows has no meaning here, and is not guessed.

An op is named by a word: `matmul`, `attention`, `convolution`, `copy`, `fill`, `gather` and `scatter` for the families
that share kernels, and otherwise by its own name (`add`, `softmax`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.ops import memory
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.table import kernels_of, op_family, op_of, op_table

MATMUL, ATTENTION, CONVOLUTION = "matmul", "attention", "convolution"
# Second words, of ops that share a kind of kernel: matmuls without a weight, and PyTorch's two kernels for everything.
BATCHED_MATMUL, ELEMENTWISE, REDUCTION = "batched_matmul", "elementwise", "reduction"
COPY, FILL, GATHER, SCATTER = "copy", "fill", "gather", "scatter"
_FAMILY_WORDS = {
    WorkFamily.MATMUL: MATMUL,
    WorkFamily.GROUPED: MATMUL,
    WorkFamily.ATTENTION: ATTENTION,
    WorkFamily.CONVOLUTION: CONVOLUTION,
}
_PRICED_WORDS = {memory.copy: COPY, memory.fill: FILL, memory.gather: GATHER, memory.scatter: SCATTER}
_OWN_WORDS = frozenset({"cat", "stack", "arange", "triu", "tril", "roll", "flip"})  # of them: with kernels of their own
_COPYING = frozenset({"matmul", "bmm", "baddbmm", "einsum", "tensordot"})  # they copy operands that are not contiguous
_SAME_WORDS = {
    "_softmax": "softmax", "_safe_softmax": "softmax", "log_softmax": "softmax", "_log_softmax": "softmax",
    "native_layer_norm": "layer_norm", "_fused_rms_norm": "rms_norm", "stack": "cat", "square": "pow", "sub": "add",
    "rsub": "add", "div": "mul", "true_divide": "mul", "argmax": "max", "amax": "max", "argsort": "sort",
    "native_dropout": "dropout", "native_group_norm": "group_norm", "native_batch_norm": "batch_norm",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMeaning:
    """`label` names the kernel in tables. `words` are the ops that launch it by itself.

    `helps` are ops that launch it next to their own kernel: the sum of a split matmul, a change of layout. A fused
    kernel does the work of a run of ops: `fuses` are the ops that may be in the run.
    """

    label: str
    words: frozenset[str] = frozenset()
    helps: frozenset[str] = frozenset()
    fuses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWords:
    """What an op launches: kernels of one of `words`, and next to them kernels of `helpers`. `word` is its own word."""

    word: str
    words: frozenset[str]
    helpers: frozenset[str] = frozenset()


def _meaning(label: str, words: str = "", *, helps: str = "", fuses: str = "") -> KernelMeaning:
    return KernelMeaning(
        label=label,
        words=frozenset(words.split()),
        helps=frozenset(helps.split()),
        fuses=frozenset(fuses.split()),
    )


_ROOT_MEAN_SQUARE = "copy pow mean add rsqrt mul rms_norm"
_EAGER_ATTENTION = "batched_matmul softmax mul add copy cat max where masked_fill"
_ROTATION = "copy mul neg cat add gather unsqueeze cos sin"
_ROUTING = "softmax topk sum mul copy gather scatter sort bincount cumsum fill one_hot eq matmul"

# The first rule with a pattern that matches the name holds.
_RULES: tuple[tuple[str, KernelMeaning], ...] = (
    (r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter", _meaning("collective", "collective")),
    (r"reduce_segments|splitkv_combine|paged_attention\w*reduce", _meaning("attention, combined", helps="attention")),
    (
        r"flash_fwd|fmha|attn_fwd|attention|FlashAttn|mha_fwd|flash::|_fwd_grouped_kernel_stage1",
        _meaning("attention", "attention", fuses=_EAGER_ATTENTION),
    ),
    (r"add_rms_?norm|AddRmsnorm", _meaning("add and RMS norm", "rms_norm", fuses=_ROOT_MEAN_SQUARE)),
    (r"rms_?norm", _meaning("RMS norm", "rms_norm", fuses=_ROOT_MEAN_SQUARE)),
    (r"splitK_?reduce|PostGSU|reduceSplitK", _meaning("split-K sum of a matmul", helps="matmul")),
    (r"finalize_matmul|moe::dev::finalize|moe_sum", _meaning("experts, combined", helps="matmul", fuses=_ROUTING)),
    (
        r"topk_forward|routing|bitmatrix|topk_softmax|moe_align|grouped_topk",
        _meaning("routing", "topk", fuses=_ROUTING),
    ),
    (r"_swiglu|swiGlu", _meaning("gated matmul", "matmul", fuses="matmul silu mul sigmoid add clamp gather")),
    (
        r"nchwToNhwc|nhwcToNchw|batched_transpose|Im2d2Col|im2col|SubTensorOp",
        _meaning("convolution, layout", helps="convolution"),
    ),
    (r"fprop|conv(?!ert)|winograd|igemm_fwd", _meaning("convolution", "convolution")),
    (
        r"gemm|Cijk_|cutlass|nvjet|xmma|gemv|matmul|\bbmm_|dot_kernel|wvSplitK|splitKgemm",
        _meaning("matmul", "matmul convolution"),
    ),
    (r"layer_?norm", _meaning("layer norm", "layer_norm")),
    (r"group_?norm|RowwiseMoments|ComputeFusedParams", _meaning("group norm", "group_norm")),
    (r"batch_?norm|bn_fw", _meaning("batch norm", "batch_norm")),
    (r"softmax", _meaning("softmax", "softmax")),
    (r"act_and_mul|silu_and_mul|swiglu", _meaning("gated activation", "silu gelu", fuses="silu gelu mul sigmoid")),
    (r"rotary|rope", _meaning("rotary embedding", fuses=_ROTATION)),
    (r"reshape_and_cache|store_kv|kv_?cache", _meaning("cache write", "scatter cat copy", fuses="cat copy scatter")),
    (r"quant", _meaning("quantise", "copy", helps="matmul")),
    (r"CatArray", _meaning("cat", "cat")),
    (r"indexSelect|gather|index_elementwise|index_kernel|embedding", _meaning("gather", "gather")),
    (r"scatter|index_put|index_copy|indexFunc", _meaning("scatter", "scatter")),
    (r"arange", _meaning("arange", "arange fill")),
    (r"Memcpy (?:HtoD|DtoH)|memcpy (?:Host-to-Device|Device-to-Host)", _meaning("host transfer", "item")),
    (r"direct_copy|_copy_kernel|Memcpy|CUDA memcpy|copy_page|CopyFunctor", _meaning("copy", "copy")),
    (r"FillFunctor|Memset|CUDA memset", _meaning("fill", "fill")),
    (r"MeanOps", _meaning("mean", "mean")),
    (r"NormTwoOps|NormOps", _meaning("norm", "linalg_vector_norm norm")),
    (r"WelfordOps", _meaning("variance", "var std var_mean std_mean")),
    (r"ArgMax|MaxOps|MaxNan|max_kernel", _meaning("max", "max")),
    (r"ArgMin|MinOps|MinNan|min_kernel", _meaning("min", "min argmin amin")),
    (r"reduce_kernel.*(?:sum_functor|sum_kernel)|sum_functor", _meaning("sum", "sum")),
    (r"and_kernel|or_kernel", _meaning("all or any", "all any")),
    (r"topk|TopK", _meaning("topk", "topk")),
    (r"radix|bitonic|\bsort|Sort", _meaning("sort", "sort topk")),
    (r"scan", _meaning("scan", "cumsum cumprod nonzero")),
    (r"CompareEq", _meaning("compare", "eq ne")),
    (r"CompareFunctor|compare_scalar|compare_kernel", _meaning("compare", "lt gt le ge")),
    (r"Functor(?:OnSelf|OnOther)?_add|AddFunctor", _meaning("add", "add")),
    (r"MulFunctor|DivFunctor|div_true_kernel", _meaning("mul", "mul")),
    (r"pow_tensor|pow_kernel|powi", _meaning("pow", "pow")),
    (r"GeluCUDA|gelu", _meaning("gelu", "gelu")),
    (r"clamp|relu|threshold", _meaning("clamp", "clamp relu relu6 hardtanh clamp_min clamp_max threshold")),
    (r"triu_tril", _meaning("triangle", "triu tril")),
    (r"BitwiseAnd|bitwise_and|logical_and", _meaning("and", "bitwise_and logical_and __and__")),
    (r"BitwiseOr|bitwise_or|logical_or", _meaning("or", "bitwise_or logical_or __or__")),
    (r"bitwise_not|logical_not", _meaning("not", "bitwise_not logical_not")),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _RULES)
_TRITON = re.compile(r"^triton_(?:poi|red|per|tem|for)_fused_(\w+?)_?\d*$")
_NATIVE = re.compile(r"(?:at::native::|anonymous namespace\)::)(?:\w+::)?([a-z][a-z0-9_]*?)_kernel(?:_impl|_cuda)?\b")
_WRAPPERS = ("elementwise", "reduce", "gpu", "multi_tensor_apply")  # kernels that run whatever functor they are given
_BASE_NAMES = {  # where a recorder leaves out what the template was made for
    "elementwise_kernel": _meaning("elementwise", ELEMENTWISE),
    "reduce_kernel": _meaning("reduction", REDUCTION),
}
_LONGEST_NAME = 4096


@lru_cache(maxsize=65536)
def kernel_meaning(name: str) -> KernelMeaning | None:
    """What the name of a kernel says; None: no rule knows it."""
    name = name[:_LONGEST_NAME]
    fused = _TRITON.match(name)
    if fused:
        return _triton(fused[1])
    for pattern, meaning in _COMPILED:
        if pattern.search(name):
            return meaning
    for match in _NATIVE.finditer(name):
        word = match[1]
        if not word.endswith(_WRAPPERS):
            return KernelMeaning(label=word, words=frozenset({_SAME_WORDS.get(word, word)}))
    return next((meaning for part, meaning in _BASE_NAMES.items() if part in name), None)


def _triton(ops: str) -> KernelMeaning:
    """torch.compile writes the ops that it fused into the name, joined by underscores that ops have themselves."""
    words = frozenset(_word_of_name(f"aten.{word}") for word in _split_ops(ops))
    return KernelMeaning(label=f"fused {ops}"[:60], words=words, fuses=words)


def _split_ops(ops: str) -> list[str]:
    known, pieces, words = op_table(), ops.split("_"), list[str]()
    start = 0
    while start < len(pieces):
        for end in range(len(pieces), start, -1):
            word = "_".join(pieces[start:end])
            if f"aten.{word}" in known:
                words.append(word)
                break
        else:
            end = start + 1
        start = end
    return words


@lru_cache(maxsize=65536)
def launch_words(kind: OpKind) -> tuple[LaunchWords, ...]:
    """What one run of an op launches, in order; nothing for a view. A composite op launches what its parts launch."""
    if not kernels_of(kind):
        return ()
    if kind.parts and op_of(kind) is None:
        return tuple(words for part in kind.parts for words in launch_words(part))
    return (_LAUNCHES.get(word := _word_of_name(kind.name)) or _launch(kind.name, word),)


def _launch(name: str, word: str) -> LaunchWords:
    short = packet_of(name).rpartition(".")[2]
    if short in _COPYING:
        return _words(word, BATCHED_MATMUL, helpers=f"{COPY} {FILL}")
    if word == MATMUL:
        return _words(word, helpers=FILL)
    if word in _REDUCTIONS:
        return _words(word, REDUCTION)
    return _words(word) if word in _WITH_OWN_KERNELS else _words(word, ELEMENTWISE)


def _words(word: str, *others: str, helpers: str = "") -> LaunchWords:
    return LaunchWords(word=word, words=frozenset({word, *others}), helpers=frozenset(helpers.split()))


_REDUCTIONS = frozenset({
    "mean", "sum", "max", "min", "amin", "argmin", "all", "any", "prod", "linalg_vector_norm", "norm", "var", "std",
    "var_mean", "std_mean",
})  # fmt: skip
_WITH_OWN_KERNELS = frozenset({
    "softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "cat", GATHER, SCATTER, "cumsum", "cumprod",
    "nonzero", "item",
})  # fmt: skip
_LAUNCHES: Mapping[str, LaunchWords] = {
    CONVOLUTION: _words(CONVOLUTION, helpers=f"{COPY} {FILL} add"),
    ATTENTION: _words(ATTENTION, helpers=FILL),
    "topk": _words("topk", "sort", helpers=f"{COPY} {FILL} sort {GATHER}"),
    "sort": _words("sort", helpers=f"{COPY} {FILL} arange"),
    "constant_pad_nd": _words(COPY, ELEMENTWISE, helpers=FILL),
    "pad": _words(COPY, ELEMENTWISE, helpers=FILL),
}


@lru_cache(maxsize=4096)
def _word_of_name(name: str) -> str:
    if (family := op_family(name)) in _FAMILY_WORDS:
        return _FAMILY_WORDS[family]
    short = packet_of(name).rpartition(".")[2]
    op = op_of(OpKind(name=name, inputs=(), outputs=()))
    if op is not None and op.price in _PRICED_WORDS and short not in _OWN_WORDS:
        return _PRICED_WORDS[op.price]
    return _SAME_WORDS.get(short, short)
