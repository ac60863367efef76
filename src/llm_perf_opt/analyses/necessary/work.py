"""Necessary work: what any implementation of the same function must compute and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why code may do more than is necessary; the text ends a sentence that begins with how much."""

    POSITIONS = "positions whose result nobody uses: only the last one's logits are asked for"
    HIDDEN_PAIRS = "pairs of query and key that the causal mask or the window hides"
    LATENT = "keys and values that the code expands from the latent cache again at every step"
    IDLE_EXPERTS = "experts that the code runs on tokens which did not choose them"
    BETWEEN_ACTIVATIONS = "products between activations (scans, mixing, rotary tables), of which no bound is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class NecessaryWork:
    """FLOPs by the type they run in, and bytes that must come from memory, each once in every forward.

    `expert_bytes` are part of `weight_bytes`, and an expectation where a routing policy says so; `fewest_expert_bytes`
    are what no routing can go below, every token choosing the same experts. `cache_bytes` are keys,
    values and states that an earlier forward left. `other_bytes` are inputs and buffers. `saved` is what the code does
    beyond this, in FLOPs by reason. None: the trace follows no memory.
    """

    flops_by_dtype: Mapping[str, int]
    weight_bytes: int | None
    expert_bytes: int | None
    fewest_expert_bytes: int | None
    cache_bytes: int | None
    other_bytes: int | None
    forwards: int = 1
    active_matrix_parameters: int | None = None  # per forward; experts by the number that one token takes
    distinct_experts: tuple[ExpertReads, ...] = ()
    saved: Mapping[Reason, int] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """In whatever type."""
        return sum(self.flops_by_dtype.values())

    @property
    def bytes(self) -> int | None:
        """Weights, caches and inputs together; None while one of them is unknown."""
        parts = (self.weight_bytes, self.cache_bytes, self.other_bytes)
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    @property
    def fewest_bytes(self) -> int | None:
        """The same if the routers touch as few experts as they can: below this no run can stay."""
        if self.bytes is None or self.expert_bytes is None or self.fewest_expert_bytes is None:
            return None
        return self.bytes - self.expert_bytes + self.fewest_expert_bytes

    def plus(self, other: NecessaryWork) -> NecessaryWork:
        """Both, one after the other."""
        return NecessaryWork(
            flops_by_dtype=dict(Counter(self.flops_by_dtype) + Counter(other.flops_by_dtype)),
            weight_bytes=_sum(self.weight_bytes, other.weight_bytes),
            expert_bytes=_sum(self.expert_bytes, other.expert_bytes),
            fewest_expert_bytes=_sum(self.fewest_expert_bytes, other.fewest_expert_bytes),
            cache_bytes=_sum(self.cache_bytes, other.cache_bytes),
            other_bytes=_sum(self.other_bytes, other.other_bytes),
            forwards=max(self.forwards, other.forwards),
            active_matrix_parameters=_sum(self.active_matrix_parameters, other.active_matrix_parameters),
            distinct_experts=(*self.distinct_experts, *other.distinct_experts),
            saved=dict(Counter(self.saved) + Counter(other.saved)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertReads:
    """Layers whose routers choose alike: how many experts each of them has to read in one forward."""

    layers: int
    experts: int
    chosen: int
    tokens: int
    distinct: float
    policy: str


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
