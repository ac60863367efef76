"""Sound as waveforms or as mel features, in the layouts that audio towers read."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.models.huggingface.inputs.leaves import Filled, Leaf, Noise
from llm_perf_opt.models.huggingface.inputs.subject import Subject, number

MEL_FIELDS = (
    "num_mel_bins", "n_mels", "input_feat_per_channel", "feature_size", "num_mels", "n_mel_channels",
    "input_feat_size", "input_size", "input_dim", "num_mel_features", "mel_bins",
)  # fmt: skip
FEATURES = ("input_features", "audio_input_features", "audio_mel")


def audio_candidates(subject: Subject) -> Iterator[dict[str, Leaf]]:
    """Layouts to try: mel features for models that take features, waveforms for those that take values."""
    for name in FEATURES:
        if name in subject.accepts:
            yield from mel_candidates(subject, name)
    if "input_values" in subject.accepts:
        yield from waveform_candidates(subject)


def mel_candidates(subject: Subject, name: str) -> Iterator[dict[str, Leaf]]:
    """Mel bins before or after time; Whisper-like encoders insist on twice their number of positions."""
    config = subject.audio()
    batch = subject.sizes.batch
    known = number(config, *MEL_FIELDS)
    positions = number(config, "max_source_positions", "max_length")
    first = 2 * positions if positions and positions < 10000 else 512
    for bins in (known,) if known else (128, 80):
        for length in dict.fromkeys((first, 3000, 400)):
            for shape in ((batch, bins, length), (batch, length, bins)):
                yield {name: Noise(shape), **masks(subject, batch, length)}
                if masks(subject, batch, length):
                    yield {name: Noise(shape)}


def masks(subject: Subject, batch: int, length: int) -> dict[str, Leaf]:
    """The feature mask, under whichever name the model has for it."""
    known = ("input_features_mask", "feature_attention_mask", "audio_attention_mask", "audio_mel_mask")
    named = next((n for n in known if n in subject.accepts), None)
    return {named: Filled((batch, length), 1, "bool")} if named else {}


def waveform_candidates(subject: Subject) -> Iterator[dict[str, Leaf]]:
    """Samples with and without a channel dimension, then a spectrogram."""
    config = subject.audio()
    batch, samples = subject.sizes.batch, subject.sizes.audio_samples
    channels = number(config, "audio_channels") or 1
    spectrogram = (batch, number(config, "max_length") or 1024, number(config, *MEL_FIELDS) or 128)
    shapes = [(batch, samples), (batch, channels, samples), spectrogram]
    if number(config, "audio_channels"):
        shapes = [shapes[1], shapes[0], shapes[2]]
    for shape in shapes:
        yield {"input_values": Noise(shape)}
