"""Series instead of text: speech, forecasters, policies and world models."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.media import picture
from llm_perf_opt.models.huggingface.inputs.plan import Filled, Leaf, Noise, Subject, integers, number, ones
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.text import decoder_inputs, prompt_length, runs_for, text_inputs


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
        "timesteps": integers([list(range(EPISODE))] * batch),
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


FRAMES = 64


def clap(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Ten seconds of mel features in four crops, with the flag that says the clip was longer, and a caption."""
    batch, audio = subject.sizes.batch, subject.config.audio_config
    return {
        **text_inputs(subject),
        "input_features": Noise((batch, 4 if audio.enable_fusion else 1, 1001, audio.num_mel_bins)),
        "is_longer": Filled((batch, 1), 1, "bool"),
    }


def spoken_codes(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A text prompt and decoder codes with one row per codebook."""
    books = subject.config.decoder.num_codebooks
    batch = subject.sizes.batch
    return {**text_inputs(subject), "decoder_input_ids": Filled((batch * books, FRAMES), 1)}


def spoken_channels(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A text prompt and decoder codes with the channels last."""
    shape = (subject.sizes.batch, FRAMES, subject.config.decoder_config.num_channels)
    return {**text_inputs(subject), "decoder_input_ids": Filled(shape, 1)}


def latent_frames(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Continuous latents, channels first: what a codec's encoder hands to its decoder."""
    return {"latents": Noise((subject.sizes.batch, subject.config.hidden_size, FRAMES))}


def encoder_frames(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Frames of an encoder, features last."""
    return {"inputs_embeds": Noise((subject.sizes.batch, FRAMES, subject.config.hidden_size))}


def wave_and_features(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One sound twice: as samples for the acoustic encoder and as mel features for the semantic one."""
    batch, samples = subject.sizes.batch, subject.sizes.audio_samples
    bins = number(subject.config, "feature_projection_input_dim", "num_mel_bins") or 160
    return {"input_values": Noise((batch, 1, samples)), "input_features": Noise((batch, samples // 320, bins))}


def codec_wave(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Samples under the name `hidden_states`."""
    return {"hidden_states": Noise((subject.sizes.batch, 1, 24000))}


def codec_states(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Latents under the name `hidden_states`, features last."""
    width = number(subject.config, "hidden_size", "vae_dim") or 64
    return {"hidden_states": Noise((subject.sizes.batch, FRAMES, width))}


def text_to_mels(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A text, the mel frames spoken so far, and the voice."""
    config, batch = subject.config, subject.sizes.batch
    return {
        **text_inputs(subject),
        "decoder_input_values": Noise((batch, FRAMES, config.num_mel_bins)),
        "speaker_embeddings": Noise((batch, config.speaker_embedding_dim)),
    }


def beats(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Frames of a song between two beats, as wide as the model, and the notes so far."""
    shape = (subject.sizes.batch, FRAMES, subject.config.d_model)
    return {"input_features": Noise(shape), **decoder_inputs(subject, with_prompt=True)}


def streamed_speech(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Text and sound in step: this many mel frames for every token."""
    bins = number(subject.audio(), "num_mel_bins") or 128
    frames = subject.config.audio_length_per_tok * prompt_length(subject)
    return {**text_inputs(subject), "input_features": Noise((subject.sizes.batch, bins, frames))}


_LATENTS = ModelRecipe(latent_frames, ("audio",))
_CODES = ModelRecipe(spoken_codes)
_TWO_VIEWS = ModelRecipe(wave_and_features, ("audio",))
SPEECH = {
    "clap": ModelRecipe(clap, ("audio",)),
    "dia": ModelRecipe(spoken_channels),
    "mimi_decoder": _LATENTS,
    "musicgen": _CODES,
    "musicgen_melody": _CODES,
    "nemotron3_5_transcribe_word_timestamp": ModelRecipe(encoder_frames, ("audio",)),
    "neucodec": _TWO_VIEWS,
    "pocket_tts_audio_tokenizer_decoder": _LATENTS,
    "pop2piano": ModelRecipe(beats, ("audio",)),
    "speecht5": ModelRecipe(text_to_mels),
    "vibevoice_acoustic_tokenizer_decoder": ModelRecipe(codec_states, ("audio",)),
    "vibevoice_acoustic_tokenizer_encoder": ModelRecipe(codec_wave, ("audio",)),
    "voxtral_realtime": ModelRecipe(streamed_speech, ("audio",)),
    "xcodec2": _TWO_VIEWS,
}
