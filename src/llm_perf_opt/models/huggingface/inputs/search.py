"""Finding inputs that a model accepts: plausible candidates in order, each corrected by what the model says of it.

Weightless runs cost milliseconds, so asking the model is cheaper, and surer, than knowing every processor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, product

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.models.huggingface.inputs.media import (
    FEATURES,
    MEL_FIELDS,
    PIXELS,
    audio_candidates,
    image_candidates,
    picture,
)
from llm_perf_opt.models.huggingface.inputs.plan import (
    Built,
    Filled,
    Integers,
    Leaf,
    Noise,
    Plan,
    Subject,
    number,
    ones,
)
from llm_perf_opt.models.huggingface.inputs.recipes import RECIPES, ModelRecipe
from llm_perf_opt.models.huggingface.inputs.text import (
    decoder_inputs,
    framed_run,
    prompt_length,
    runs_for,
    text_inputs,
    token_ids,
)

# Model code raises anything when an input has the wrong shape; these are the errors that say "not this input".
REJECTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
FIRST_GUESS = 64
MOST_FEATURES = 1 << 15  # of one sample
MAX_CANDIDATES = 40
MAX_CORRECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Inputs the model ran with, what they cover, and the messages of the candidates it refused.

    `entry` is the method they are for: `forward`, except for models that have none. `plan_of` makes the same inputs
    for the same model with other sizes.
    """

    plan: Plan
    entry: str
    modalities: tuple[str, ...]
    refusals: tuple[str, ...]
    plan_of: Callable[[Subject], Plan]


class NoInputs(PerfOptError):
    """No candidate was accepted; `refusals` holds the model's own words, and `__cause__` the first of them."""

    def __init__(self, subject: Subject, refusals: list[str]) -> None:
        super().__init__(
            f"No plausible inputs found for {subject.class_name} ({len(refusals)} tried).",
            why=refusals[0] if refusals else "its forward takes nothing that can be guessed",
            fix="write a model folder for it, with inputs made as its processor makes them",
        )
        self.refusals = tuple(refusals)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCandidate:
    """Leaves of the modalities other than text, or a recipe of the model's own; `overrides` come last."""

    leaves: Mapping[str, Leaf]
    modalities: tuple[str, ...]
    with_text: bool
    recipe: ModelRecipe | None = None
    overrides: Mapping[str, Leaf] = field(default_factory=dict)

    @property
    def is_fed(self) -> bool:
        """Whether it holds anything that a person could mean: text, another modality, or what a recipe makes."""
        return self.with_text or bool(self.leaves) or self.recipe is not None

    @property
    def entry(self) -> str:
        """The method to call."""
        return "forward" if self.recipe is None else self.recipe.entry


def find_inputs(subject: Subject, run: Callable[[Plan, str], object], wanted: frozenset[str] | None = None) -> Found:
    """The first candidate that `run(plan, entry)` accepts.

    `wanted` are the modalities other than text that must be covered, with as few others as the model allows. Without
    it, the more modalities a candidate covers the earlier it is tried.
    """
    refusals: list[str] = []
    first: BaseException | None = None
    for candidate in islice(candidates(subject, wanted), MAX_CANDIDATES):
        attempt: Attempt | None = Attempt(subject, candidate)
        while attempt is not None:
            try:
                run(attempt.plan, candidate.entry)
            except REJECTIONS as error:
                attempt, refused = attempt.corrected(error_text(error)), error
            else:
                text = ("text",) if "input_ids" in attempt.plan else ()
                return Found(
                    plan=attempt.plan,
                    entry=candidate.entry,
                    modalities=text + candidate.modalities,
                    refusals=tuple(refusals),
                    plan_of=attempt.plan_of,
                )
        first = first or refused
        refusals.append(f"{type(refused).__name__}: {refused}")
    raise NoInputs(subject, refusals) from first


