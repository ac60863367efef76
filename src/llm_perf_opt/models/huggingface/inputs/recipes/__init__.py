"""Models with inputs that no signature gives away: one recipe per model type, grouped by what is fed."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.recipes.multimodal import MULTIMODAL
from llm_perf_opt.models.huggingface.inputs.recipes.pictures import PICTURES, TOWERS
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import SESSIONS, ModelRecipe
from llm_perf_opt.models.huggingface.inputs.recipes.series import DECISIONS, FORECASTERS, SPEECH

RECIPES: Mapping[str, ModelRecipe] = {
    **DECISIONS,
    **PICTURES,
    **MULTIMODAL,
    **SESSIONS,
    **SPEECH,
    **FORECASTERS,
    **TOWERS,
}

__all__ = ["ModelRecipe", "RECIPES"]
