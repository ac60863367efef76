"""calflops: prices torch's functions while a forward runs."""

from __future__ import annotations

import importlib
import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked

PACKAGE = "calflops"


def prepare(asked: Asked) -> None:
    importlib.import_module(PACKAGE)
    _ = asked.subject


def count(asked: Asked) -> Count:
    flops, macs, _ = _asked(asked)
    return Count(
        printed=flops,
        unit="FLOPS, element-wise included",
        flops=2 * round(macs),
        flops_by_module=_by_module(asked) if asked.name == "direct-call" else None,
    )


def _by_module(asked: Asked) -> dict[str, int]:
    """Children of the root, from the table it prints: three digits."""
    with redirect_stdout(StringIO()) as table:
        _asked(asked, print_results=True)
    rows = re.findall(r"\((\w+)\): .*?, ([\d.]+) (K?)FLOPS", table.getvalue())
    return {name: round(float(figure) * (1000 if kilo else 1)) for name, figure, kilo in rows}


def backward(asked: Asked) -> Offer:
    flops, _, _ = _asked(asked, include_backPropagation=True)
    return Offer(figure=flops, unit="FLOPs", of="a forward and its backward, taken as two forwards")


OFFERS = {"backward": backward}


def _asked(asked: Asked, print_results: bool = False, **options: Any) -> Any:
    from calflops import calculate_flops

    inputs = list(asked.subject.inputs)
    options |= {"print_results": print_results, "output_as_string": False}
    return calculate_flops(asked.subject.module, args=inputs, **options)
