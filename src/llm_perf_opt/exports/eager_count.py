"""The FLOPs of a part by torch's own counter, from an eager run on the meta device: a witness with other formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from llm_perf_opt.exports.meta_autocast import autocast_knows_meta
from llm_perf_opt.testimony import Family, family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCount:
    """Totals by operator, and the matrix work that the counter has no formula for."""

    flops_by_operator: dict[str, int]
    calls_by_operator: dict[str, int]
    unknown: dict[str, int]  # operator -> calls

    @property
    def flops(self) -> int:
        """What the counter adds up to; too low by what is unknown."""
        return sum(self.flops_by_operator.values())


def torch_count(forward: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> TorchCount:
    """Run `forward` once and count; on the meta device fused attention is taken apart into products it can count."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), autocast_knows_meta(), _Matrices() as seen, counter:
        forward(*inputs)
    totals = counter.get_flop_counts().get("Global", {})
    return TorchCount(
        flops_by_operator={str(packet): int(flops) for packet, flops in totals.items()},
        calls_by_operator=dict(seen.calls),
        unknown={name: calls for name, calls in seen.calls.items() if name not in _known_names()},
    )


def _known_names() -> frozenset[str]:
    return frozenset(map(str, flop_registry))


class _Matrices(TorchDispatchMode):
    """Counts the calls of every operator that does matrix work, with or without a formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func._overloadpacket)
        if family_of(name) is not Family.OTHER:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))
