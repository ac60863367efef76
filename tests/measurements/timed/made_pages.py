"""A model that only pretends, with a prefill and a decode, so that timed runs are tested without arithmetic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.target import Chain, PhaseBefore, Stage, Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.measurements.timed.timed_runs import PageRun


class Pretends(torch.nn.Module):
    """A prefill calls `sam`; a call with one token is a decode step. Each prefill is noted, timed or not, by its width.

    `steps_of_pass` gives the decode steps of each pass in turn, 2 by default.
    """

    def __init__(self, steps_of_pass: tuple[int, ...] = (), pause_s: float = 0.0) -> None:
        super().__init__()
        self.sam = torch.nn.Identity()
        self.passes: list[str] = []
        self.is_timed = False
        self._steps_of_pass = steps_of_pass
        self._pause_s = pause_s

    def forward(self, ids: torch.Tensor, past: int = 0) -> SimpleNamespace:
        if past == 0:
            self.passes.append(f"{'timed' if self.is_timed else 'untimed'} {ids.shape[1]}")
            self.is_timed = False
            self.sam(ids)
        time.sleep(self._pause_s)
        return SimpleNamespace(logits=torch.eye(4)[None, :1], past=past + ids.shape[1])

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """It watches itself: only timed passes are told."""
        self.is_timed = self.is_timed or name == "preprocess"
        yield

    def steps(self) -> int:
        index = len(self.passes) - 1
        return self._steps_of_pass[index] if index < len(self._steps_of_pass) else 2


def _decode(model: Pretends, start: dict[str, Any]) -> SimpleNamespace:
    for _ in range(model.steps()):
        output = model(start["token"], start.pop("past"))
        start["token"], start["past"] = start["choose"](output.logits), output.past
    return output


def _follow(_: Pretends, before: PhaseBefore) -> dict[str, Any]:
    return {"past": before.output.past, "token": before.token, "choose": before.choose}


def made_page(model: Pretends, width: int, image: str | None = None) -> PageRun:
    """A page whose prompt has `width` tokens."""
    prefill = Target(
        model="pretends",
        phase="prefill",
        workload={"context_tokens": width},
        build=lambda: model,
        prepare=lambda _: torch.zeros((1, width), dtype=torch.int64),
        invoke=lambda module, ids: module(ids),
        stages=(Stage(name="sam", paths=("sam",)),),
        chain=Chain(logits=lambda output: output.logits, cache_tokens=lambda output: output.past),
        has_weights=True,
    )
    decode = Target(
        model="pretends",
        phase="decode",
        workload={"context_tokens": width},
        build=lambda: model,
        invoke=_decode,
        stages=prefill.stages,
        chain=Chain(follow=_follow, cache_tokens=lambda output: output.past, cached_stages=("sam",)),
    )
    return PageRun(
        image=image or f"{width}x1", run=RealRun(targets=(prefill, decode), workload=Workload(decode_steps=2))
    )


def on_cpu() -> RealModels:
    return RealModels(weights="random", device="cpu")
