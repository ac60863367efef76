"""The two phases as plain torch code, run the same on real tensors and on ghosts, alone and one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_perf_opt.core.target import Choose, PhaseBefore
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
class OcrDecodeStart:
    """What a decode begins with. `past` goes to the first step, which lets go of it when it has a longer one."""

    token: Tensor
    positions: list[Tensor]  # one per step
    past: PastKeyValues | None
    choose: Choose
    inputs: OcrInputs | None = None  # those of the prefill before it


def prepare_decode(
    _: DeepseekOCRForCausalLM, inputs: OcrInputs, config: DecoderConfig, steps: int, head_parts: int = 1
) -> OcrDecodeStart:
    """A decode that stands alone: a cache of zeros as long as the sequence of the prefill.

    The token is always the same: which one comes out changes no shape. Of `head_parts` equal shares of the heads the
    cache holds one.
    """
    batch = inputs.input_ids.shape[0]
    token = torch.full((batch, 1), FIRST_TEXT_ID)
    return OcrDecodeStart(
        token=token,
        positions=_positions(token, inputs.num_tokens, steps),
        past=empty_past(config, batch, inputs.num_tokens, inputs.images[0][1].dtype, head_parts),
        choose=lambda _: token,
    )


def follow_prefill(_: DeepseekOCRForCausalLM, before: PhaseBefore, steps: int) -> OcrDecodeStart:
    """A decode that continues a prefill: its cache, the token chosen from its logits, then those that are chosen."""
    inputs: OcrInputs = before.start
    return OcrDecodeStart(
        token=before.token,
        positions=_positions(before.token, inputs.num_tokens, steps),
        past=before.output.past_key_values,
        choose=before.choose,
        inputs=inputs,
    )


def _positions(token: Tensor, context_tokens: int, steps: int) -> list[Tensor]:
    return [torch.full(token.shape, context_tokens + step, device=token.device) for step in range(steps)]


def decode(model: DeepseekOCRForCausalLM, start: OcrDecodeStart, inputs: OcrInputs | None = None) -> PastKeyValues:
    """One forward of one token for every position, until `choose` gives none.

    The inputs of the prefill travel along unread, as in the released generation loop; default: those of `start`.
    """
    page = inputs or start.inputs
    past, start.past = start.past, None
    assert past is not None and page is not None, "a cache is used up by the decode that it was made for"
    token = start.token
    with torch.no_grad():
        for position in start.positions:
            output: CausalLmOutput = model(
                input_ids=token,
                past_key_values=past,
                position_ids=position,
                images=page.images,
                images_seq_mask=page.images_seq_mask,
                images_spatial_crop=page.images_spatial_crop,
            )
            past = output.past_key_values
            token = start.choose(output.logits)
            if token is None:
                break
    return past


def cache_tokens(past: PastKeyValues) -> int:
    """How many tokens a cache holds."""
    return past[0][0].shape[-2]


def empty_past(
    config: DecoderConfig, batch: int, tokens: int, dtype: torch.dtype, head_parts: int = 1
) -> PastKeyValues:
    """Zeros in the shape of a cache that holds `tokens` tokens."""
    shape = (batch, config.num_attention_heads // head_parts, tokens, config.head_dim)
    return tuple(
        (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_hidden_layers)
    )
