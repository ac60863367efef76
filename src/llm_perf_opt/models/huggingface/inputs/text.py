"""Token ids: ordinary words, with stretches of placeholder tokens where features of another modality go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from llm_perf_opt.models.huggingface.inputs.leaves import Leaf, Run, Whole, ones
from llm_perf_opt.models.huggingface.inputs.subject import Subject, nested_configs, number

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


def token_ids(subject: Subject, length: int, runs: Sequence[Run] = ()) -> Whole:
    """`length` ordinary tokens after the placeholder runs, the same in every row of the batch."""
    row = [token for run in runs for token in run.ids()] + ordinary_tokens(subject.config, length)
    return Whole(tuple(row) * subject.sizes.batch, (subject.sizes.batch, len(row)))


def ordinary_tokens(config: Any, length: int) -> list[int]:
    """Ids that no configuration field claims as special, so that no branch on a special token is taken."""
    special = special_tokens(config)
    vocabulary = number(text_section(config), "vocab_size") or number(config, "vocab_size") or 100
    plain = [token for token in range(min(5, vocabulary - 1), min(vocabulary, 1000)) if token not in special] or [1]
    return list(islice(plain * (length // len(plain) + 1), length))


def special_tokens(config: Any) -> frozenset[int]:
    """Every integer that a field with `token` in its name holds, at any depth of the configuration."""
    found: set[int] = set()
    for nested in nested_configs(config):
        for name, value in vars(nested).items():
            if "token" in name:
                found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return frozenset(found)


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


def modality_of_each_token(subject: Subject, runs: Sequence[Run]) -> Whole:
    """0 for text, 1 for image, 2 for video, 3 for audio: what a processor hands to models with several modalities."""
    row = [TOKEN_TYPE_OF[run.kind] if token == run.token else 0 for run in runs for token in run.ids()]
    row += [0] * prompt_length(subject)
    return Whole(tuple(row) * subject.sizes.batch, (subject.sizes.batch, len(row)))


def decoder_inputs(subject: Subject, *, with_prompt: bool) -> dict[str, Leaf]:
    """Ids for the decoder of an encoder-decoder model; `with_prompt` where its encoder reads no text."""
    if not subject.takes("decoder_input_ids"):
        return {}
    asked = subject.sizes.prompt_tokens if with_prompt else None
    return {"decoder_input_ids": token_ids(subject, subject.sizes.decoder_tokens if asked is None else asked)}
