"""vLLM's log of iterations (`--enable-logging-iteration-details`): what each step held, and how long it took."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from dataclasses import dataclass

from llm_perf_opt.analyses.measured.measurement import MEASURED_FILE, MeasuredRun, Quantity, run_of, time_of

STEP_LOG = "vLLM's log of iterations"
_LINE = re.compile(
    rb"Iteration\((\d{1,12})\): (\d{1,9}) context requests, (\d{1,9}) context tokens, (\d{1,9}) generation requests, "
    rb"(\d{1,9}) generation tokens, iteration elapsed time: ([0-9.]{1,12}) ms"
)
_FEWEST = 3  # steps of one size, so that a median says something
_MOST_RUNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step of an engine."""

    prompts: int
    prompt_tokens: int
    decoding: int
    decoded_tokens: int
    seconds: float

    @property
    def only_decodes(self) -> bool:
        """One token for each sequence, and no prompt."""
        return self.decoding > 0 and not self.prompts and self.decoded_tokens == self.decoding


def is_step_log(raw: bytes) -> bool:
    """Whether a step is logged in it."""
    return _LINE.search(raw) is not None


def read_steps(raw: bytes) -> tuple[MeasuredStep, ...]:
    """All steps in order, whatever else the log says between them."""
    found = []
    for _, prompts, prompt_tokens, decoding, decoded, milliseconds in _LINE.findall(raw):
        seconds = float(milliseconds) * 1e-3
        if seconds > 0 and (int(prompts) or int(decoding)):
            found.append(
                MeasuredStep(
                    prompts=int(prompts),
                    prompt_tokens=int(prompt_tokens),
                    decoding=int(decoding),
                    decoded_tokens=int(decoded),
                    seconds=seconds,
                )
            )
    if not found:
        raise MEASURED_FILE.refusal("holds no step", "no line tells of an iteration with a time above zero")
    return tuple(found)


def read_step_log(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """A run for each number of sequences that often decoded together: the median of such steps."""
    by_batch: dict[int, list[float]] = defaultdict(list)
    for step in read_steps(raw):
        if step.only_decodes:
            by_batch[step.decoding].append(step.seconds)
    often = sorted(
        (batch for batch in by_batch if len(by_batch[batch]) >= _FEWEST), key=lambda one: -len(by_batch[one])
    )
    if not often:
        raise MEASURED_FILE.refusal("holds no run", f"no number of sequences decoded together {_FEWEST} times")
    return tuple(
        run_of(
            [time_of(Quantity.TPOT, statistics.median(by_batch[batch]), "median")],
            source=STEP_LOG,
            file=file,
            batch=batch,
        )
        for batch in sorted(often[:_MOST_RUNS])
    )
