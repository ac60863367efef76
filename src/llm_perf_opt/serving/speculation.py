"""Speculative decoding: a drafter proposes tokens, and the model checks them all in its next step.

A step has one row for the last token of a sequence and one for each draft. Of `tokens` drafts, each accepted with the
same chance where those before it were, a step keeps `1 + a + a^2 + ...` tokens in the mean. How many a real text
accepts is no property of the hardware: the chance is given by who asks, and a band around it by default.

The drafter runs once for each draft, one after the other. An MTP module and an EAGLE head are one layer of the model
with the model's head behind it, so each draft takes the share of one layer in a step, and the head. A drafter of
n-grams looks tokens up on the host, and takes nothing of the GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.timing.step.step_table import StepTable

MOST_DRAFTS = 16
_ABOUT = 0.1  # of acceptance, to each side, where only one figure is given
_FORM = re.compile(r"(mtp|eagle|ngram):(\d{1,2})@(0(?:\.\d{1,4})?|1(?:\.0{1,4})?)")


class Drafter(StrEnum):
    """What proposes tokens."""

    MTP = "mtp"  # the model's own layer for the next tokens
    EAGLE = "eagle"  # a layer that was trained for the model
    NGRAM = "ngram"  # a search in the text so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """`tokens` drafts in each step, of which each is kept with the chance `acceptance` if the one before it was."""

    drafter: Drafter
    tokens: int
    acceptance: float

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_DRAFTS or not 0 <= self.acceptance <= 1:
            raise ValueError(f"{self.tokens} drafts with acceptance {self.acceptance}")

    def __str__(self) -> str:
        return f"{self.drafter}:{self.tokens}@{self.acceptance:g}"

    @property
    def has_layer(self) -> bool:
        """Whether the drafter is a layer with weights and a cache of its own."""
        return self.drafter is not Drafter.NGRAM

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens that a step adds to an answer."""
        return self._kept(self.acceptance)

    @property
    def kept_ends(self) -> tuple[float, float]:
        """The same for an acceptance a tenth lower and a tenth higher."""
        return self._kept(max(0.0, self.acceptance - _ABOUT)), self._kept(min(1.0, self.acceptance + _ABOUT))

    def _kept(self, acceptance: float) -> float:
        return sum(acceptance**draft for draft in range(self.tokens + 1))

    def draft_s(self, table: StepTable, sequences: int, cached_tokens: int, layers: int) -> float:
        """All drafts of a step, one after the other."""
        return self.tokens * table.draft_s(sequences, cached_tokens, layers) if self.has_layer else 0.0

    def vllm_setting(self) -> dict[str, Any]:
        """What vLLM is told; the folder of an EAGLE head has to be put in."""
        drafts = {"num_speculative_tokens": self.tokens}
        return {
            Drafter.MTP: {"method": "mtp", **drafts},
            Drafter.EAGLE: {"method": "eagle3", "model": "DRAFTER", **drafts},
            Drafter.NGRAM: {"method": "ngram", "prompt_lookup_max": 4, **drafts},
        }[self.drafter]


def read_speculation(text: str | None) -> Speculation | None:
    """`mtp:3@0.8`, `eagle:4@0.7` or `ngram:4@0.3`: the drafter, drafts in a step, the chance that one is kept."""
    if text is None:
        return None
    match = _FORM.fullmatch(text.strip())
    if match is None or not 1 <= int(match[2]) <= MOST_DRAFTS:
        raise UsageError(
            f"{text[:60]!r} is not a way to speculate.",
            why=f"it takes a drafter (mtp, eagle, ngram), 1 to {MOST_DRAFTS} drafts, and an acceptance from 0 to 1",
            fix="write mtp:3@0.8",
        )
    return Speculation(drafter=Drafter(match[1]), tokens=int(match[2]), acceptance=float(match[3]))
