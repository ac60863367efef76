"""Speech models with inputs of their own: codes, latents, two views of one sound."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.leaves import Filled, Leaf, Noise
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.subject import Subject, number
from llm_perf_opt.models.huggingface.inputs.text import decoder_inputs, prompt_length, text_inputs

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
    """Text and sound in step: so many mel frames for every token."""
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
