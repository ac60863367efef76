"""Bytes that a run must hold or read: weights, the key-value cache, and what one decoded token touches of both."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas.decoder import decode_passes, decoder_work
from llm_perf_opt.models.deepseek_ocr.formulas.parameters import parameters_by_part
from llm_perf_opt.models.deepseek_ocr.formulas.work import active_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Keys and values of every layer; all heads have their own."""

    layers: int
    heads: int
    head_dim: int
    bytes_per_value: int

    @classmethod
    def of(cls, config: DecoderConfig, bytes_per_value: int) -> KvCache:
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
