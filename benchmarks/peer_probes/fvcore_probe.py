"""fvcore: an analysis of the graph that `torch.jit.trace` records."""

from __future__ import annotations

import importlib

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked

PACKAGE = "fvcore.nn"

FLOPS_PER_MAC = 2


def prepare(asked: Asked) -> None:
    importlib.import_module(PACKAGE)
    _ = asked.subject


def count(asked: Asked) -> Count:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(asked.subject.module, asked.subject.inputs)
    total = analysis.total()
    silent = analysis.unsupported_ops()
    return Count(
        printed=total,
        unit="multiply-adds, called flops",
        flops=round(FLOPS_PER_MAC * total),
        flops_by_module={path: round(FLOPS_PER_MAC * macs) for path, macs in analysis.by_module().items()},
        left_out=[name for name, _ in silent.most_common()],
    )


def activations(asked: Asked) -> Offer:
    from fvcore.nn import ActivationCountAnalysis

    total = ActivationCountAnalysis(asked.subject.module, asked.subject.inputs).total()
    return Offer(figure=total, unit="elements", of="outputs of convolutions and matrix products")


OFFERS = {"activations": activations}
