"""A part with random weights of sensible size: enough for arithmetic to mean something, and for nothing else."""

from __future__ import annotations

import torch

from llm_perf_opt.execution.twins import real_twin
from llm_perf_opt.exports.part_under_test import PartUnderTest
from llm_perf_opt.exports.tensor_signature import TensorsOnly
from llm_perf_opt.weightless import Ghost

_SEED = 0


@torch.no_grad()
def with_random_weights(subject: PartUnderTest) -> TensorsOnly:
    """The call on real tensors: what was real keeps its values, ghosts get random ones.

    Inputs are of unit variance, matrices keep that of what they multiply, and vectors called `weight` are near one, as
    the scales of norms are; so a difference between two runtimes is not hidden by values that are all tiny.
    """
    call = real_twin(subject.call, _SEED)
    generator = torch.Generator().manual_seed(_SEED)
    for name, parameter in call.module.named_parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            fan_in = parameter[0].numel()
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
        elif name.endswith("weight") and parameter.is_floating_point():
            parameter.add_(1)
    for twin, origin in zip(call.given, subject.call.given, strict=True):
        if isinstance(origin, Ghost):
            twin.copy_(torch.randn(twin.shape, generator=generator))
    return call


def copied_inputs(call: TensorsOnly) -> tuple[torch.Tensor, ...]:
    """The inputs of the call, safe to be written to."""
    return tuple(tensor.clone() for tensor in call.given)
