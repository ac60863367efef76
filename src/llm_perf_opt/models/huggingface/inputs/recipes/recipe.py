"""What a recipe is: from a model and placeholder counts to the arguments of one forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_perf_opt.models.huggingface.inputs.leaves import Leaf
from llm_perf_opt.models.huggingface.inputs.subject import Subject

Recipe = Callable[[Subject, Mapping[str, int]], Mapping[str, Leaf]]


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A recipe, the modalities it feeds (placeholder counts of theirs may be corrected), and the method it is for."""

    make: Recipe
    modalities: tuple[str, ...] = ()
    entry: str = "forward"
