"""How a server spreads one replica of a model, in the words of vLLM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """`tp` ranks share each matrix, `pp` stages the layers; `dp` such groups have sequences of their own.

    Groups share the experts of the model, so they are one replica and step together. With `has_expert_parallel` each
    expert lies whole on one rank of the replica.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    has_expert_parallel: bool = False

    @property
    def replica_ranks(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def ep(self) -> int:
        """Ranks over which experts are spread; 1: every rank has a part of each."""
        return self.tp * self.dp if self.has_expert_parallel else 1

    def describe(self) -> str:
        """As people write it: `tp4 ep8 dp2`."""
        sizes = {"tp": self.tp, "ep": self.ep, "pp": self.pp, "dp": self.dp}
        return " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "one device"
