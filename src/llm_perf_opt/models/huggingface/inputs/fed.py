"""What a plan feeds, read off its leaves: tokens of each kind, the size of the image, the length of the sound.

Nothing here is taken from the request: a report that says what ran must not repeat what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.models.huggingface.inputs.media import FEATURES, MEL_FIELDS, PIXELS, picture
from llm_perf_opt.models.huggingface.inputs.plan import Built, Filled, Leaf, Noise, Plan, Subject, Whole, number
from llm_perf_opt.models.huggingface.inputs.text import framed_run, prompt_length

GRIDS = ("image_grid_thw", "grid_thw", "image_grid_hw", "spatial_shapes", "target_sizes")
PLACES = ("image_position_ids", "pixel_position_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What one row of the batch holds; None where the plan has nothing of the kind, or does not tell.

    `context_tokens` are the text tokens and those that stand for an image or a sound among them. `image` is (width,
    height) in pixels. A decoder beside an encoder has `decoder_tokens` of its own.
    """

    text_tokens: int | None
    image_tokens: int | None
    audio_tokens: int | None
    context_tokens: int | None
    decoder_tokens: int | None
    image: tuple[int, int] | None
    audio_frames: int | None
    audio_samples: int | None


def fed_by(subject: Subject, plan: Plan, modalities: tuple[str, ...]) -> Fed:
    """Count the tokens of a row and measure what stands beside them."""
    ids, decoder = _shape(plan.get("input_ids")), _shape(plan.get("decoder_input_ids"))
    text = prompt_length(subject) if ids is not None else None
    sound = _audio_tokens(subject, plan) if "audio" in modalities else None
    others = None if ids is None or text is None else ids[1] - text - (sound or 0)
    return Fed(
        text_tokens=text,
        image_tokens=others if "image" in modalities or "video" in modalities else None,
        audio_tokens=sound if ids is not None else None,
        context_tokens=None if ids is None else ids[1],
        decoder_tokens=decoder[1] if decoder is not None and len(decoder) > 1 else None,
        image=_image(subject, plan),
        audio_frames=_audio_frames(subject, plan),
        audio_samples=_last_size(plan.get("input_values")),
    )


def _shape(leaf: Leaf) -> tuple[int, ...] | None:
    return leaf.shape if isinstance(leaf, Noise | Filled | Whole) else None


def _last_size(leaf: Leaf) -> int | None:
    shape = _shape(leaf)
    return None if shape is None else shape[-1]


def _audio_tokens(subject: Subject, plan: Plan) -> int:
    """Placeholders of sound and the tokens that frame them, in one row; 0 where sound enters another way."""
    ids, run = plan.get("input_ids"), framed_run(subject, "audio", 1)
    if run is None or not isinstance(ids, Whole) or len(ids.shape) != 2:
        return 0
    row = ids.values[: ids.shape[1]]
    count = row.count(run.token)
    return count + len(run.before) + len(run.after) if count else 0


def _image(subject: Subject, plan: Plan) -> tuple[int, int] | None:
    """(width, height): of a grid of patches what they cover, else the last two sizes of the pixels."""
    patch = picture(subject).patch
    for name in GRIDS:
        if isinstance(grid := plan.get(name), Whole):
            rows, columns = grid.values[grid.shape[-1] - 2 : grid.shape[-1]]
            return columns * patch, rows * patch
    for name in PLACES:
        if isinstance(places := plan.get(name), Whole):
            return (max(places.values[::2]) + 1) * patch, (max(places.values[1::2]) + 1) * patch
    pixels = next((shape for name in PIXELS if (shape := _shape(plan.get(name))) is not None), None)
    if pixels is None:
        return None
    return (pixels[-1], pixels[-2]) if len(pixels) >= 4 else _of_loose_patches(subject, pixels)


def _of_loose_patches(subject: Subject, pixels: tuple[int, ...]) -> tuple[int, int] | None:
    """Patches without their places tell no size; they confirm the one that was asked for if they are as many."""
    view = picture(subject)
    is_asked = subject.sizes.image is not None and pixels[-1] == view.channels * view.patch**2
    count = pixels[-2] if len(pixels) == 3 else pixels[0] // subject.sizes.batch
    return (
        (view.columns * view.patch, view.rows * view.patch) if is_asked and count == view.rows * view.columns else None
    )


def _audio_frames(subject: Subject, plan: Plan) -> int | None:
    """Steps in time of mel features, which stand before or after the bins."""
    shape = next((shape for name in FEATURES if (shape := _shape(plan.get(name))) is not None), None)
    if shape is None or len(shape) < 3:
        return None
    bins = number(subject.audio(), *MEL_FIELDS)
    return shape[-2] if shape[-1] == bins else shape[-1] if shape[-2] == bins else max(shape[-2:])


def described(leaf: Leaf) -> object:
    """A leaf as a trace keeps it: the shape of a tensor, a plain value as it is, nested ones likewise."""
    match leaf:
        case Noise(shape=shape) | Filled(shape=shape) | Whole(shape=shape):
            return list(shape)
        case Built(arguments=arguments):
            return {name: described(item) for name, item in arguments.items()}
        case dict():
            return {str(name): described(item) for name, item in leaf.items()}
        case list() | tuple():
            return [described(item) for item in leaf]
        case None | bool() | int() | float() | str():
            return leaf
        case _:
            return str(leaf)
