"""What vLLM looks for on a machine with GPUs, and a machine without them lacks: kernels, and questions to the driver.

A kernel that is known here is an op with the schema that vLLM's extension gives it, and no code: it runs on ghosts, and
a trace records it under its own name. One that is not known raises when it is called, not when it is looked up.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

# Schemas of vLLM's CUDA extension: what is written comes first and is marked with an exclamation mark.
_GATED = "(Tensor! result, Tensor input) -> ()"
_CLAMPED = "(Tensor! result, Tensor input, float limit, float alpha=1.0, float beta=0.0) -> ()"
KERNELS: Mapping[str, Mapping[str, str]] = {
    "_C": {
        "silu_and_mul": _GATED,
        "mul_and_silu": _GATED,
        "gelu_and_mul": _GATED,
        "gelu_tanh_and_mul": _GATED,
        "fatrelu_and_mul": "(Tensor! result, Tensor input, float threshold) -> ()",
        "silu_and_mul_with_clamp": _CLAMPED,
        "swigluoai_and_mul": "(Tensor! result, Tensor input, float alpha=1.702, float limit=7.0) -> ()",
        "situ_and_mul": "(Tensor! result, Tensor input, float beta, float linear_beta) -> ()",
        "gelu_new": _GATED,
        "gelu_fast": _GATED,
        "gelu_quick": _GATED,
        "gelu_tanh": _GATED,
        "relu_squared": _GATED,
        "rotary_embedding": (
            "(Tensor positions, Tensor! query, Tensor(a!)? key, int head_size, Tensor cos_sin_cache, bool is_neox, "
            "int rope_dim_offset=0, bool inverse=False) -> ()"
        ),
        "cutlass_scaled_mm": (
            "(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias=None) -> ()"
        ),
        "per_token_group_fp8_quant": (
            "(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float fp8_min, "
            "float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed=False, "
            "bool dummy_is_tma_aligned=False) -> ()"
        ),
        "static_scaled_fp8_quant": "(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()",
        "dynamic_scaled_fp8_quant": "(Tensor! result, Tensor input, Tensor! scale) -> ()",
        "dynamic_per_token_scaled_fp8_quant": "(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()",
    }
}
# vLLM's own ops that stay switched off: their torch code runs, which our counter takes apart.
CUSTOM_OPS = (
    "none",
    "+silu_and_mul",
    "+mul_and_silu",
    "+gelu_and_mul",
    "+silu_and_mul_with_clamp",
    "+swigluoai_and_mul",
    "+rotary_embedding",
)
_NAMESPACES = ("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_stable_libtorch")
_EXTENSIONS = ("vllm._C_stable_libtorch", "vllm._C", "vllm._moe_C")
_GENERIC_CLASSES = {
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLM",
    "GlmMoeDsaForCausalLM": "GlmMoeDsaForCausalLM",
}
_LIBRARIES: list[torch.library.Library] = []  # an op lives as long as its library


class MissingKernel:
    """A name in a compiled extension that is not there. It may be looked up and passed on, and raises when called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Say which kernel is missing."""
        raise NotImplementedError(f"the GPU kernel {self.name} has no stand-in")

    def __getattr__(self, name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{self.name}.{name}")


class Namespace:
    """`torch.ops._C` with a stand-in for every name that no library has defined."""

    def __init__(self, name: str, plain: Any) -> None:
        self._name, self._plain = name, plain

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._plain, name)
        except AttributeError:
            return MissingKernel(f"{self._name}::{name}")


def stand_in() -> None:
    """Put all stand-ins in place, once per process and before a model class is imported."""
    if _LIBRARIES:
        return
    _launch_no_kernels()
    for name in _EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    _define_kernels()
    _stand_in_for_flash_attention()
    ops = importlib.import_module("vllm._custom_ops")  # it gives shapes to the ops that it finds: not to all
    for name in _NAMESPACES:
        setattr(torch.ops, name, Namespace(name, getattr(torch.ops, name)))
    for name in dir(ops):
        if "supports" in name or "supported" in name:
            setattr(ops, name, _yes)
    torch.cuda.Stream = torch.cuda.Event = NoStream  # type: ignore[misc,assignment]
    _leave_out_fused_norms()
    _stand_in_for_sparse_indexer()
    _stand_in_for_experts()
    _stand_in_for_triton()
    # Layers that ask for the device to put a buffer on would get the number of a GPU.
    type(importlib.import_module("vllm.platforms").current_platform).current_device = classmethod(lambda cls: "cpu")
    _inspect_here()
    _take_generic_classes()
    _stand_in_for_tokenizers()


def _leave_out_fused_norms() -> None:
    """A norm with an all-reduce of squares would reserve memory of its peers; without its kernel it does not."""
    if importlib.util.find_spec("vllm.model_executor.layers.minimax_rms_norm") is not None:
        _replace("vllm.model_executor.layers.minimax_rms_norm.rms_norm_tp", "_MINIMAX_FUSED_AR_RMS_QK", None)


class NoStream:
    """A stream or event of a device that is not there: none. Then shared experts run before the routed ones."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoStream | None:  # type: ignore[misc]
        """Nothing, whatever is asked for."""
        return None


