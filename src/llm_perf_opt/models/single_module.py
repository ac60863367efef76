"""One forward of a module that was built elsewhere; the module itself is left as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.target import Json, Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.twins import ghost_twin, tensors_in
from llm_perf_opt.weightless.spec import dtype_name


class SingleModuleAdapter:
    """Calls `module(*args, **kwargs)`: a trace on ghosts of its weights, a real run with the module itself."""

    def __init__(
        self, module: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._module, self._args, self._kwargs = module, tuple(args), dict(kwargs or {})
        self.title = type(module).__name__

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """One phase, `forward`. The arguments are the whole workload, so none of its fields but autocast may be set."""
        _refuse_options(workload)
        return (
            Target(
                model=self.title,
                phase="forward",
                workload={
                    "inputs": [_described(tensor) for tensor in tensors_in((self._args, self._kwargs))],
                    **self._facts(),
                    **workload.changed(),
                },
                build=cache(lambda: ghost_twin(self._module)),
                invoke=self._call,
            ),
        )

    def _facts(self) -> dict[str, Json]:
        """Batch and type, as the call itself shows them: what all inputs begin with, and what most weights are in."""
        firsts = {tensor.shape[0] for tensor in tensors_in((self._args, self._kwargs)) if tensor.ndim > 1}
        types = Counter[str]()
        for weight in self._module.parameters():
            types[dtype_name(weight.dtype)] += weight.numel()
        batch: dict[str, Json] = {"batch": firsts.pop()} if len(firsts) == 1 else {}
        return {**batch, **({"dtype": types.most_common(1)[0][0]} if types else {})}

    def real_run(self, workload: Workload, prompt: str | None) -> RealRun:
        """The module itself, with its own weights, called with its arguments moved to where the weights are."""
        if prompt is not None:
            raise UsageError("A module takes no prompt.", why="it has no tokenizer", fix="put token ids into args")
        (target,) = self.targets(workload)
        real = replace(target, build=lambda: self._module, prepare=None, invoke=self._call_for_real, has_weights=True)
        return RealRun(targets=(real,), workload=workload)

    def _call_for_real(self, module: torch.nn.Module) -> object:
        where = next((weight.device for weight in module.parameters()), None)
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(where), (self._args, self._kwargs))
        return module(*args, **kwargs)

    def _call(self, module: torch.nn.Module) -> object:
        args, kwargs = ghost_twin((self._args, self._kwargs))
        return module(*args, **kwargs)


def _described(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape))} {dtype_name(tensor.dtype)}"


def _refuse_options(workload: Workload) -> None:
    for name in workload.changed().keys() - {"autocast"}:
        raise UsageError(
            f"A module takes no {name}.",
            why="args and kwargs alone are its workload",
            fix=f"leave {name} out, and put what you mean into args or kwargs",
        )
