"""The two phases as plain torch code: it runs the same on real tensors and on ghosts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_perf_opt.models.deepseek_ocr.attention import PastKeyValues
from llm_perf_opt.models.deepseek_ocr.blueprint import CausalLmOutput, DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig
from llm_perf_opt.models.deepseek_ocr.inputs import FIRST_TEXT_ID, OcrInputs


def prefill(model: DeepseekOCRForCausalLM, inputs: OcrInputs) -> CausalLmOutput:
    """One forward over the whole sequence, with an empty cache."""
    with torch.no_grad():
        output: CausalLmOutput = model(
            input_ids=inputs.input_ids,
            images=inputs.images,
            images_seq_mask=inputs.images_seq_mask,
            images_spatial_crop=inputs.images_spatial_crop,
        )
    return output


@dataclass(slots=True, kw_only=True)
class DecodeStart:
    """What a decode begins with. `past` goes to the first step, which lets go of it when it has a longer one."""

    token: Tensor
    positions: list[Tensor]  # one per step
    past: PastKeyValues | None


def prepare_decode(_: DeepseekOCRForCausalLM, inputs: OcrInputs, config: DecoderConfig, steps: int) -> DecodeStart:
    """A cache of zeros as long as the sequence of the prefill, the token, and its position in each step."""
    batch = inputs.input_ids.shape[0]
    return DecodeStart(
        token=torch.full((batch, 1), FIRST_TEXT_ID),
        positions=[torch.full((batch, 1), inputs.num_tokens + step) for step in range(steps)],
        past=empty_past(config, batch, inputs.num_tokens, inputs.images[0][1].dtype),
    )


def decode(model: DeepseekOCRForCausalLM, start: DecodeStart, inputs: OcrInputs) -> PastKeyValues:
    """One forward of one token for every position that was prepared.

    The token is always the same: which one comes out changes no shape. The images travel along unread, as they do in
    the released generation loop.
    """
    past, start.past = start.past, None
    assert past is not None, "a cache is used up by the decode that it was made for"
    with torch.no_grad():
        for position in start.positions:
            output: CausalLmOutput = model(
                input_ids=start.token,
                past_key_values=past,
                position_ids=position,
                images=inputs.images,
                images_seq_mask=inputs.images_seq_mask,
                images_spatial_crop=inputs.images_spatial_crop,
            )
            past = output.past_key_values
    return past


def empty_past(config: DecoderConfig, batch: int, tokens: int, dtype: torch.dtype) -> PastKeyValues:
    """Zeros in the shape of a cache that holds `tokens` tokens."""
    shape = (batch, config.num_attention_heads, tokens, config.head_dim)
    return tuple(
        (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_hidden_layers)
    )
