"""Ops that `torch.jit.trace` does not write down: custom ops, and a few of torch's own that it expects to fall apart.

The tracer stops listening while a recorded op runs. So an op that arrives while it still listens was not recorded, and
the engine has to work on it without being traced itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from llm_perf_opt.execution.op_watch import OpWatch
from llm_perf_opt.weightless import Ghost


class UnrecordedOps(OpWatch):
    """Tells of every op that is missing from the trace, and runs it unseen."""

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the op; tell of it where the tracer does not know it."""
        state: Any = torch._C._get_tracing_state()
        if state is None:
            return func(*args, **kwargs)
        _set_tracing_state(None)
        try:
            output = func(*args, **kwargs)
            self.on_op(func, args, kwargs, output)
        finally:
            _set_tracing_state(state)
        return tree_map_only(Ghost, _known_to_the_tracer, output)


def _known_to_the_tracer(ghost: Ghost) -> torch.Tensor:
    """A fresh ghost that the tracer saw being made: one that came from nowhere it takes for a constant, and reads."""
    with _tracer_listening():
        return torch.empty(tuple(ghost.shape), dtype=ghost.dtype)


def _set_tracing_state(state: Any) -> None:
    with _tracer_listening():
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def _tracer_listening() -> AbstractContextManager[object]:
    """Inside a dispatched op the tracer's key is excluded, so that its state may not change; this lifts that."""
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C._dispatch_key_parse("Tracer"))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
