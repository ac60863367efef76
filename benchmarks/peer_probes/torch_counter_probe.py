"""torch's own FlopCounterMode: prices ops as they are dispatched."""

from __future__ import annotations

import importlib

import torch

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked

PACKAGE = "torch.utils.flop_counter"


def prepare(asked: Asked) -> None:
    importlib.import_module(PACKAGE)
    _ = asked.subject


def count(asked: Asked) -> Count:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        asked.subject.module(*asked.subject.inputs)
    by_module = counter.get_flop_counts()
    total = counter.get_total_flops()
    root = type(asked.subject.module).__name__
    return Count(
        printed=total,
        unit="flops",
        flops=total,
        flops_by_module={path.removeprefix(f"{root}."): sum(ops.values()) for path, ops in by_module.items()},
    )


def backward(asked: Asked) -> Offer:
    """A forward and its backward, as in training."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        asked.subject.module(*asked.subject.inputs).sum().backward()
    return Offer(figure=counter.get_total_flops(), unit="FLOPs", of="a forward and its backward")


OFFERS = {"backward": backward}
