"""A run on ghosts that is watched: every module call with its arguments, and the stage that it belongs to."""

from __future__ import annotations

import torch

from llm_perf_opt.callgraph.queries import deepest_claim
from llm_perf_opt.execution.module_calls import After, Before, watch_forwards
from llm_perf_opt.execution.runtime_facts import observing
from llm_perf_opt.execution.silence import silenced
from llm_perf_opt.plugins import Target
from llm_perf_opt.weightless import Engine


def build_on_ghosts(target: Target, engine: Engine) -> torch.nn.Module:
    """The model of the target with ghosts for weights; building twice gives the same model."""
    with engine:
        model: torch.nn.Module = engine.adopt(target.build())
    return model


def run_watched(target: Target, model: torch.nn.Module, given: object, before: Before, after: After) -> None:
    """Run the target on what it was prepared with and tell of every module call, with its arguments as they are."""
    with observing(target, model), watch_forwards(model, before, after), silenced():
        target.run(model, given)


class OpenStages:
    """The stage of each forward on the stack: its own claim, or that of the forward that called it."""

    def __init__(self, target: Target) -> None:
        self._claims = {path: stage.name for stage in target.stages for path in stage.paths}
        self._open = [target.phase]

    @property
    def current(self) -> str:
        """Where an op that runs now belongs."""
        return self._open[-1]

    def enter(self, path: str) -> None:
        """A forward begins."""
        self._open.append(deepest_claim(path, self._claims) or self.current)

    def leave(self) -> None:
        """A forward ends."""
        self._open.pop()