class Attempt:
    """A candidate with the corrections it has had so far."""

    def __init__(self, subject: Subject, candidate: InputCandidate, counts: Mapping[str, int] | None = None) -> None:
        self._subject = subject
        self._candidate = candidate
        self._counts = counts or dict.fromkeys(candidate.modalities, FIRST_GUESS)
        self._lessons: list[ShapeLesson] = []
        self._left = MAX_CORRECTIONS

    @property
    def plan(self) -> dict[str, Leaf]:
        """The keyword arguments to try."""
        return self.plan_of(self._subject)

    def plan_of(self, subject: Subject) -> dict[str, Leaf]:
        """The same for other sizes of the same model, with all that was learnt."""
        plan = compose(subject, self._candidate, self._counts)
        for lesson in self._lessons:
            plan = lesson.applied(plan)
        return plan

    def corrected(self, message: str) -> Attempt | None:
        """The attempt with what the message teaches, or None when it teaches nothing new."""
        self._left -= 1
        before = (self.plan, dict(self._counts))
        if (count := count_lesson(message)) is not None:
            self._counts = {**self._counts, **self._corrected_count(count)}
        elif (shape := shape_lesson(message)) is not None:
            self._lessons.append(shape)
        learnt = (self.plan, dict(self._counts)) != before and min(self._counts.values(), default=0) >= 0
        return self if learnt and self._left > 0 else None

    def _corrected_count(self, lesson: CountLesson) -> dict[str, int]:
        features, batch = lesson.features, self._subject.sizes.batch
        if features > MOST_FEATURES * batch or features == lesson.tokens:
            # Some models name the numbers in the features, not the features: too many, or equal and still refused.
            features //= number(self._subject.text(), "hidden_size") or 1
        # A frame token may equal the placeholder, so the correction is a difference, not the number itself.
        missing = (features - lesson.tokens) // batch
        return {lesson.kind: self._counts[lesson.kind] + missing} if lesson.kind in self._counts else {}


