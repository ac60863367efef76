"""Arguments that follow from the main inputs, and what a model's own error message says is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.models.huggingface.inputs.plan import Filled, Leaf, Noise, Plan, Subject, Whole, ones
from llm_perf_opt.models.huggingface.inputs.text import token_ids

Companion = Callable[[Subject, Plan], Leaf | None]


def companions(subject: Subject, plan: Plan) -> dict[str, Leaf]:
    """Leaves for accepted arguments that no modality has filled and that the plan gives a shape to."""
    made = {name: make(subject, plan) for name, make in COMPANIONS.items() if subject.takes(name) and name not in plan}
    return {name: leaf for name, leaf in made.items() if leaf is not None}


def _per_token(subject: Subject, plan: Plan, *shape: int, value: int = 1) -> Leaf | None:
    ids = plan.get("input_ids")
    return Filled((*ids.shape, *shape), value) if isinstance(ids, Whole) else None


def _boxes(subject: Subject, plan: Plan) -> Leaf | None:
    """The same small box for every token; Bros measures boxes in fractions, the others in thousandths."""
    ids = plan.get("input_ids")
    if not isinstance(ids, Whole):
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
    """So many placeholder tokens were given for so many features."""

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
        if (found := pattern.search(message)) is not None:
            return CountLesson(_KIND_OF[found["kind"].lower()], int(found["tokens"]), int(found["features"]))
    return None


def shape_lesson(message: str) -> ShapeLesson | None:
    """What the message says about a size of an input."""
    for pattern in _WIDTHS:
        if (found := pattern.search(message)) is not None:
            return ShapeLesson(int(found["given"]), int(found["wanted"]))
    if (found := _SIDES.search(message)) is not None:
        return ShapeLesson(int(found["given"]), int(found["wanted"]), dims=(-1, -2))
    if (found := _TILES.search(message)) is not None:
        return ShapeLesson(int(found["given"]), sum(map(int, found["wanted"].split(","))), dims=(1,), rank=5)
    if (found := _MULTIPLE.search(message)) is not None:
        given, unit = int(found["given"]), int(found["unit"])
        return ShapeLesson(given, -(-given // unit) * unit)
    return None
