"""Pixels and sound in the layouts that towers read: images, tiles, packed patches, frames; waveforms, mel features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.models.huggingface.inputs.plan import (
    Filled,
    Leaf,
    Noise,
    Subject,
    integers,
    nested_configs,
    number,
    ones,
    side_lengths,
)

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


PIXELS = ("pixel_values", "pixel_values_images", "image_pixel_values", "pixel_values_videos", "image_patches")
SIZE_FIELDS = ("image_size", "img_size", "input_size", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerImage:
    """The image a tower was made for."""

    channels: int
    height: int
    width: int
    patch: int

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.patch

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return self.width // self.patch


def picture(subject: Subject) -> TowerImage:
    """Size, channels and patch from the vision configuration, with the sizes of the request where it is silent."""
    config = subject.vision()
    sides = subject.sizes.image or _image_size(config) or _image_size(subject.config)
    height, width = sides or (subject.sizes.image_side,) * 2
    return TowerImage(
        channels=number(config, "num_channels", "in_channels", "in_chans", "num_input_channels") or 3,
        height=height,
        width=width,
        patch=patch_side(config),
    )


def image_advice(subject: Subject) -> str:
    """What to do about an image that the model does not run with, and the size that it was made for, if known."""
    sides = _image_size(subject.vision()) or _image_size(subject.config)
    named = "" if sides is None else f"; its configuration names {sides[1]}x{sides[0]}"
    return f"leave the image out, or give a size that the model's processor would make{named}"


def asked_sides(subject: Subject, height: int, width: int) -> tuple[int, int]:
    """Height and width that were asked for, or those that the model is usually given."""
    return subject.sizes.image or (height, width)


def _image_size(config: Any) -> tuple[int, int] | None:
    for nested in nested_configs(config):
        for name in SIZE_FIELDS:
            if (sides := side_lengths(getattr(nested, name, None))) is not None:
                return sides
    return None


def patch_side(config: Any) -> int:
    """The side of a square patch; 16 where the tower has none."""
    for nested in nested_configs(config):
        for name in ("patch_size", "patch_sizes", "spatial_patch_size"):
            value = getattr(nested, name, None)
            if isinstance(value, list | tuple) and value and isinstance(value[-1], int):
                return value[-1]
            if isinstance(value, int) and value > 0:
                return value
    return 16


def image_candidates(subject: Subject) -> Iterator[dict[str, Leaf]]:
    """Layouts to try, the one the signature points to first."""
    if subject.takes("image_grid_thw") or subject.takes("grid_thw"):
        yield packed_patches(subject)
        yield square_patches(subject)
    name = next((n for n in PIXELS if n in subject.accepts), None)
    if name is None:
        return
    if subject.takes("image_sizes"):
        yield tiles_with_sizes(subject, name)
    if subject.takes("spatial_shapes"):
        yield padded_patches(subject)
    if subject.takes("image_position_ids"):
        yield positioned_patches(subject, "image_position_ids")
    if subject.takes("pixel_position_ids"):
        yield positioned_patches(subject, "pixel_position_ids")
    if name == "pixel_values_videos" or number(subject.vision(), "num_frames", "tubelet_size"):
        yield frames(subject, name)
    yield plain_image(subject, name)
    yield tiled_image(subject, name)
    yield frames(subject, name)


def plain_image(subject: Subject, name: str = "pixel_values") -> dict[str, Leaf]:
    """Batch, channels, height, width."""
    view = picture(subject)
    return {name: Noise((subject.sizes.batch, view.channels, view.height, view.width))}


def tiled_image(subject: Subject, name: str = "pixel_values") -> dict[str, Leaf]:
    """One image per row, in a dimension of its own."""
    view = picture(subject)
    return {name: Noise((subject.sizes.batch, 1, view.channels, view.height, view.width))}


def frames(subject: Subject, name: str = "pixel_values") -> dict[str, Leaf]:
    """Batch, frames, channels, height, width."""
    view = picture(subject)
    count = number(subject.vision(), "num_frames", "frames_per_clip") or subject.sizes.frames
    return {name: Noise((subject.sizes.batch, count, view.channels, view.height, view.width))}


def tiles_with_sizes(subject: Subject, name: str) -> dict[str, Leaf]:
    """An image as large as one tile: the tile and the whole, in one dimension, with the original size next to them."""
    view = picture(subject)
    batch = subject.sizes.batch
    tiles = 2 if hasattr(subject.config, "image_grid_pinpoints") else 1
    shape = (batch, tiles, view.channels, view.height, view.width)
    return {
        name: Noise(shape if tiles > 1 else (batch, *shape[2:])),
        "image_sizes": integers([[view.height, view.width]] * batch),
    }


def packed_patches(subject: Subject) -> dict[str, Leaf]:
    """All patches of all images in one row, and the grid (time, height, width) each image had."""
    view, (rows, columns) = picture(subject), merged_grid(subject)
    depth = number(subject.vision(), "temporal_patch_size") or 1
    length = view.channels * depth * view.patch**2
    count = subject.sizes.batch * rows * columns
    return {pixels_name(subject): Noise((count, length)), **_grids(subject)}


def square_patches(subject: Subject) -> dict[str, Leaf]:
    """Packed patches that keep their two dimensions."""
    view, (rows, columns) = picture(subject), merged_grid(subject)
    shape = (subject.sizes.batch * rows * columns, view.channels, view.patch, view.patch)
    return {pixels_name(subject): Noise(shape), **_grids(subject)}


def merged_grid(subject: Subject) -> tuple[int, int]:
    """Rows and columns of patches, rounded down to what the tower merges into one feature."""
    view, merge = picture(subject), merge_side(subject)
    return max(view.rows // merge, 1) * merge, max(view.columns // merge, 1) * merge


def merge_side(subject: Subject) -> int:
    """Patches per side that become one feature in towers of packed patches."""
    config = subject.vision()
    return number(config, "spatial_merge_size", "merge_size") or _first_of(config, "merge_kernel_size")


def merge_unit(subject: Subject) -> int:
    """Pixels per side of what cannot be cut: a patch, or those that become one feature."""
    pool = number(subject.config, "pooling_kernel_size") or 1
    return patch_side(subject.vision()) * max(merge_side(subject), pool)


def _first_of(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value[0] if isinstance(value, list | tuple) and value and isinstance(value[0], int) else 2


def _grids(subject: Subject) -> dict[str, Leaf]:
    name = "grid_thw" if subject.takes("grid_thw") else "image_grid_thw"
    return {name: integers([[1, *merged_grid(subject)]] * subject.sizes.batch)}


def pixels_name(subject: Subject) -> str:
    """What the model calls its pixels."""
    return next((n for n in (*PIXELS, "hidden_states") if n in subject.accepts), "pixel_values")


def padded_patches(subject: Subject) -> dict[str, Leaf]:
    """Patches of each image in its own row, with a mask and the grid (height, width)."""
    view, batch = picture(subject), subject.sizes.batch
    count = None if subject.sizes.image else number(subject.vision(), "num_patches", "max_num_patches")
    rows, columns = (max(int(count**0.5), 1),) * 2 if count else (view.rows, view.columns)
    plan: dict[str, Leaf] = {
        "pixel_values": Noise((batch, rows * columns, view.channels * view.patch**2)),
        "spatial_shapes": integers([[rows, columns]] * batch),
    }
    if subject.takes("pixel_attention_mask"):
        plan["pixel_attention_mask"] = ones(batch, rows * columns)
    return plan


def positioned_patches(subject: Subject, positions: str) -> dict[str, Leaf]:
    """Patches of each image in its own row, each with its (column, row)."""
    view = picture(subject)
    pool = number(subject.config, "pooling_kernel_size") or 1
    rows, columns = max(view.rows // pool, 1) * pool, max(view.columns // pool, 1) * pool
    batch = subject.sizes.batch
    places = [[column, row] for row in range(rows) for column in range(columns)]
    return {
        "pixel_values": Noise((batch, rows * columns, view.channels * view.patch**2)),
        positions: integers([places] * batch),
    }
