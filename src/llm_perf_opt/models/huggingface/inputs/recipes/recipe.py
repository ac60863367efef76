"""What a recipe is: from a model and placeholder counts to the arguments of one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from llm_perf_opt.models.huggingface.inputs.leaves import Leaf
from llm_perf_opt.models.huggingface.inputs.subject import Subject

Recipe = Callable[[Subject, Mapping[str, int]], Mapping[str, Leaf]]


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A recipe, the modalities it feeds (placeholder counts of theirs may be corrected), and the method it is for.

    `chooses`: it feeds only those of its modalities that it is given a count of.
    """

    make: Recipe
    modalities: tuple[str, ...] = ()
    entry: str = "forward"
    chooses: bool = False

    def choices(self) -> Iterator[tuple[str, ...]]:
        """The sets of modalities it can feed, all of them first."""
        sizes = range(len(self.modalities), -1, -1) if self.chooses else (len(self.modalities),)
        return (chosen for size in sizes for chosen in combinations(self.modalities, size))
