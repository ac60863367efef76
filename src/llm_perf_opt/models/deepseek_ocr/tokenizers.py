"""The tokenizer of a released folder, if it has one that can be read."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_tokenizer(folder: Path, trust_remote_code: bool) -> tuple[Any | None, str]:
    """The tokenizer or None, and the sentence that says which."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None, "the folder holds no tokenizer: prompts are token ids or their number"
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return None, "transformers is not installed, so the folder's tokenizer is not read"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        return None, f"the folder's tokenizer cannot be read: {type(error).__name__}: {str(error)[:200]}"
    return tokenizer, f"tokenizer {type(tokenizer).__name__} of the folder"
