"""Policies and world models: trajectories instead of text."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.leaves import Filled, Leaf, Noise, ones, whole
from llm_perf_opt.models.huggingface.inputs.placeholders import runs_for
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.subject import Subject
from llm_perf_opt.models.huggingface.inputs.text import text_inputs
from llm_perf_opt.models.huggingface.inputs.vision import picture

EPISODE = 20


def decision_transformer(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """An episode: states, actions, rewards, returns to go, and the time of each step."""
    config, batch = subject.config, subject.sizes.batch
    return {
        "states": Noise((batch, EPISODE, config.state_dim)),
        "actions": Noise((batch, EPISODE, config.act_dim)),
        "rewards": Noise((batch, EPISODE, 1)),
        "returns_to_go": Noise((batch, EPISODE, 1)),
        "timesteps": whole([list(range(EPISODE))] * batch),
        "attention_mask": ones(batch, EPISODE),
    }


def robot(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """What three cameras see, an instruction, and the state of the arm."""
    config, batch = subject.config, subject.sizes.batch
    view = picture(subject)
    pixels = (batch, 3, view.channels, view.height, view.width)
    runs = list(runs_for(subject, counts))
    return {
        **text_inputs(subject, runs),
        "state": Noise((batch, config.max_state_dim)),
        "pixel_values": Noise(pixels),
        "pixel_attention_mask": Filled((batch, 3), 1, "bool"),
    }


RECIPES = {
    "decision_transformer": ModelRecipe(decision_transformer, ("trajectory",)),
    "pi0": ModelRecipe(robot, ("image",)),
}
