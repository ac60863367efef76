"""The workload as it runs, for the header of a trace, and how long a text the model takes.

A text beyond learnt positions is refused; one beyond the trained length runs and is noted.

Whether the positions that a configuration names are the end of a table or only the length of training, no field tells;
the model itself does, by refusing or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Json
from llm_perf_opt.models.huggingface.inputs import (
    Fed,
    Found,
    NoInputs,
    Plan,
    Subject,
    accepted_modalities,
    described,
    find_inputs,
)
from llm_perf_opt.models.huggingface.inputs.media import image_advice, merge_unit
from llm_perf_opt.models.huggingface.inputs.search import REJECTIONS
from llm_perf_opt.models.huggingface.inputs.text import SPARE_POSITIONS, named_positions, prompt_length
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload, audio_samples


def resolved_workload(
    workload: HuggingFaceWorkload,
    subject: Subject,
    inputs: Found,
    fed: Fed,
    *,
    encoder_tokens: int | None,
    decode_steps: int,
) -> dict[str, Json]:
    """Everything that ran, read off the inputs; what the model has no place for is left out."""
    is_prompted = fed.text_tokens is not None or fed.decoder_tokens is not None
    is_pair = fed.decoder_tokens is not None
    lengths = {
        "prompt_tokens": fed.decoder_tokens if fed.text_tokens is None else fed.text_tokens,
        "image_tokens": fed.image_tokens,
        "audio_tokens": fed.audio_tokens,
        "context_tokens": None if is_pair else fed.context_tokens,
        "encoder_tokens": encoder_tokens,
        "decoder_tokens": fed.decoder_tokens,
        "image": None if fed.image is None else _by(fed.image),
        "audio_frames": fed.audio_frames,
        "audio_samples": fed.audio_samples,
    }
    if not is_prompted and _reads_prompt(subject, inputs):
        lengths["prompt_tokens"] = prompt_length(subject)
    return workload.header(
        {
            **{name: value for name, value in lengths.items() if value is not None},
            "modalities": " + ".join(inputs.modalities),
            "inputs": {name: described(leaf) for name, leaf in inputs.plan.items()},
            **({"decode_steps": decode_steps} if workload.new_tokens == 1 else {}),
            "batch": workload.batch,
            "dtype": workload.dtype,
            "attention": workload.attention or getattr(subject.config, "_attn_implementation", None) or "model default",
            **_logits(subject, inputs),
        }
    )


def _logits(subject: Subject, inputs: Found) -> dict[str, Json]:
    """Of a model that generates: which positions of the prefill get logits."""
    if not subject.generates or inputs.entry != "forward":
        return {}
    is_last = subject.logits_argument is not None and subject.logits_argument in inputs.plan
    return {"logits": "last position" if is_last else "every position"}


def _by(sides: tuple[int, int]) -> str:
    return f"{sides[0]}x{sides[1]}"


def _reads_prompt(subject: Subject, inputs: Found) -> bool:
    """Whether a longer prompt would change the inputs, be it a draft model's view of what another model read."""
    longer = replace(subject, sizes=replace(subject.sizes, prompt_tokens=prompt_length(subject) + 1))
    return inputs.plan_of(longer) != inputs.plan


def refuse_what_did_not_run(workload: HuggingFaceWorkload, subject: Subject, inputs: Found, fed: Fed) -> None:
    """A prompt for a model that reads no text, an image that was not fed or had to be made another size."""
    if workload.prompt_tokens is not None and not _reads_prompt(subject, inputs):
        raise UsageError(
            f"{subject.class_name} takes no prompt.",
            why=f"its forward reads {' and '.join(inputs.modalities) or 'no text'}",
            fix="leave --prompt-tokens out",
        )
    _refuse_other_lengths(workload, subject, fed)
    if subject.sizes.image is None:
        return
    height, width = subject.sizes.image
    if fed.image is None or not _is_cut_to(fed.image, (width, height), merge_unit(subject)):
        raise UsageError(
            f"{subject.class_name} does not run with an image of {workload.image}.",
            why="its inputs have no size of an image" if fed.image is None else f"it takes {_by(fed.image)}",
            fix=image_advice(subject),
        )


def _refuse_other_lengths(workload: HuggingFaceWorkload, subject: Subject, fed: Fed) -> None:
    """Sound or tokens of a decoder that were not fed as asked for."""
    if workload.decoder_tokens not in (None, fed.decoder_tokens):
        raise UsageError(
            f"{subject.class_name} does not run with decoder_tokens {workload.decoder_tokens}.",
            why="it has no decoder behind an encoder"
            if fed.decoder_tokens is None
            else "its decoder reads the prompt itself",
            fix="leave decoder_tokens out, or give prompt_tokens alone",
        )
    if workload.audio_seconds is not None and fed.audio_samples != audio_samples(workload.audio_seconds):
        frames = "no sound" if fed.audio_frames is None else f"{fed.audio_frames:,} frames of features"
        raise UsageError(
            f"{subject.class_name} does not run with audio_seconds {workload.audio_seconds}.",
            why=f"it reads {frames}, not a waveform",
            fix="leave audio_seconds out",
        )


