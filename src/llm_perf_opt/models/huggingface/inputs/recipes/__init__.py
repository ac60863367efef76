"""Models whose inputs no signature gives away: one recipe per model type, grouped by what is fed."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.recipes import (
    decisions,
    multimodal,
    pictures,
    sessions,
    speech,
    time_series,
    towers,
)
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe

RECIPES: Mapping[str, ModelRecipe] = {
    **decisions.RECIPES,
    **pictures.RECIPES,
    **multimodal.RECIPES,
    **sessions.RECIPES,
    **speech.RECIPES,
    **time_series.RECIPES,
    **towers.RECIPES,
}

__all__ = ["ModelRecipe", "RECIPES"]
