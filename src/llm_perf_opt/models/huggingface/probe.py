"""The model on an engine of its own, asked what it accepts before it is traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from llm_perf_opt.core.target import Chain, World
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.models.huggingface.inputs import Plan, make_inputs
from llm_perf_opt.models.huggingface.inputs.search import REJECTIONS
from llm_perf_opt.models.huggingface.phases import (
    DecodeState,
    cache_tokens,
    decode,
    decode_state,
    generate_passes_mask,
    prefill,
    prepare_decode,
)
from llm_perf_opt.weightless import Engine


class ModelProbe:
    """A weightless copy of the model, and what its last prefill returned.

    `decode_refusal` is what the model said when it would not continue after a prefill that left a cache.
    """

    def __init__(self, build: Callable[[], Any], dtype: torch.dtype, world: World | None = None) -> None:
        self._engine = Engine(device="cuda")
        self._engine.other_ranks = None if world is None else world.integers
        self._dtype = dtype
        with self._engine:
            self.model = self._engine.adopt(build())
        self.output: Any = None
        self.decode_refusal: Exception | None = None

    def prefill(self, plan: Plan, entry: str) -> None:
        """Run once with `plan`; whatever the model raises is for the caller to learn from."""
        self.output = self._engine.run(lambda: prefill(self.model, make_inputs(plan, self._dtype), entry))

    def decode_state(self, plan: Plan, entry: str, new_tokens: int = 1) -> DecodeState | None:
        """How to continue after the last prefill, or None when the model keeps no cache or refuses to go on."""
        masked = decode_state(self.output, plan, entry, with_mask=True, new_tokens=new_tokens)
        if masked is None:
            return None
        bare = replace(masked, with_mask=False)
        for state in (masked, bare) if self._passes_mask(masked) else (bare, masked):
            try:
                self._engine.run(lambda state=state: decode(self.model, prepare_decode(state, plan, 1)))  # type: ignore[misc]
            except REJECTIONS as error:
                self.decode_refusal = self.decode_refusal or error
            else:
                return state
        return None

    def chain(self, plan: Plan, entry: str, *, generates: bool) -> Chain:
        """What a real run may read of the last prefill: logits to choose a token from, and the length of the cache."""
        logits = getattr(self.output, "logits", None)
        is_choice = generates and isinstance(logits, torch.Tensor) and logits.ndim == 3
        state = decode_state(self.output, plan, entry, with_mask=True)
        return Chain(
            entry=entry,
            logits=attrgetter("logits") if is_choice else None,
            cache_tokens=None
            if state is None or not self._tells_length(state)
            else partial(cache_tokens, state.cache_name),
        )

    def _tells_length(self, state: DecodeState) -> bool:
        """Whether the cache says that it holds the tokens that were fed; some are no caches of tokens."""
        try:
            return cache_tokens(state.cache_name, self.output) == state.context_tokens
        except REJECTIONS:
            return False

    def step_shapes(self, state: DecodeState, plan: Plan) -> dict[str, list[int]]:
        """Argument -> shape of the first step, the cache apart."""
        with self._engine:
            (step,) = prepare_decode(state, plan, 1).steps
        return {name: list(tensor.shape) for name, value in step.items() for tensor in tensors_in(value)}

    @property
    def encoder_tokens(self) -> int | None:
        """Positions that the encoder of the last prefill handed to its decoder; None where there is no encoder."""
        states = getattr(self.output, "encoder_last_hidden_state", None)
        return states.shape[1] if isinstance(states, torch.Tensor) and states.ndim == 3 else None

    def _passes_mask(self, state: DecodeState) -> bool:
        """What `generate` does; where it cannot be asked, the mask comes first: most models take one."""
        try:
            return self._engine.run(lambda: generate_passes_mask(self.model, state))
        except REJECTIONS:
            return True
