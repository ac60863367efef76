"""A session that only pretends, so that runners are tested without a model."""

from __future__ import annotations

import time
from typing import Any

import torch

from llm_perf_opt.core.measurement import InferenceRequest
from llm_perf_opt.core.protocols import Inference, ModelAdapter, StageWatch, Workload


class MadeSession:
    """Every pass runs the usual stages; `steps_of_pass` gives the decode steps of each pass in turn, 2 by default."""

    adapter: ModelAdapter
    device = "cpu"
    notes: tuple[str, ...] = ()

    def __init__(self, steps_of_pass: tuple[int, ...] = (), pause_s: float = 0.0) -> None:
        self.passes: list[str] = []
        self._steps_of_pass = steps_of_pass
        self._pause_s = pause_s

    @property
    def model(self) -> Any:
        return torch.nn.Identity()

    def infer(self, request: InferenceRequest, watch: StageWatch, ranges: str = "none") -> Inference:
        index = len(self.passes)
        steps = self._steps_of_pass[index] if index < len(self._steps_of_pass) else 2
        self.passes.append(f"{type(watch).__name__} {request.image}")
        with watch.stage("prefill"), watch.stage("sam"):
            time.sleep(self._pause_s)
        for _ in range(steps):
            with watch.stage("decode"):
                time.sleep(self._pause_s)
        width = int(request.image.partition("x")[0])
        return Inference(
            token_ids=(1,) * (steps + 1),
            text=None,
            context_tokens=width,
            decode_steps=steps,
            cache_tokens=width + steps,
            workload=Workload(image=request.image, decode_steps=steps),
        )


def request(image: str) -> InferenceRequest:
    return InferenceRequest(image=image, prompt=3, max_new_tokens=3)
