"""What a Hugging Face folder takes besides the common fields of a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llm_perf_opt.core.options import option
from llm_perf_opt.core.workload import Workload

SAMPLES_PER_SECOND = 16_000


def audio_samples(seconds: float) -> int:
    """Of a waveform at the rate that speech models are trained at."""
    return round(seconds * SAMPLES_PER_SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceWorkload(Workload):
    """The model's processor is not run, so that only sizes count."""

    taken_by: ClassVar[str] = "A Hugging Face folder"

    image: str | None = option(None, help="WIDTHxHEIGHT after the processor's resizing. Default: none if it can.")
    audio_seconds: float | None = option(
        None, at_least=0, help="Seconds of sound at 16 kHz, for a model that reads waveforms."
    )
    decoder_tokens: int | None = option(None, at_least=1, help="Tokens that the decoder behind an encoder starts with.")


WORKLOAD = HuggingFaceWorkload