def compose(subject: Subject, candidate: InputCandidate, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """The keyword arguments of one attempt."""
    if candidate.recipe is not None:
        return {**candidate.recipe.make(subject, counts), **_last_logits(subject, candidate), **candidate.overrides}
    plan = dict(candidate.leaves)
    if candidate.with_text:
        plan |= text_inputs(subject, list(runs_for(subject, counts)))
    plan |= decoder_inputs(subject, with_prompt=not candidate.with_text)
    return {**plan, **companions(subject, plan), **_last_logits(subject, candidate), **candidate.overrides}


def _last_logits(subject: Subject, candidate: InputCandidate) -> dict[str, Leaf]:
    """What `generate` adds to the prefill of a model that can leave out the logits of all positions but the last."""
    name = subject.logits_argument if candidate.entry == "forward" else None
    return {} if name is None else {name: 1}


def accepted_modalities(subject: Subject) -> tuple[str, ...]:
    """What the signature has a place for, whether or not inputs for it are found."""
    names = {"text": ("input_ids",), "image": PIXELS, "audio": (*FEATURES, "input_values")}
    return tuple(kind for kind, wanted in names.items() if subject.accepts.intersection(wanted))


def candidates(subject: Subject, wanted: frozenset[str] | None = None) -> Iterator[InputCandidate]:
    """Every combination of modalities the signature allows, each again without a cache.

    Some configurations leave a model unable to make its own cache; a forward without one is the same forward. With
    `wanted` the fewest further modalities come first and what leaves a wanted one out is not tried; a combination
    without a cache comes before one with a modality that was not asked for.
    """
    layouts = list(_layouts(subject))
    if wanted is None:
        yield from layouts
        yield from _without_cache(subject, layouts)
        return
    fitting = [candidate for candidate in layouts if wanted <= set(candidate.modalities)]
    by_extra = sorted(fitting, key=lambda layout: (not layout.is_fed, len(set(layout.modalities) - wanted)))
    for _, alike in groupby(by_extra, key=lambda layout: (layout.is_fed, set(layout.modalities))):
        group = list(alike)
        yield from group
        yield from _without_cache(subject, group)


def _without_cache(subject: Subject, layouts: Sequence[InputCandidate]) -> Iterator[InputCandidate]:
    if subject.takes("use_cache"):
        yield from (replace(candidate, overrides={"use_cache": False}) for candidate in layouts)


def _layouts(subject: Subject) -> Iterator[InputCandidate]:
    """The fullest first."""
    with_text = "input_ids" in subject.accepts
    images = list(image_candidates(subject))
    sounds = list(audio_candidates(subject))
    if (special := RECIPES.get(subject.model_type)) is not None:
        for modalities in special.choices():
            yield InputCandidate(leaves={}, modalities=modalities, with_text=False, recipe=special)
    for image, sound in product(images[:2], sounds[:6]):
        yield InputCandidate(leaves={**image, **sound}, modalities=("image", "audio"), with_text=with_text)
    for image in images:
        yield InputCandidate(leaves=image, modalities=("image",), with_text=with_text)
    for sound in sounds:
        yield InputCandidate(leaves=sound, modalities=("audio",), with_text=with_text)
    if with_text and subject.main_input != "input_ids":
        for sound in sounds:
            yield InputCandidate(leaves=sound, modalities=("audio",), with_text=False)
    yield InputCandidate(leaves={}, modalities=(), with_text=with_text)


Companion = Callable[[Subject, Plan], Leaf | None]


def companions(subject: Subject, plan: Plan) -> dict[str, Leaf]:
    """Leaves for accepted arguments that no modality has filled and that the plan gives a shape to."""
    made = {name: make(subject, plan) for name, make in COMPANIONS.items() if subject.takes(name) and name not in plan}
    return {name: leaf for name, leaf in made.items() if leaf is not None}


def _per_token(subject: Subject, plan: Plan, *shape: int, value: int = 1) -> Leaf | None:
    ids = plan.get("input_ids")
    return Filled((*ids.shape, *shape), value) if isinstance(ids, Integers) else None


def _boxes(subject: Subject, plan: Plan) -> Leaf | None:
    """The same small box for every token; Bros measures boxes in fractions, the others in thousandths."""
    ids = plan.get("input_ids")
    if not isinstance(ids, Integers):
        return None
    if subject.model_type == "bros":
        return Noise((*ids.shape, 8))
    return Filled((*ids.shape, 4), 1)


def _image_mask_per_token(subject: Subject, plan: Plan) -> Leaf | None:
    pixels = plan.get("pixel_values")
    if not isinstance(pixels, Noise) or len(pixels.shape) != 5:
        return None
    return _per_token(subject, plan, pixels.shape[1])


COMPANIONS: Mapping[str, Companion] = {
    "bbox": _boxes,
    "image_attention_mask": _image_mask_per_token,
    "qformer_input_ids": lambda subject, plan: token_ids(subject, 16),
    "qformer_attention_mask": lambda subject, plan: ones(subject.sizes.batch, 16),
}


_KIND_OF = {"image": "image", "video": "video", "audio": "audio", "multimodal": "image", "placeholder": "image"}
_COUNTS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"(?P<kind>image|video|audio|multimodal) features and .*?tokens do not match.*?"
        r"tokens:? *(?P<tokens>\d+)\D+?(?P<features>\d+)",
        r"(?P<kind>placeholder) tokens \((?P<tokens>\d+)\) and features \((?P<features>\d+)\)",
        r"number of (?P<kind>image) tokens is (?P<tokens>\d+) while the number of images? .*? is (?P<features>\d+)",
        r"got (?P<features>\d+) feature vectors for (?P<tokens>\d+) (?P<kind>placeholder) tokens",
        r"(?P<kind>image) placeholder tokens \((?P<tokens>\d+)\) does not match \D*(?P<features>\d+)",
    )
)
# Messages that name the last dimension of an input and the one it must have, from torch's own shape checks.
_WIDTHS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"same reduction dim, but got \[(?:.*, )?(?P<given>\d+)\] X \[(?P<wanted>\d+), ",
        r"shapes cannot be multiplied \(\d+x(?P<given>\d+) and (?P<wanted>\d+)x\d+\)",
        r"normalized_shape=\[(?P<wanted>\d+)\].*got input of size.*?(?P<given>\d+)\]",
        r"dimension of length (?P<wanted>\d+) at -1!.*broadcastable to \[.*?(?P<given>\d+)\]",
    )
)
_SIDES = re.compile(r"Input (?:height|image size) \((?P<given>\d+).*?doesn't match model \((?P<wanted>\d+)", re.DOTALL)
_TILES = re.compile(r"split_sizes to sum exactly to (?P<given>\d+) .*split_sizes=\[(?P<wanted>[\d, ]+)\]", re.DOTALL)
_MULTIPLE = re.compile(r"length (?P<given>\d+) is not a multiple of (?P<unit>\d+)")