def _is_cut_to(fed: tuple[int, int], wished: tuple[int, int], unit: int) -> bool:
    """Whether each side is as asked for, or short of it by less than one patch."""
    return all(0 <= wish - side < unit for side, wish in zip(fed, wished, strict=True))


def modality_notes(workload: HuggingFaceWorkload, subject: Subject, inputs: Found, fed: Fed) -> Iterator[str]:
    """What was fed that nobody asked for, and why; what could be fed and was not; an image that was cut."""
    requested = {"text": True, "image": workload.image is not None, "audio": workload.audio_seconds is not None}
    unasked = [kind for kind in inputs.modalities if not requested.get(kind, False)]
    if unasked:
        yield _unasked_note(subject, inputs, fed, unasked)
    missing = [kind for kind in accepted_modalities(subject) if kind not in inputs.modalities]
    if "image" in missing and "text" in inputs.modalities:
        yield f"{subject.class_name} runs on text alone here: --image WIDTHxHEIGHT adds an image."
    if workload.image is not None and fed.image is not None and _by(fed.image) != workload.image:
        yield f"Of the image of {workload.image} whole patches cover {_by(fed.image)}: that is what runs."


def _unasked_note(subject: Subject, inputs: Found, fed: Fed, unasked: list[str]) -> str:
    """Why, and which size: "... does not run on text alone: it was given an image of 224x224 pixels"."""
    given = []
    if fed.image is not None and {"image", "video"} & set(unasked):
        given.append(f"{_article(unasked)} of {_by(fed.image)} pixels")
    if "audio" in unasked and (length := _sound_length(fed)):
        given.append(length)
    takes_text = "text" in accepted_modalities(subject)
    why = "does not run on text alone" if takes_text else f"reads {' and '.join(unasked)}"
    advice = "; --image WIDTHxHEIGHT chooses another" if "image" in unasked else ""
    return f"{subject.class_name} {why}: it was given {' and '.join(given) or 'the usual sizes'}{advice}."


def _article(unasked: list[str]) -> str:
    return "an image" if "image" in unasked else "a video"


def _sound_length(fed: Fed) -> str:
    if fed.audio_frames is not None:
        return f"{fed.audio_frames:,} audio frames"
    return "" if fed.audio_samples is None else f"{fed.audio_samples:,} audio samples"


def decoder_depth(config: Any) -> dict[str, Json]:
    """How many layers the decoder has, where the configuration says it."""
    depth = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    return {"decoder_depth": depth} if isinstance(depth, int) else {}


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
            why=f"its positions end at {longest:,} tokens",
            fix=f"use --prompt-tokens {longest} or less",
        ) from error


def _longest_prompt(subject: Subject, run: Run, wanted: frozenset[str]) -> int | None:
    """The longest prompt near the end of the named positions that runs, if the one asked for is longer."""
    prompt_tokens, named = subject.sizes.prompt_tokens, named_positions(subject.config)
    if prompt_tokens is None or named is None:
        return None
    for length in range(min(named, prompt_tokens - 1), max(named - SPARE_POSITIONS - 1, 0), -1):
        try:
            find_inputs(_with_prompt(subject, length), run, wanted)
        except NoInputs:
            continue
        return length
    return None


def require_room_for_steps(
    subject: Subject,
    inputs: Found,
    run: Run,
    *,
    context_tokens: int,
    steps: int,
    new_tokens: int,
    refusal: Exception | None,
) -> None:
    """Refuse new tokens beyond the end of the positions.

    `refusal` is what the model said to the first step. If it took that one, a prefill as long as the last step's
    context tells whether it takes all of them.
    """
    named, tokens = named_positions(subject.config), steps * new_tokens
    if named is None or context_tokens + tokens <= named:
        return
    if refusal is None and context_tokens <= named:
        plan = inputs.plan_of(_with_prompt(subject, prompt_length(subject) + tokens))
        try:
            run(plan, inputs.entry)
        except REJECTIONS as error:
            refusal = error
    if refusal is not None:
        room, option = max(named - context_tokens, 0), "--decode-steps" if new_tokens == 1 else "--new-tokens"
        raise UsageError(
            f"{subject.class_name} has no position for {_new(steps, new_tokens)} after {context_tokens:,} tokens.",
            why=f"its positions end at {named:,} ({type(refusal).__name__}: {str(refusal)[:200]})",
            fix=f"shorten the prompt by {context_tokens + tokens - named}, or use {option} {room}",
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


def _new(steps: int, new_tokens: int) -> str:
    if new_tokens > 1:
        return f"{new_tokens:,} new tokens"
    return "a decode step" if steps == 1 else f"{steps:,} decode steps"
