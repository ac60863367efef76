"""One measured run, whoever measured it: what was served, on what, and the times that came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """How the GPUs of a replica share a model: `tensor` of them share each attention, `experts` share the experts.

    Of more GPUs than `tensor`, each group has an attention and sequences of its own. 1: not shared, or unknown.
    """

    tensor: int = 1
    experts: int = 1

    def describe(self, gpus: int) -> str:
        """As engines write it: `tp8 ep8`, `dp8 ep8`; how many GPUs where nothing is known to be shared."""
        groups = gpus // self.tensor
        parts = {"tp": self.tensor, "dp": groups if self.tensor * self.experts > 1 else 1, "ep": self.experts}
        return " ".join(f"{name}{size}" for name, size in parts.items() if size > 1) or f"{gpus} GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as the bound needs it. None is not recorded.

    `in_flight` are the sequences that `decode_gpus` held at once, at most: an engine may have run fewer of them and
    left the others waiting. Prefill and decode share their GPUs unless `is_disaggregated`. A plan that is not recorded
    shares nothing, so it has nothing to send. `drafts` are tokens that a step may have drafted beyond its own.
    `tokens_per_s_per_gpu` is the output of a run at full load, which has no times of its own. `touched` names the rules
    that changed the record.
    """

    name: str
    source: str
    model: str  # a folder of tests/facts/serving/configs
    device: str
    engine: str
    precision: str  # bf16, fp8, fp4 or int4
    prompt_tokens: int
    output_tokens: int
    prefill_gpus: int
    decode_gpus: int
    in_flight: int | None
    prefill_plan: ServedPlan = ServedPlan()
    decode_plan: ServedPlan = ServedPlan()
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    drafts: int = 0
    is_disaggregated: bool = False
    is_whole_system: bool = False
    is_repeat: bool = False
    touched: tuple[str, ...] = ()

    @property
    def e2e_s(self) -> float | None:
        """The time of a request: first token, then one step for each token of the output."""
        if self.ttft_s is None or self.tpot_s is None:
            return None
        return self.ttft_s + self.output_tokens * self.tpot_s

    @property
    def mean_context(self) -> int:
        """Tokens in the cache halfway through the output."""
        return self.prompt_tokens + self.output_tokens // 2 + 1
