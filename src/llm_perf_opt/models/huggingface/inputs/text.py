"""Token ids: ordinary words, with stretches of placeholder tokens where features of another modality go."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_perf_opt.models.huggingface.inputs.plan import Integers, Leaf, Run, Subject, nested_configs, number, ones

POSITION_LIMITS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_target_positions",
    "n_ctx",
    "seq_length",
)
DEFAULT_PROMPT_TOKENS = 128
SPARE_POSITIONS = 4  # some tables begin with positions for padding; a default prompt leaves them and a step alone
TOKEN_TYPE_OF = {"text": 0, "image": 1, "video": 2, "audio": 3}


def token_ids(subject: Subject, length: int, runs: Sequence[Run] = ()) -> Integers:
    """`length` ordinary tokens after the placeholder runs, the same in every row of the batch."""
    row = array("q")
    for run in runs:
        row += run.ids()
    row += ordinary_tokens(subject.config, length)
    return Integers(row, (subject.sizes.batch, len(row)))


def ordinary_tokens(config: Any, length: int) -> array[int]:
    """Ids that no configuration field claims as special, so that no branch on a special token is taken."""
    special = special_tokens(config)
    vocabulary = number(text_section(config), "vocab_size") or number(config, "vocab_size") or 100
    plain = [token for token in range(min(5, vocabulary - 1), min(vocabulary, 1000)) if token not in special] or [1]
    repeats, rest = divmod(length, len(plain))
    return array("q", plain) * repeats + array("q", plain[:rest])


def special_tokens(config: Any) -> frozenset[int]:
    """Every integer that a field with `token` in its name holds, at any depth of the configuration."""
    tokens: set[int] = set()
    for nested in nested_configs(config):
        for name, value in vars(nested).items():
            if "token" in name:
                tokens.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return frozenset(tokens)


def text_section(config: Any) -> Any:
    """The part of the configuration that holds the vocabulary: the decoder of a composite, else the whole."""
    for name in ("text_config", "llm_config", "language_config", "text_encoder", "text", "decoder", "generator"):
        nested = getattr(config, name, None)
        if hasattr(nested, "to_dict"):
            return nested
    return config


def prompt_length(subject: Subject) -> int:
    """The number of text tokens that was asked for, exactly; the default is less where the model has few positions."""
    if subject.sizes.prompt_tokens is not None:
        return subject.sizes.prompt_tokens
    limit = named_positions(subject.config)
    return DEFAULT_PROMPT_TOKENS if limit is None else min(DEFAULT_PROMPT_TOKENS, limit - SPARE_POSITIONS)


def named_positions(config: Any) -> int | None:
    """How many positions the configuration names for the text: the end of a table, or the length it was trained on."""
    section = text_section(config)
    limits = [v for n in POSITION_LIMITS if isinstance(v := getattr(section, n, None), int) and v > 8]
    return min(limits, default=None)


def text_inputs(subject: Subject, runs: Sequence[Run] = ()) -> dict[str, Leaf]:
    """Ids and the companions every text model may ask for: mask, token types, decoder ids."""
    ids = token_ids(subject, prompt_length(subject), runs)
    plan: dict[str, Leaf] = {"input_ids": ids}
    if subject.takes("attention_mask"):
        plan["attention_mask"] = ones(*ids.shape)
    if subject.takes("mm_token_type_ids"):
        plan["mm_token_type_ids"] = modality_of_each_token(subject, runs)
    return plan


def modality_of_each_token(subject: Subject, runs: Sequence[Run]) -> Integers:
    """0 for text, 1 for image, 2 for video, 3 for audio: what a processor hands to models with several modalities."""
    zero, row = array("q", [0]), array("q")
    for run in runs:
        row += zero * len(run.before) + array("q", [TOKEN_TYPE_OF[run.kind]]) * run.count + zero * len(run.after)
    row += zero * prompt_length(subject)
    return Integers(row, (subject.sizes.batch, len(row)))


def decoder_inputs(subject: Subject, *, with_prompt: bool) -> dict[str, Leaf]:
    """Ids for the decoder of an encoder-decoder model; `with_prompt` where its encoder reads no text."""
    if not subject.takes("decoder_input_ids"):
        return {}
    prompt_tokens = subject.sizes.prompt_tokens if with_prompt else None
    return {
        "decoder_input_ids": token_ids(
            subject, subject.sizes.decoder_tokens if prompt_tokens is None else prompt_tokens
        )
    }


_FIELDS = {
    "image": (
        "image_token_id",
        "image_token_index",
        "media_token_id",
        "media_placeholder_token_id",
        "img_context_token_id",
        "image_patch_id",
        "im_patch_id",
    ),
    "audio": ("audio_token_id", "audio_token_index", "audio_placeholder_token_id"),
    "video": ("video_token_id", "video_token_index"),
}
_FRAMES = {
    "image": (
        ("vision_start_token_id", "image_start_token_id", "boi_token_id"),
        ("vision_end_token_id", "image_end_token_id", "eoi_token_id"),
    ),
    "audio": (
        ("audio_start_token_id", "audio_bos_token_id", "boa_token_id"),
        ("audio_end_token_id", "audio_eos_token_id", "eoa_token_id"),
    ),
    "video": (("vision_start_token_id", "video_start_token_id"), ("vision_end_token_id", "video_end_token_id")),
}


def placeholder_token(config: Any, kind: str) -> int | None:
    """The id that stands for one feature of `kind`, wherever the configuration keeps it."""
    return _first(config, _FIELDS[kind])


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    for nested in nested_configs(config):
        for name in names:
            if isinstance(value := getattr(nested, name, None), int) and value >= 0:
                return value
    return None


def framed_run(subject: Subject, kind: str, count: int) -> Run | None:
    """`count` placeholders between the start and end tokens the configuration names; None without a placeholder."""
    token = placeholder_token(subject.config, kind)
    if token is None:
        return None
    before, after = ((_first(subject.config, names)) for names in _FRAMES[kind])
    return Run(
        kind=kind,
        token=token,
        count=count,
        before=() if before is None else (before,),
        after=() if after is None else (after,),
    )


def runs_for(subject: Subject, counts: Mapping[str, int]) -> Iterator[Run]:
    """One run per modality that has a placeholder token."""
    for kind, count in counts.items():
        if count > 0 and (run := framed_run(subject, kind, count)) is not None:
            yield run
