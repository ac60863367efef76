"""What a person asks about a page, as token ids: words through a tokenizer, ids as they are, or a number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.errors import UsageError

IMAGE_MARK = "<image>"
FIRST_TEXT_ID = 5
TEXT_IDS = 100

Prompt = str | int | Sequence[int]
"""Text, the number of text tokens, or their ids. In a text `<image>` marks the place of the page, first if absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIds:
    """Text tokens on both sides of the page."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Text tokens, without the one that begins the sequence."""
        return len(self.before) + len(self.after)


def placeholder_ids(count: int) -> tuple[int, ...]:
    """So many different small ids: without a tokenizer only their number counts."""
    return tuple(FIRST_TEXT_ID + index % TEXT_IDS for index in range(count))


def prompt_ids(prompt: Prompt, tokenizer: Any | None) -> PromptIds:
    """The ids of a prompt; a text needs a tokenizer, with `encode(text, add_special_tokens=False)`."""
    if isinstance(prompt, str):
        return _encoded(prompt, tokenizer)
    if isinstance(prompt, int):
        if prompt < 0:
            raise UsageError("A prompt cannot have fewer than no tokens.", why=f"it was {prompt}", fix="give 0 or more")
        return PromptIds(after=placeholder_ids(prompt))
    return PromptIds(after=tuple(prompt))


def _encoded(text: str, tokenizer: Any | None) -> PromptIds:
    if tokenizer is None:
        raise UsageError(
            "A prompt in words needs a tokenizer.",
            why="this session has none: the blueprint brings no files, and the folder holds no tokenizer",
            fix="give the number of text tokens, or their ids; or load a folder with tokenizer.json in it",
        )
    if text.count(IMAGE_MARK) > 1:
        raise UsageError(
            f"The prompt has {IMAGE_MARK} more than once.", why="one page is read at a time", fix="leave one of them"
        )
    before, mark, after = text.strip().rpartition(IMAGE_MARK)
    encode = tokenizer.encode
    return PromptIds(
        before=tuple(encode(before, add_special_tokens=False)) if mark and before else (),
        after=tuple(encode(after, add_special_tokens=False)) if after else (),
    )
