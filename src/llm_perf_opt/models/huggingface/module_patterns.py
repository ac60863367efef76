"""Whether a pattern of a `quantization_config` means a module of the traced model.

Patterns are written in the names of the checkpoint. A model in transformers may spell a module otherwise: the experts
of a layer are one stack, and a language model inside a larger one has another prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

_WRAPPERS = ("model", "language_model")
# Stack -> what its experts call the matrices in it, in the checkpoints there are.
_EXPERT_NAMES = {
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"),
    "down_proj": ("down_proj", "w2"),
}


def spellings(path: str, *, is_stack: bool) -> tuple[str, ...]:
    """The names under which a checkpoint may know a module, its own first; of a stack those of its first expert too."""
    return tuple(dict.fromkeys(name for form in _forms(path, is_stack) for name in _prefixed(form)))


def _forms(path: str, is_stack: bool) -> Iterator[str]:
    yield path
    if is_stack:
        experts, _, name = path.rpartition(".")
        yield experts
        for matrix in _EXPERT_NAMES.get(name, (name,)):
            yield f"{experts}.0.{matrix}"


def _prefixed(path: str) -> Iterator[str]:
    yield path
    names = path.split(".")
    while len(names) > 1 and names[0] in _WRAPPERS:
        names = names[1:]
    bare = ".".join(names)
    yield bare
    yield f"model.{bare}"
    if path.startswith("model.language_model."):
        yield f"language_model.model.{bare}"


def names_module(pattern: str, names: Sequence[str]) -> bool:
    """Whether one of the names is meant: by `re:` and an expression, by `*`, or as a whole path, its end or beginning.

    `mlp.gate` means every module of that name and what is inside it, and not `mlp.gate_proj`.
    """
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(name, wild) for name in names for wild in (pattern, f"{pattern}.*", f"*.{pattern}"))
    return any(f".{pattern}." in f".{name}." for name in names)
