"""Greedy generation in its two phases: one forward over the whole prompt, then one per token on the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.protocols import StageWatch
from llm_perf_opt.harness.stage_ranges import stages_told
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs
from llm_perf_opt.models.deepseek_ocr.stages import STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The new tokens. The first comes from the prefill, each other one from a decode step."""

    token_ids: tuple[int, ...]
    decode_steps: int
    cache_tokens: int


class _NoVisionInDecode:
    """Passes stages on, and refuses the one mistake that a slow decode hides: encoding the page again."""

    def __init__(self, watch: StageWatch) -> None:
        self._watch = watch
        self._vision = frozenset(stage.name for stage in STAGES)
        self._in_decode = False

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._in_decode and name in self._vision:
            raise PerfOptError(
                f"The vision stage {name!r} ran during decode.",
                why="a decode step must see one token and the cache, not the page",
                fix="check that the model's forward skips vision when it is given a single token",
            )
        was_in_decode, self._in_decode = self._in_decode, self._in_decode or name == "decode"
        try:
            with self._watch.stage(name):
                yield
        finally:
            self._in_decode = was_in_decode


@torch.no_grad()
def generate(
    model: Any, inputs: OcrInputs, max_new_tokens: int, *, watch: StageWatch, eos_token_id: int | None
) -> Generated:
    """At most `max_new_tokens` tokens, each the most likely one; `eos_token_id` ends the loop, None never does.

    Without an end token the ids stay on the device until the loop is over, so that no step waits for the host.
    """
    guard = _NoVisionInDecode(watch)
    tokens: list[Tensor] = []
    with stages_told(model, STAGES, guard):
        with guard.stage("prefill"):
            output = _prefill(model, inputs)
        with guard.stage("sampling"):
            tokens.append(_most_likely(output.logits))
            ended = _is_end(tokens[-1], eos_token_id)
        while len(tokens) < max_new_tokens and not ended:
            with guard.stage("decode"):
                output = _decode(model, tokens[-1], output.past_key_values, inputs.num_tokens + len(tokens) - 1)
            with guard.stage("sampling"):
                tokens.append(_most_likely(output.logits))
                ended = _is_end(tokens[-1], eos_token_id)
    cache_tokens = output.past_key_values[0][0].shape[-2]
    _require_full_cache(cache_tokens, inputs.num_tokens, len(tokens) - 1)
    ids: list[int] = torch.cat(tokens, dim=1)[0].tolist()
    return Generated(token_ids=tuple(ids), decode_steps=len(tokens) - 1, cache_tokens=cache_tokens)


def _prefill(model: Any, inputs: OcrInputs) -> Any:
    return model(
        input_ids=inputs.input_ids,
        images=inputs.images,
        images_seq_mask=inputs.images_seq_mask,
        images_spatial_crop=inputs.images_spatial_crop,
    )


def _decode(model: Any, token: Tensor, past: Any, position: int) -> Any:
    """One step, without any image input; the token is at `position` of the sequence."""
    return model(
        input_ids=token, past_key_values=past, position_ids=torch.full(token.shape, position, device=token.device)
    )


def _most_likely(logits: Tensor) -> Tensor:
    return logits[:, -1].argmax(dim=-1, keepdim=True)


def _is_end(token: Tensor, eos_token_id: int | None) -> bool:
    return eos_token_id is not None and int(token) == eos_token_id


def _require_full_cache(held: int, prompt: int, steps: int) -> None:
    if held != prompt + steps:
        raise PerfOptError(
            f"The cache holds {held} tokens after a prompt of {prompt} and {steps} decode steps.",
            why="each step must add one token to it; figures by context length would be wrong",
            fix="check the forward's handling of past_key_values",
        )
