"""The model on an engine of its own, asked what it accepts before it is traced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from llm_perf_opt.models.huggingface.inputs import Plan
from llm_perf_opt.models.huggingface.inputs.search import REJECTIONS
from llm_perf_opt.models.huggingface.phases import DecodeState, decode, decode_state, generate_passes_mask, prefill
from llm_perf_opt.weightless import Engine

log = logging.getLogger(__name__)


class Probe:
    """A weightless copy of the model, and what its last prefill returned."""

    def __init__(self, build: Callable[[], Any], dtype: torch.dtype) -> None:
        self._engine = Engine(device="cuda")
        self._dtype = dtype
        with self._engine:
            self.model = self._engine.adopt(build())
        self._output: Any = None

    def prefill(self, plan: Plan, entry: str) -> None:
        """Run once with `plan`; whatever the model raises is for the caller to learn from."""
        self._output = self._engine.run(lambda: prefill(self.model, plan, self._dtype, entry))

    def decode_state(self, plan: Plan) -> DecodeState | None:
        """How to continue after the last prefill, or None when the model keeps no cache or refuses to go on."""
        refusal: Exception | None = None
        masked = decode_state(self._output, plan, with_mask=True)
        if masked is None:
            return None
        bare = replace(masked, with_mask=False)
        for state in (masked, bare) if self._passes_mask(masked) else (bare, masked):
            try:
                self._engine.run(lambda state=state: decode(self.model, state, plan, 1))  # type: ignore[misc]
            except REJECTIONS as error:
                refusal = refusal or error
            else:
                return state
        log.warning("no decode phase: the model refuses one more token after the prefill: %s", refusal)
        return None

    def _passes_mask(self, state: DecodeState) -> bool:
        """What `generate` does; where it cannot be asked, the mask comes first: most models take one."""
        try:
            return self._engine.run(lambda: generate_passes_mask(self.model, state))
        except REJECTIONS:
            return True
