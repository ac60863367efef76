"""Series instead of text: forecasters, policies and world models."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.leaves import Filled, Leaf, Noise, ones, whole
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.subject import Subject
from llm_perf_opt.models.huggingface.inputs.text import runs_for, text_inputs
from llm_perf_opt.models.huggingface.inputs.vision import picture


def lagged_series(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Past values long enough for the longest lag, and the future values that teacher forcing needs."""
    config, batch = subject.config, subject.sizes.batch
    past = config.context_length + max(config.lags_sequence)
    size = () if config.input_size == 1 else (config.input_size,)
    features = config.num_time_features
    return {
        "past_values": Noise((batch, past, *size)),
        "past_time_features": Noise((batch, past, features)),
        "past_observed_mask": Noise((batch, past, *size)),
        "future_values": Noise((batch, config.prediction_length, *size)),
        "future_time_features": Noise((batch, config.prediction_length, features)),
    }


def channels_of_patches(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One context of every channel."""
    config = subject.config
    return {"past_values": Noise((subject.sizes.batch, config.context_length, config.num_input_channels))}


def one_context(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One context without padding, and the class of its frequency where the model asks for it."""
    batch, length = subject.sizes.batch, min(subject.config.context_length, 2048)
    plan: dict[str, Leaf] = {
        "past_values": Noise((batch, length)),
        "past_values_padding": Filled((batch, length), 0),
        "freq": Filled((batch, 1), 0),
    }
    return {name: leaf for name, leaf in plan.items() if subject.takes(name)}


_LAGGED = ModelRecipe(lagged_series, ("series",))
_PATCHED = ModelRecipe(channels_of_patches, ("series",))
_CONTEXT = ModelRecipe(one_context, ("series",))
FORECASTERS = {
    "autoformer": _LAGGED,
    "informer": _LAGGED,
    "time_series_transformer": _LAGGED,
    "patchtsmixer": _PATCHED,
    "patchtst": _PATCHED,
    "timesfm": _CONTEXT,
    "timesfm2_5": _CONTEXT,
}


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


DECISIONS = {
    "decision_transformer": ModelRecipe(decision_transformer, ("trajectory",)),
    "pi0": ModelRecipe(robot, ("image",)),
}
