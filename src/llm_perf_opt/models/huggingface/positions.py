"""How long a text a model takes: what its positions end is refused, what it was not trained for is run and said.

Whether the positions that a configuration names are the end of a table or only the length of training, no field tells;
the model itself does, by refusing or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llm_perf_opt.errors import UsageError
from llm_perf_opt.models.huggingface.inputs import Found, NoInputs, Plan, Subject, find_inputs
from llm_perf_opt.models.huggingface.inputs.search import REJECTIONS
from llm_perf_opt.models.huggingface.inputs.text import SPARE_POSITIONS, named_positions, prompt_length

Run = Callable[[Plan, str], object]


def find_at_full_length(subject: Subject, run: Run, wanted: frozenset[str]) -> Found:
    """Inputs with the prompt that was asked for; where only its length is in the way, the longest one is named."""
    try:
        return find_inputs(subject, run, wanted)
    except NoInputs as error:
        longest = _longest_prompt(subject, run, wanted)
        if longest is None:
            raise
        raise UsageError(
            f"{subject.class_name} does not take a prompt of {subject.sizes.prompt_tokens:,} tokens.",
            why=f"its positions end: {longest:,} tokens run, more do not",
            fix=f"use --prompt-tokens {longest} or less",
        ) from error


def _longest_prompt(subject: Subject, run: Run, wanted: frozenset[str]) -> int | None:
    """The longest prompt near the end of the named positions that runs, if the one asked for is longer."""
    asked, named = subject.sizes.prompt_tokens, named_positions(subject.config)
    if asked is None or named is None:
        return None
    for length in range(min(named, asked - 1), max(named - SPARE_POSITIONS - 1, 0), -1):
        try:
            find_inputs(_with_prompt(subject, length), run, wanted)
        except NoInputs:
            continue
        return length
    return None


def require_room_for_steps(
    subject: Subject, found: Found, run: Run, *, context_tokens: int, steps: int, refusal: Exception | None
) -> None:
    """Refuse steps beyond the end of the positions.

    `refusal` is what the model said to the first step. If it took that one, a prefill as long as the last step's
    context tells whether it takes all of them.
    """
    named = named_positions(subject.config)
    if named is None or context_tokens + steps <= named:
        return
    if refusal is None and context_tokens <= named:
        plan = found.plan_of(_with_prompt(subject, prompt_length(subject) + steps))
        try:
            run(plan, found.entry)
        except REJECTIONS as error:
            refusal = error
    if refusal is not None:
        room = max(named - context_tokens, 0)
        raise UsageError(
            f"{subject.class_name} has no position for {_steps(steps)} after {context_tokens:,} tokens.",
            why=f"its positions end at {named:,} ({type(refusal).__name__}: {str(refusal)[:200]})",
            fix=f"shorten the prompt by {context_tokens + steps - named}, or use --decode-steps {room}",
        )


def trained_length_note(subject: Subject, tokens: int) -> tuple[str, ...]:
    """One sentence if the run goes beyond the positions that the configuration names."""
    named = named_positions(subject.config)
    if named is None or tokens <= named:
        return ()
    return (
        f"Beyond its trained length: {tokens:,} positions run, and the configuration names {named:,}. "
        "The code runs them, but the model was not trained on them.",
    )


def _with_prompt(subject: Subject, tokens: int) -> Subject:
    return replace(subject, sizes=replace(subject.sizes, prompt_tokens=tokens))


def _steps(steps: int) -> str:
    return "a decode step" if steps == 1 else f"{steps:,} decode steps"