def _stand_in_for_sparse_indexer() -> None:
    """Which keys sparse attention reads is chosen by kernels of DeepGEMM, on a stream of their own."""
    indexer, group = "vllm.model_executor.layers.sparse_attn_indexer", "vllm.v1.attention.backends.mla.index_group"
    for module, name, answer in (
        (indexer, "has_deep_gemm", _yes),
        (group, "_create_side_stream", _nothing),
        (group, "_create_event", _nothing),
    ):
        if importlib.util.find_spec(module) is not None:
            _replace(module, name, answer)
    if importlib.util.find_spec(group) is not None:  # an event that its layers wait for: there is none
        importlib.import_module(group).SparseMLAIndexGroup.set_logical_topk_ready = _nothing


def _stand_in_for_experts() -> None:
    """Triton's kernels for experts in mxfp4, which the builds for GPUs bring along: without them others pad more."""
    experts = "vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe"
    if importlib.util.find_spec(experts) is not None:
        _replace(experts, "has_triton_kernels", _yes)
        routed = importlib.import_module("vllm.model_executor.layers.fused_moe.routed_experts").RoutedExperts
        routed._ensure_moe_quant_config_init = _nothing  # scales that are swizzled once weights are loaded


def _replace(module: str, name: str, stand_in: Any) -> None:
    importlib.import_module(module).__dict__[name] = stand_in


def _yes(*args: Any, **kwargs: Any) -> bool:
    return True


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _define_kernels() -> None:
    for namespace, schemas in KERNELS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        for name, schema in schemas.items():
            library.define(name + schema)
            library.impl(name, _nothing, "Meta")
        _LIBRARIES.append(library)


def _stand_in_for_flash_attention() -> None:
    """Two modules that are asked for versions at import, and for kernels at run time."""
    for name in ("vllm.vllm_flash_attn", "vllm.vllm_flash_attn.flash_attn_interface"):
        module = types.ModuleType(name)
        module.__dict__.update(
            __path__=[],
            __getattr__=_name_in(name),
            is_fa_version_supported=lambda version, *_: version in (2, 3),
            fa_version_unsupported_reason=_nothing,
        )
        sys.modules[name] = module


def _name_in(module: str) -> Callable[[str], MissingKernel]:
    def kernel(name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{module}.{name}")

    return kernel


class TileSizes:
    """One way to tile a Triton kernel: what layers look at while they are imported."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **_: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class UnlaunchedKernel:
    """A kernel of Triton's that does nothing when it is launched: the tensors that it would write stay ghosts."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return _nothing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What a kernel calls is a plain function."""
        return self.function(*args, **kwargs)


def _launch_no_kernels() -> None:
    """Before any module with kernels is imported."""
    triton = importlib.import_module("vllm.triton_utils").triton
    if type(triton).__name__ == "TritonPlaceholder":
        triton.jit = lambda *args, **_: UnlaunchedKernel(args[0]) if args else UnlaunchedKernel


def _stand_in_for_triton() -> None:
    """Where vLLM has put a placeholder in the place of Triton, its configurations are functions: no attributes."""
    triton = importlib.import_module("vllm.triton_utils").triton
    if type(triton).__name__ == "TritonPlaceholder":
        triton.Config = TileSizes
    mrope = importlib.import_module("vllm.model_executor.layers.rotary_embedding.mrope").MRotaryEmbedding
    mrope.forward_cuda = mrope.forward_native  # a kernel of Triton's otherwise


def keep_ghosts() -> None:
    """The wrapper around models of transformers makes its parameters again, on meta; ghosts take no memory either."""
    for name in ("utils", "base"):
        module = sys.modules.get(f"vllm.model_executor.models.transformers.{name}")
        if module is not None:
            module.__dict__["init_on_device_without_buffers"] = lambda device: nullcontext()


def _inspect_here() -> None:
    """By itself vLLM looks at a model class in a process of its own, for 20 s; that process would know no stand-ins."""
    registry = importlib.import_module("vllm.model_executor.models.registry")

    def inspect(self: Any) -> Any:
        return registry._ModelInfo.from_model_cls(self.load_model_cls())

    registry._LazyRegisteredModel.inspect_model_cls = inspect
    # By itself an error is logged, and says "see the log".
    _replace(registry.__name__, "_try_inspect_model_cls", lambda name, model: model.inspect_model_cls())


def _take_generic_classes() -> None:
    """Sparse latent attention as vLLM writes it for any device: the class for GPUs calls Triton's kernels by itself."""
    registry = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    for name, generic in _GENERIC_CLASSES.items():
        registry.register_model(name, f"vllm.model_executor.models.deepseek_v2:{generic}")


class AnyTokenizer:
    """A tokenizer of a folder that has none: every token has a number, and no text has more than one."""

    class _Vocabulary(dict[str, int]):
        def __missing__(self, token: str) -> int:
            return self.setdefault(token, len(self) + 1)

    def __init__(self) -> None:
        self.vocab = self._Vocabulary()
        self.bos_token_id = self.eos_token_id = self.pad_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        """Every token that was asked for."""
        return self.vocab

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int]:
        """The number of a token, or of each."""
        return self.vocab[tokens] if isinstance(tokens, str) else [self.vocab[token] for token in tokens]

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """One number for any text."""
        return [self.vocab[text]]


def _stand_in_for_tokenizers() -> None:
    """Models of images look the number of their image token up while they are built."""
    registry = importlib.import_module("vllm.tokenizers.registry")
    plain = registry.cached_tokenizer_from_config

    def cached_tokenizer(config: Any, **options: Any) -> Any:
        return AnyTokenizer() if config.skip_tokenizer_init else plain(config, **options)

    for module in ("vllm.tokenizers", registry.__name__):
        _replace(module, "cached_tokenizer_from_config", cached_tokenizer)
