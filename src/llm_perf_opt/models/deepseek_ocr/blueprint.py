"""The whole model: vision features take the places of image tokens, then the decoder runs.

Module paths, class names and state-dict names equal the released code's, so released weights load; the code is
our own, for inference only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.attention import KvCache, PastKeyValues
from llm_perf_opt.models.deepseek_ocr.clip import VitModel
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.decoder import DeepseekV2DecoderLayer, DeepseekV2RMSNorm, causal_mask
from llm_perf_opt.models.deepseek_ocr.projector import MlpProjector
from llm_perf_opt.models.deepseek_ocr.sam import ImageEncoderViT

ImageViews = tuple[Tensor, Tensor]
"""The tiles and the global view of one page, both `[views, 3, side, side]`; all-zero tiles mean that there are none."""


class ModelOutput(NamedTuple):
    """Hidden states of every position, and the cache for the next forward."""

    last_hidden_state: Tensor
    past_key_values: PastKeyValues


class CausalLmOutput(NamedTuple):
    """Float32 logits of every position, and the cache for the next forward."""

    logits: Tensor
    past_key_values: PastKeyValues


class DeepseekOCRModel(nn.Module):
    """Vision encoders, projector and decoder stack."""

    def __init__(self, config: DeepSeekOcrConfig, attention: str) -> None:
        super().__init__()
        decoder = config.decoder
        self.attention = attention
        self.vocab_size = decoder.vocab_size
        self.hidden_size = decoder.hidden_size
        self.num_hidden_layers = decoder.num_hidden_layers
        self.embed_tokens = nn.Embedding(decoder.vocab_size, decoder.hidden_size)
        self.layers = nn.ModuleList(
            DeepseekV2DecoderLayer(decoder, index, attention) for index in range(decoder.num_hidden_layers)
        )
        self.norm = DeepseekV2RMSNorm(decoder.hidden_size, decoder.rms_norm_eps)
        self.sam_model = ImageEncoderViT(config.sam)
        self.vision_model = VitModel(config.clip)
        self.projector = MlpProjector(config.projector_input_size, decoder.hidden_size)
        self.image_newline = nn.Parameter(torch.randn(decoder.hidden_size) * decoder.hidden_size**-0.5)
        self.view_seperator = nn.Parameter(torch.randn(decoder.hidden_size) * decoder.hidden_size**-0.5)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: PastKeyValues | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        images: Sequence[ImageViews] = (),
        images_seq_mask: Tensor | None = None,
        images_spatial_crop: Tensor | None = None,
        use_cache: bool = True,
        return_dict: bool = True,
    ) -> ModelOutput:
        """One forward of prefill or decode; see `DeepseekOCRForCausalLM.forward` for the arguments."""
        del return_dict
        hidden_states: Tensor = self.embed_tokens(input_ids)
        if images and input_ids.shape[1] != 1 and torch.sum(images[0][1]).item() != 0:
            assert images_seq_mask is not None and images_spatial_crop is not None
            for row, (views, grid) in enumerate(zip(images, images_spatial_crop.tolist(), strict=True)):
                embeds = self._image_embeds(*views, columns=grid[0], rows=grid[1])
                hidden_states[row].masked_scatter_(images_seq_mask[row].unsqueeze(-1), embeds)
        cache = KvCache(past_key_values or ())
        if position_ids is None:
            positions = torch.arange(cache.num_tokens, cache.num_tokens + input_ids.shape[1], device=input_ids.device)
            position_ids = positions.unsqueeze(0)
        mask = self._mask(hidden_states, cache.num_tokens, attention_mask)
        for layer in self.layers:
            hidden_states, cache = layer(hidden_states, mask, position_ids, cache)
        return ModelOutput(self.norm(hidden_states), cache.past_key_values() if use_cache else ())

    def _mask(self, embeds: Tensor, held_tokens: int, padding_mask: Tensor | None) -> Tensor | None:
        if self.attention != "flash":
            return causal_mask(embeds, held_tokens, padding_mask)
        if padding_mask is not None and not padding_mask.all():
            raise ValueError("the flash variant has no mask and cannot leave out padding")
        return None

    def _image_embeds(self, tiles: Tensor, page: Tensor, *, columns: int, rows: int) -> Tensor:
        """What replaces the image tokens of one page: tiles, global view, separator."""
        parts = []
        if torch.sum(tiles).item() != 0:
            features = self.encode(tiles)
            side = int(features.shape[1] ** 0.5)
            stitched = features.view(rows, columns, side, side, -1).transpose(1, 2)
            parts.append(self._with_newlines(stitched.reshape(rows * side, columns * side, -1)))
        features = self.encode(page)
        side = int(features.shape[1] ** 0.5)
        parts.append(self._with_newlines(features.view(side, side, -1)))
        return torch.cat([*parts, self.view_seperator.unsqueeze(0)])

    def encode(self, pixels: Tensor) -> Tensor:
        """Projected CLIP and SAM features, `[views, side * side, hidden]`."""
        local: Tensor = self.sam_model(pixels)
        contextual: Tensor = self.vision_model(pixels, local)
        both = torch.cat([contextual[:, 1:], local.flatten(2).transpose(1, 2)], dim=-1)
        embeds: Tensor = self.projector(both)
        return embeds

    def _with_newlines(self, grid: Tensor) -> Tensor:
        """Rows of `[rows, columns, hidden]` one after the other, each closed by the newline embedding."""
        newline = self.image_newline.expand(grid.shape[0], 1, -1)
        return torch.cat([grid, newline], dim=1).flatten(0, 1)


class DeepseekOCRForCausalLM(nn.Module):
    """The model and its language head."""

    def __init__(self, config: DeepSeekOcrConfig, attention: str = "eager") -> None:
        super().__init__()
        self.vocab_size = config.decoder.vocab_size
        self.model = DeepseekOCRModel(config, attention)
        self.lm_head = nn.Linear(config.decoder.hidden_size, config.decoder.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: PastKeyValues | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        images: Sequence[ImageViews] = (),
        images_seq_mask: Tensor | None = None,
        images_spatial_crop: Tensor | None = None,
        use_cache: bool = True,
        return_dict: bool = True,
    ) -> CausalLmOutput:
        """One forward of prefill or decode.

        `images` holds one entry per row of `input_ids`, `images_seq_mask` marks the positions their embeddings fill,
        `images_spatial_crop` is `[columns, rows]` of tiles per page. With a single new token images are not looked at.
        `attention_mask` is `[batch, all tokens]`, 0 for padding. Without `use_cache` the returned cache is empty, and
        `return_dict` changes nothing: the result has names, and unpacks as a tuple.
        """
        output: ModelOutput = self.model(
            input_ids=input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            images=images,
            images_seq_mask=images_seq_mask,
            images_spatial_crop=images_spatial_crop,
            use_cache=use_cache,
            return_dict=return_dict,
        )
        logits: Tensor = self.lm_head(output.last_hidden_state)
        return CausalLmOutput(logits.float(), output.past_key_values)
