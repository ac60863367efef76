"""One forward of a module that was built elsewhere; the module itself is left as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import torch

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import Target, Workload
from llm_perf_opt.harness.tensors import tensors_in
from llm_perf_opt.harness.twins import ghost_twin


class SingleModuleAdapter:
    """Calls `module(*args, **kwargs)` on ghosts of its weights: real ones are neither read nor copied."""

    def __init__(
        self, module: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._module, self._args, self._kwargs = module, tuple(args), dict(kwargs or {})
        self.title = type(module).__name__

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """One phase, `forward`. The arguments are the whole workload, so none of its fields may be set."""
        _refuse_wishes(workload)
        return (
            Target(
                model=self.title,
                phase="forward",
                workload={"inputs": [_described(tensor) for tensor in tensors_in((self._args, self._kwargs))]},
                build=cache(lambda: ghost_twin(self._module)),
                invoke=self._call,
            ),
        )

    def _call(self, module: torch.nn.Module) -> object:
        args, kwargs = ghost_twin((self._args, self._kwargs))
        return module(*args, **kwargs)


def _described(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _refuse_wishes(workload: Workload) -> None:
    for field in fields(Workload):
        if getattr(workload, field.name) != field.default:
            raise UsageError(
                f"A module at hand has no use for {field.name}.",
                why="its arguments say all there is to say about the workload",
                fix=f"leave {field.name} out, and put what you mean into args or kwargs",
            )
