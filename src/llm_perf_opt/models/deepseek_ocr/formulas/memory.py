"""Parameters of each part, and the bytes a run holds or reads: weights, cache, what one decoded token touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DecoderConfig, DeepSeekOcrConfig, SamConfig
from llm_perf_opt.models.deepseek_ocr.formulas.decoder import decode_passes, decoder_work
from llm_perf_opt.models.deepseek_ocr.formulas.vision import CLIP, PIXEL_CHANNELS, PROJECTOR, SAM
from llm_perf_opt.models.deepseek_ocr.formulas.work import active_weights

EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"


def parameters_by_part(config: DeepSeekOcrConfig) -> Mapping[str, int]:
    """Path -> elements, for parts that are disjoint and together the model; each decoder layer is one of them."""
    decoder = config.decoder
    layers = {f"model.layers.{index}": _decoder_layer(decoder, index) for index in range(decoder.num_hidden_layers)}
    return {
        EMBEDDING: decoder.vocab_size * decoder.hidden_size,
        **layers,
        "model.norm": decoder.hidden_size,
        SAM: sam_parameters(config.sam),
        CLIP: clip_parameters(config.clip),
        PROJECTOR: (config.projector_input_size + 1) * decoder.hidden_size,
        "model.image_newline": decoder.hidden_size,
        "model.view_seperator": decoder.hidden_size,
        HEAD: decoder.vocab_size * decoder.hidden_size,
    }


def parameters_by_stage(config: DeepSeekOcrConfig) -> Mapping[str, int]:
    """The three vision stages, and everything else: what prefill and decode own."""
    by_part = parameters_by_part(config)
    vision = {"sam": by_part[SAM], "clip": by_part[CLIP], "projector": by_part[PROJECTOR]}
    return {**vision, "decoder": sum(by_part.values()) - sum(vision.values())}


def sam_parameters(config: SamConfig) -> int:
    """Patch embedding, positions, blocks, neck, and the two convolutions that halve."""
    width, neck, (middle, last) = config.hidden_size, config.neck_channels, config.downsample_channels
    grid = config.image_size // config.patch_size
    embedding = (PIXEL_CHANNELS * config.patch_size**2 + 1) * width + grid**2 * width
    blocks = sum(_sam_block(config, index) for index in range(config.num_layers))
    thinning = width * neck + 9 * neck**2 + 2 * 2 * neck + 9 * neck * middle + 9 * middle * last
    return embedding + blocks + thinning


def _sam_block(config: SamConfig, index: int) -> int:
    width = config.hidden_size
    is_global = index in config.global_attn_indexes
    grid = config.image_size // config.patch_size if is_global else config.window_size
    relative_positions = 2 * (2 * grid - 1) * (width // config.num_heads)
    return _transformer_block(width, width * config.mlp_ratio) + relative_positions


def clip_parameters(config: ClipConfig) -> int:
    """Class token, the unused patch embedding, positions, the norm before the blocks, and the blocks."""
    width, positions = config.hidden_size, (config.image_size // config.patch_size) ** 2 + 1
    embedding = (1 + PIXEL_CHANNELS * config.patch_size**2 + positions) * width
    return embedding + 2 * width + config.num_layers * _transformer_block(width, config.ffn_hidden_size)


def _transformer_block(width: int, inner: int) -> int:
    """Two norms, four square projections and two of the MLP, all with biases."""
    return 2 * 2 * width + 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width


def _decoder_layer(config: DecoderConfig, index: int) -> int:
    """Two norms, four square projections, and a gated MLP or a router with its experts; nothing has a bias."""
    width, inner = config.hidden_size, config.moe_intermediate_size
    shared = 2 * width + 4 * width**2
    if index < config.first_k_dense_replace:
        return shared + 3 * width * config.intermediate_size
    experts = config.n_routed_experts + config.n_shared_experts
    return shared + width * config.n_routed_experts + 3 * width * inner * experts


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormula:
    """Keys and values of every layer; all heads have their own."""

    layers: int
    heads: int
    head_dim: int
    bytes_per_value: int

    @classmethod
    def of(cls, config: DecoderConfig, bytes_per_value: int) -> CacheFormula:
        """The cache of a decoder that stores values of that many bytes."""
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            bytes_per_value=bytes_per_value,
        )

    def bytes_at(self, tokens: int, *, batch: int = 1) -> int:
        """Size when each of `batch` sequences holds `tokens` tokens."""
        return 2 * self.layers * self.heads * self.head_dim * self.bytes_per_value * tokens * batch


def weight_bytes(config: DeepSeekOcrConfig, bytes_per_value: int) -> int:
    """All weights in memory."""
    return sum(parameters_by_part(config).values()) * bytes_per_value


def active_parameters(config: DecoderConfig, *, batch: int = 1) -> int:
    """Elements of the matrices that one decoding step of `batch` tokens multiplies with.

    Norms and the embedding row are no matrices. More tokens use more experts: as many as uniform routing is expected to
    touch.
    """
    return active_weights(decoder_work(config, decode_passes(0, batch=batch)))


def weight_bytes_read_per_step(config: DecoderConfig, bytes_per_value: int, *, batch: int = 1) -> int:
    """The active matrices, every norm, and one row of the embedding per token."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    rows = batch * config.hidden_size
    return (active_parameters(config, batch=batch) + norms + rows) * bytes_per_value
