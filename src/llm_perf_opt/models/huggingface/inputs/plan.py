"""What an input plan is made of, and the model that it is for.

A leaf describes a tensor and becomes one only when the model is about to run: it costs nothing to keep, can be written
to a report, and is a real tensor or a ghost depending on where `make_inputs` is called.
"""

from __future__ import annotations

import inspect
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

VISION_SECTIONS = ("vision_config", "vision_encoder_config", "image_config", "vit_config", "backbone_config")
LOGITS_ARGUMENTS = ("logits_to_keep", "num_logits_to_keep")  # the second until transformers 4.49
AUDIO_SECTIONS = ("audio_config", "audio_encoder_config", "speech_config", "encoder_config", "audio_encoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSizes:
    """How much is fed; `image_side` is for configurations that name no image size.

    A prompt of None is the usual one, or what fits where the model has fewer positions. `decoder_tokens` are for the
    decoder of a model that feeds its prompt to the encoder, or was given no prompt.
    """

    batch: int = 1
    prompt_tokens: int | None = None
    image: tuple[int, int] | None = None  # (height, width) instead of what the configuration names
    image_side: int = 224
    decoder_tokens: int = 16
    frames: int = 8
    audio_samples: int = 16000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model class with its configuration, seen through what its `forward` accepts."""

    model_type: str
    config: Any
    main_input: str
    accepts: frozenset[str]
    required: frozenset[str]
    class_name: str = ""
    generates: bool = False
    sizes: InputSizes = field(default_factory=InputSizes)

    @staticmethod
    def of(model_class: type, config: Any, sizes: InputSizes | None = None) -> Subject:
        """Read the signature of `model_class.forward`."""
        parameters = inspect.signature(model_class.forward).parameters  # type: ignore[attr-defined]
        named = [p for p in parameters.values() if p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL]
        main = getattr(model_class, "main_input_name", "input_ids")
        return Subject(
            model_type=config.model_type,
            config=config,
            main_input=main if isinstance(main, str) else main[0],
            accepts=frozenset(p.name for p in named) - {"self"},
            required=frozenset(p.name for p in named if p.default is p.empty) - {"self"},
            class_name=model_class.__name__,
            generates=_generates(model_class),
            sizes=sizes or InputSizes(),
        )

    def takes(self, *names: str) -> bool:
        """Whether `forward` accepts every one of `names`."""
        return self.accepts.issuperset(names)

    @property
    def logits_argument(self) -> str | None:
        """The argument with which `generate` asks for the logits of the last position only; None where it cannot."""
        return next((name for name in LOGITS_ARGUMENTS if self.generates and name in self.accepts), None)

    def vision(self) -> Any:
        """The configuration of the image tower, or the whole configuration when it is one."""
        return section(self.config, VISION_SECTIONS)

    def audio(self) -> Any:
        """The configuration of the audio tower, or the whole configuration when it is one."""
        return section(self.config, AUDIO_SECTIONS)

    def text(self) -> Any:
        """The configuration of the language model, or the whole configuration when it is one."""
        return section(self.config, ("text_config", "llm_config", "language_config", "thinker_config", "decoder"))


def _generates(model_class: type) -> bool:
    can_generate = getattr(model_class, "can_generate", None)
    return bool(can_generate()) if callable(can_generate) else False


def section(config: Any, names: tuple[str, ...]) -> Any:
    """The first nested configuration among `names`, looked for one level deep; `config` itself when there is none."""
    for name in names:
        nested = getattr(config, name, None)
        if nested is not None and hasattr(nested, "to_dict"):
            return section(nested, names)
    return config


def nested_configs(config: Any) -> Iterator[Any]:
    """`config` and every configuration inside it, outermost first."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from nested_configs(value)


def number(config: Any, *names: str) -> int | None:
    """The first of `names` that the configuration, or one nested in it, holds as a positive integer."""
    for candidate in nested_configs(config):
        for name in names:
            value = getattr(candidate, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def side_lengths(value: object) -> tuple[int, int] | None:
    """Height and width from the ways configurations write them: 224, (224, 224), {"height": ..., "width": ...}."""
    match value:
        case int() if value > 0:
            return value, value
        case [int() as height, int() as width]:
            return height, width
        case [int() as only]:
            return only, only
        case Mapping():
            sides = value.get("height"), value.get("width")
            return side_lengths(list(sides))
        case _:
            return None


Leaf = object  # one of the classes below, a plain Python value, or a list, tuple or dict of leaves
Plan = Mapping[str, Leaf]


@dataclass(frozen=True, slots=True)
class Noise:
    """Floats between 0 and 1, in the dtype of the model: pixels, samples, features, embeddings."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """One value everywhere; `dtype` is torch's name, so a mask is `Filled((1, 8), 1, "int64")`."""

    shape: tuple[int, ...]
    value: float
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Integers:
    """Given integers, flat, and the shape they are laid out in; fewer than that are repeated along the batch.

    An array holds them in 8 bytes each: a tuple would take ten times as much, for every row of the batch.
    """

    values: Sequence[int]
    shape: tuple[int, ...]
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of placeholder tokens that the model replaces by features; `before` and `after` frame it."""

    kind: str  # "image" | "audio" | "video"
    token: int
    count: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def ids(self) -> array[int]:
        """The token ids of the stretch with its frame."""
        return array("q", self.before) + array("q", [self.token]) * self.count + array("q", self.after)


@dataclass(frozen=True, slots=True)
class Built:
    """An object that a model takes instead of tensors: `factory` is called with the arguments made into tensors."""

    factory: Callable[..., object]
    arguments: Mapping[str, Leaf]


def integers(rows: object, dtype: str = "int64") -> Integers:
    """Nested lists of integers as a leaf: `integers([[1, 4, 4]])` has shape (1, 3)."""
    tensor = torch.tensor(rows, dtype=torch.int64)
    return Integers(tuple(tensor.flatten().tolist()), tuple(tensor.shape), dtype)


def ones(*shape: int) -> Filled:
    """A mask that hides nothing."""
    return Filled(shape, 1)


def make_inputs(plan: Plan, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """Keyword arguments for one forward, with floats in `dtype`."""
    return {name: _make(leaf, dtype) for name, leaf in plan.items()}


def _make(leaf: Leaf, dtype: torch.dtype) -> object:
    match leaf:
        case Noise(shape=shape):
            return torch.rand(shape, dtype=dtype)
        case Filled(shape=shape, value=value, dtype=name):
            return torch.full(shape, value, dtype=getattr(torch, name))
        case Integers(values=values, shape=shape, dtype=name):
            row = torch.tensor(np.asarray(values, dtype=np.int64), dtype=getattr(torch, name))
            return row.reshape(shape) if len(values) == math.prod(shape) else row.repeat(shape[0], 1).reshape(shape)
        case Built(factory=factory, arguments=arguments):
            return factory(**make_inputs(arguments, dtype))
        case list() | tuple():
            return type(leaf)(_make(item, dtype) for item in leaf)
        case dict():
            return {key: _make(item, dtype) for key, item in leaf.items()}
        case _:
            return leaf