@dataclass(frozen=True, slots=True)
class CountLesson:
    """The number of placeholder tokens that were given, and of the features they stand for."""

    kind: str
    tokens: int
    features: int


@dataclass(frozen=True, slots=True)
class ShapeLesson:
    """A size of some input must change, where it stands in all of `dims`, in inputs of `rank` dimensions if given."""

    given: int
    wanted: int
    dims: tuple[int, ...] = (-1,)
    rank: int | None = None

    def applied(self, leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
        """The same leaves, with floats of the given size in the wanted one."""
        return {name: self._resized(leaf) for name, leaf in leaves.items()}

    def _resized(self, leaf: Leaf) -> Leaf:
        if not isinstance(leaf, Noise) or len(leaf.shape) < max(2, self.rank or 0):
            return leaf
        shape = list(leaf.shape)
        if any(shape[dim] != self.given for dim in self.dims):
            return leaf
        for dim in self.dims:
            shape[dim] = self.wanted
        return replace(leaf, shape=tuple(shape))


def count_lesson(message: str) -> CountLesson | None:
    """What the message says about placeholder tokens and features that disagree."""
    for pattern in _COUNTS:
        if (match := pattern.search(message)) is not None:
            return CountLesson(_KIND_OF[match["kind"].lower()], int(match["tokens"]), int(match["features"]))
    return None


def shape_lesson(message: str) -> ShapeLesson | None:
    """What the message says about a size of an input."""
    for pattern in _WIDTHS:
        if (match := pattern.search(message)) is not None:
            return ShapeLesson(int(match["given"]), int(match["wanted"]))
    if (match := _SIDES.search(message)) is not None:
        return ShapeLesson(int(match["given"]), int(match["wanted"]), dims=(-1, -2))
    if (match := _TILES.search(message)) is not None:
        return ShapeLesson(int(match["given"]), sum(map(int, match["wanted"].split(","))), dims=(1,), rank=5)
    if (match := _MULTIPLE.search(message)) is not None:
        given, unit = int(match["given"]), int(match["unit"])
        return ShapeLesson(given, -(-given // unit) * unit)
    return None


# What a plan feeds, read off its leaves: tokens of each kind, the size of the image, the length of the sound.
#
# Nothing here is taken from the request: a report that says what ran must not repeat what was asked for.

GRIDS = ("image_grid_thw", "grid_thw", "image_grid_hw", "spatial_shapes", "target_sizes")
PLACES = ("image_position_ids", "pixel_position_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What one row of the batch holds; None where the plan has nothing of the kind, or does not tell.

    `context_tokens` are the text tokens and those that stand for an image or a sound among them. `image` is (width,
    height) in pixels. A decoder with an encoder has `decoder_tokens` of its own.
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
    """Count the tokens of a row and measure what is next to them."""
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
    return leaf.shape if isinstance(leaf, Noise | Filled | Integers) else None


def _last_size(leaf: Leaf) -> int | None:
    shape = _shape(leaf)
    return None if shape is None else shape[-1]


def _audio_tokens(subject: Subject, plan: Plan) -> int:
    """Placeholders of sound and the tokens that frame them, in one row; 0 where sound enters another way."""
    ids, run = plan.get("input_ids"), framed_run(subject, "audio", 1)
    if run is None or not isinstance(ids, Integers) or len(ids.shape) != 2:
        return 0
    row = ids.values[: ids.shape[1]]
    count = row.count(run.token)
    return count + len(run.before) + len(run.after) if count else 0


def _image(subject: Subject, plan: Plan) -> tuple[int, int] | None:
    """(width, height): of a grid of patches what they cover, else the last two sizes of the pixels."""
    patch = picture(subject).patch
    for name in GRIDS:
        if isinstance(grid := plan.get(name), Integers):
            rows, columns = grid.values[grid.shape[-1] - 2 : grid.shape[-1]]
            return columns * patch, rows * patch
    for name in PLACES:
        if isinstance(places := plan.get(name), Integers):
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
        case Noise(shape=shape) | Filled(shape=shape) | Integers(shape=shape):
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
