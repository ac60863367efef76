"""Prefill and decode of any transformers model, as plain torch code that runs on real tensors and on ghosts alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.models.huggingface.cache_template import with_zeros, without_tensors
from llm_perf_opt.models.huggingface.inputs import Plan, make_inputs
from llm_perf_opt.models.huggingface.inputs.leaves import Whole

CACHES = ("past_key_values", "cache_params", "state", "mems")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeState:
    """What the prefill left for the next step, and how to ask for it.

    `with_mask`: whether the step carries a mask over the whole context. Without one every position is visible, which is
    the same for an unpadded prompt; some models accept only the one, some only the other, and a state space model that
    accepts both stretches its one token over all positions of a mask.
    """

    cache_name: str
    cache: Any
    encoder_states: Any
    context_tokens: int
    batch: int
    token: int
    with_mask: bool


def prefill(model: Any, plan: Plan, dtype: torch.dtype, entry: str = "forward") -> Any:
    """One forward over everything that is known at the start; models without a forward name another method."""
    call = model if entry == "forward" else getattr(model, entry)
    with torch.no_grad():
        return call(**make_inputs(plan, dtype))


def decode_state(output: Any, plan: Plan, *, with_mask: bool) -> DecodeState | None:
    """What a decode needs from the output of a prefill; None when it left no cache to continue from."""
    name = next((name for name in CACHES if getattr(output, name, None) is not None), None)
    ids = plan.get("decoder_input_ids", plan.get("input_ids"))
    if name is None or not isinstance(ids, Whole) or len(ids.shape) != 2:
        return None
    return DecodeState(
        cache_name=name,
        cache=without_tensors(getattr(output, name)),
        encoder_states=without_tensors(getattr(output, "encoder_last_hidden_state", None)),
        context_tokens=ids.shape[1],
        batch=ids.shape[0],
        token=ids.values[-1],
        with_mask=with_mask,
    )


def decode(model: Any, state: DecodeState, plan: Plan, steps: int) -> Any:
    """`steps` forwards of one token each, on a cache of zeros as long as the prefill left it.

    The token is always the same: which one comes out changes no shape.
    """
    cache = with_zeros(state.cache)
    output = None
    with torch.no_grad():
        for step in range(steps):
            output = model(**_step_inputs(state, plan, step), **{state.cache_name: cache}, use_cache=True)
            cache = getattr(output, state.cache_name)
    return output


def generate_passes_mask(model: Any, state: DecodeState) -> bool:
    """Whether the model's own `generate` hands a step the mask that `state` asks for, or drops it after the prefill."""
    cache = {state.cache_name: with_zeros(state.cache)}
    asked = _step_inputs(state, {}, step=0)
    given = model.prepare_inputs_for_generation(**asked, **cache, use_cache=True, is_first_iteration=False)
    return given.get("attention_mask") is not None


def _step_inputs(state: DecodeState, plan: Plan, step: int) -> dict[str, Any]:
    token = torch.full((state.batch, 1), state.token)
    if state.encoder_states is None:
        length = state.context_tokens + step + 1
        mask = {"attention_mask": torch.ones((state.batch, length), dtype=torch.int64)} if state.with_mask else {}
        return {"input_ids": token, **mask}
    given = {"attention_mask": plan["attention_mask"]} if "attention_mask" in plan else {}
    encoded = (with_zeros(state.encoder_states),)
    return {"decoder_input_ids": token, "encoder_outputs": encoded, **make_inputs(given)}
