"""The two phases as plain torch code: it runs the same on real tensors and on ghosts."""

from __future__ import annotations

import torch

from llm_perf_opt.models.deepseek_ocr.blueprint import CausalLmOutput, DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.cache import PastKeyValues
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs
from llm_perf_opt.models.deepseek_ocr.prompts import FIRST_TEXT_ID


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


def decode(model: DeepseekOCRForCausalLM, inputs: OcrInputs, config: DecoderConfig, steps: int) -> PastKeyValues:
    """`steps` forwards of one token each, on a cache of zeros as long as the sequence of the prefill.

    The token is always the same: which one comes out changes no shape. The images travel along unread, as they do in
    the released generation loop.
    """
    batch = inputs.input_ids.shape[0]
    token = torch.full((batch, 1), FIRST_TEXT_ID)
    past = empty_past(config, batch, inputs.num_tokens, inputs.images[0][1].dtype)
    with torch.no_grad():
        for step in range(steps):
            output: CausalLmOutput = model(
                input_ids=token,
                past_key_values=past,
                position_ids=torch.full((batch, 1), inputs.num_tokens + step),
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
