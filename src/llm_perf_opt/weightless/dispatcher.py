"""What rules, fallbacks and real ops may ask of the engine that dispatches them.

The engine knows all of them; they know this protocol, so that nothing below the engine imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.weightless.environment import Disguise
from llm_perf_opt.weightless.oracle import Limits, Oracle
from llm_perf_opt.weightless.recording import OpRecorder
from llm_perf_opt.weightless.storage import RealStorages

UserRule = Callable[..., Any]  # (the dispatcher, the op's arguments) -> its output


# (kind of collective, shape) -> integers that another rank would send; None: not known, this rank's own serve
OtherRanks = Callable[[CollectiveKind, tuple[int, ...]], Sequence[int] | None]


class Dispatcher(AbstractContextManager[Any], Protocol):
    """An open engine: its state, and the ways an op can go through it."""

    limits: Limits
    oracle: Oracle
    disguise: Disguise
    real_storages: RealStorages
    recorder: OpRecorder | None
    user_rules: dict[Any, UserRule]
    other_ranks: OtherRanks | None

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """One op, by whichever way fits it."""
        ...

    def propagate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """An op with ghosts among its arguments: its recipe, found first if it is new."""
        ...

    def propagate_unrecorded(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`propagate` for a value rule; the rule's op is recorded when the rule returns."""
        ...

    def materialise(self, tensor: torch.Tensor, why: str) -> torch.Tensor:
        """A real tensor in place of a ghost, where code needs values."""
        ...

    def note_write(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """After an in-place op: what was known of the written memory no longer holds."""
        ...
