"""Pictures that a tracer's own library draws of a module: which one, into which file, repeats rolled up or not."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import UsageError

FORM = "[MODULE=]FILE[:rolled|:unrolled]"
SUFFIXES = (".svg", ".pdf", ".png")
_VIEWS = {":rolled": True, ":unrolled": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePicture:
    """One picture. Rolled, an op that ran several times is one node; unrolled, every run of it is a node of its own."""

    file: Path
    module: str = ""  # the whole model
    is_rolled: bool = False

    def __post_init__(self) -> None:
        if self.file.suffix not in SUFFIXES:
            raise UsageError(
                f"A picture cannot be written as {self.file.name!r}.",
                why=f"the suffix is the format: {', '.join(SUFFIXES)}",
                fix=f"give it as {FORM}, like model.layers.0=layer.svg",
            )

    @classmethod
    def parse(cls, text: str) -> ModulePicture:
        """A picture as the command line names it: `[MODULE=]FILE[:rolled|:unrolled]`, the whole model by default."""
        view = next((ending for ending in _VIEWS if text.endswith(ending)), "")
        module, _, file = text.removesuffix(view).rpartition("=")
        return cls(file=Path(file), module=module, is_rolled=_VIEWS.get(view, False))


def as_pictures(given: Sequence[ModulePicture | str]) -> tuple[ModulePicture, ...]:
    """The pictures, each into a file of its own."""
    pictures = tuple(ModulePicture.parse(one) if isinstance(one, str) else one for one in given)
    files = Counter(picture.file for picture in pictures)
    for file, count in files.items():
        if count > 1:
            raise UsageError(
                f"{count} pictures would be written to {file}.",
                why="a file holds one picture",
                fix="give each a file of its own",
            )
    return pictures


def require_modules(pictures: Sequence[ModulePicture], paths: Collection[str]) -> None:
    """Refuse a module that the model does not have, with the paths that come nearest."""
    for picture in pictures:
        if picture.module not in paths:
            close = difflib.get_close_matches(picture.module, [path for path in paths if path], n=3, cutoff=0.5)
            raise UsageError(
                f"The model has no module {picture.module!r}.",
                why="a picture is drawn of one module, named by its path in the model",
                fix=f"did you mean {' or '.join(map(repr, close))}?" if close else "take a path from call_counts",
            )
