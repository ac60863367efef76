"""How a server spreads one replica of a model, in the words of vLLM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """`tp` ranks share each matrix, `pp` stages the layers; `attention_dp` such groups have sequences of their own.

    Groups share the experts of the model, so they are one replica and step together: what vLLM calls data parallel with
    expert parallel. `dp` of a `ParallelPlan` are whole replicas, hence another name. With `has_expert_parallel` each
    expert lies whole on one rank of the replica.
    """

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    has_expert_parallel: bool = False

    @property
    def replica_ranks(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.attention_dp

    @property
    def ep(self) -> int:
        """Ranks over which experts are spread; 1: every rank has a part of each."""
        return self.tp * self.attention_dp if self.has_expert_parallel else 1

    def describe(self) -> str:
        """As people write it: `tp4 ep8 attention-dp2`."""
        sizes = {"tp": self.tp, "ep": self.ep, "pp": self.pp, "attention-dp": self.attention_dp}
        return " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "one device"
