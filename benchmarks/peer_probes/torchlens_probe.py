"""TorchLens: a record of every operation of a real run, values included."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked

PACKAGE = "torchlens"


def prepare(asked: Asked) -> None:
    importlib.import_module(PACKAGE)
    _ = asked.subject


def count(asked: Asked) -> Count:
    trace = _trace(asked, layers_to_save=None)
    macs = trace.total_macs_forward
    flops = int(trace.total_flops_forward)
    return Count(
        printed=flops,
        unit="FLOPs, element-wise included",
        flops=flops if macs is None else 2 * int(macs),
        flops_by_module={module.address: int(module.total_flops_forward) for module in trace.modules},
        left_out=sorted({op.func_name for op in trace.unknown_flop_ops}),
    )


def memory(asked: Asked) -> Offer:
    trace = _trace(asked, layers_to_save=None)
    total = int(trace.total_param_memory) + int(trace.total_activation_memory)
    return Offer(figure=total, unit="bytes", of="weights and the outputs of all operations, as if none were freed")


def backward(asked: Asked) -> Offer:
    trace = _trace(asked, layers_to_save=None)
    return Offer(figure=int(trace.total_flops), unit="FLOPs", of="a forward and its backward, from the forward's ops")


def values(asked: Asked) -> Offer:
    trace = _trace(asked)
    kept = [op for op in trace.layer_list if isinstance(op.out, torch.Tensor)]
    return Offer(figure=len(kept), unit="tensors", of="operations whose values can be read after one call")


def picture(asked: Asked) -> Offer:
    trace = _trace(asked, layers_to_save=None)
    with tempfile.TemporaryDirectory() as folder:
        trace.draw(vis_outpath=f"{folder}/picture", vis_fileformat="svg", vis_save_only=True)
        svg = (Path(folder) / "picture.svg").read_text()
    return Offer(figure=svg.count('class="node"'), unit="boxes", of="an SVG drawing, one box per operation")


OFFERS = {"memory": memory, "backward": backward, "values": values, "picture": picture}


def _trace(asked: Asked, **options: Any) -> Any:
    import torchlens

    capture = torchlens.options.CaptureOptions(**options) if options else None
    extra = {} if capture is None else {"capture": capture}
    with torch.no_grad():
        return torchlens.trace(asked.subject.module, asked.subject.inputs, **extra)
