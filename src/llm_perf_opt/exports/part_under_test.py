"""From a part's name to a module with the arguments of its call in the run, nothing of it materialised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_perf_opt.errors import UsageError
from llm_perf_opt.execution.isolation import isolate
from llm_perf_opt.execution.watched_runs import build_on_ghosts
from llm_perf_opt.exports.exportable_attention import switch_attention
from llm_perf_opt.exports.tensor_signature import TensorsOnly, input_names, signature_adaptations
from llm_perf_opt.plugins import Part, Target
from llm_perf_opt.weightless import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUnderTest:
    """The call on ghosts, the names of its inputs, and what was changed so that it depends on tensors alone."""

    part: Part
    call: TensorsOnly
    names: tuple[str, ...]
    adaptations: tuple[str, ...]

    @property
    def module(self) -> torch.nn.Module:
        """What is exported, without the adaptation of its arguments."""
        return self.call.module

    @property
    def parameters(self) -> int:
        """How many weights the part has."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def weight_bytes(self) -> int:
        """What its weights and buffers would take in memory."""
        held = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def prepare(target: Target, part: Part, engine: Engine) -> PartUnderTest:
    """Run the target on ghosts and keep the last distinct call of the part's module."""
    model = build_on_ghosts(target, engine)
    switched = switch_attention(model)
    calls = isolate(target, [part.path], engine)
    if not calls:
        raise UsageError(
            f"The {target.phase} of {target.model} does not call a module {part.path!r}.",
            why="a part is taken with the arguments that it gets in the run",
            fix="llm-perf-opt trace lists the modules that run; or ask for another --phase",
        )
    found = calls[-1]
    module = found.module
    if part.wrap is not None:
        with engine:
            module = part.wrap(model)
    call = TensorsOnly(module, found.args, found.kwargs)
    adaptations = (*((part.adaptation,) if part.adaptation else ()), *switched, *signature_adaptations(call))
    return PartUnderTest(part=part, call=call, names=tuple(input_names(call)), adaptations=adaptations)
