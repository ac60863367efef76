"""torchinfo: a table of layers from forward hooks."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked

PACKAGE = "torchinfo"


def prepare(asked: Asked) -> None:
    importlib.import_module(PACKAGE)
    _ = asked.subject


def count(asked: Asked) -> Count:
    summary = _summary(asked)
    rows = summary.summary_list
    return Count(
        printed=summary.total_mult_adds,
        unit="mult-adds",
        flops=2 * summary.total_mult_adds,
        flops_by_module={_path(row): 2 * row.macs for row in rows if row.is_leaf_layer},
    )


def memory(asked: Asked) -> Offer:
    summary = _summary(asked)
    return Offer(
        figure=summary.total_param_bytes + summary.total_output_bytes,
        unit="bytes",
        of="weights and the outputs of all layers, as if none were freed",
    )


OFFERS = {"memory": memory}


def _summary(asked: Asked) -> Any:
    from torchinfo import summary

    device = next(asked.subject.module.parameters()).device
    return summary(asked.subject.module, input_data=list(asked.subject.inputs), device=device, verbose=0)


def _path(row: Any) -> str:
    names = []
    while row is not None and row.parent_info is not None:
        names.append(row.var_name)
        row = row.parent_info
    return ".".join(reversed(names))
