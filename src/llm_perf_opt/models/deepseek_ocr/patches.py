"""What tracing needs of the released code, done to the live classes and undone again; no file is changed.

The only place that knows the vendor's names. They also fit the blueprint, which has the same classes. A name that is
gone costs one fact, not the trace: a warning says which patch point is missing and what is lost.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from llm_perf_opt.core.target import Emit
from llm_perf_opt.core.thread_patches import ThreadPatches, Wrap
from llm_perf_opt.models.deepseek_ocr.clip import quick_gelu

log = logging.getLogger(__name__)


WHOLE_MODEL = "DeepseekOCRModel"
VISION_ENCODER = "ImageEncoderViT"
DECODER_LAYER = "DeepseekV2DecoderLayer"
VISION_MLP = "NoTPFeedForward"
ACTIVATION = "quick_gelu"
VIEW_FACTS = frozenset({"images", "crops_per_image", "images_spatial_crop"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPoint:
    """A place in the vendor's code, named as a person would look for it, and what is not known without it."""

    name: str
    loss: str


FORWARD_POINT = PatchPoint(
    name=f"{WHOLE_MODEL}.forward(input_ids, past_key_values, images)",
    loss="images, crops per image, decoder depth and decode steps stay the adapter's claim",
)
VISION_POINT = PatchPoint(name=f"{VISION_ENCODER}.forward", loss="images and crops per image stay the adapter's claim")
LAYER_POINT = PatchPoint(name=f"{DECODER_LAYER}.forward", loss="the decoder's depth stays the adapter's claim")
ACTIVATION_POINT = PatchPoint(
    name=f"{ACTIVATION} beside {VISION_MLP}",
    loss="if it is scripted under another name, tracers that cannot look into TorchScript miss its ops",
)


@dataclass(slots=True)
class LoopFacts:
    """What the loops of the model did so far, over all forwards of one block.

    `images` counts pages that the vision encoders saw; `crops_per_image` has one entry for each, 0 without crops, and
    `images_spatial_crop` the columns and rows of its crops as the model was told them.
    """

    emit: Emit
    seen: frozenset[str]  # the facts with patch points in this model
    crops_per_image: list[int] = field(default_factory=list)
    grids: list[list[int]] = field(default_factory=list)  # of the pages in `crops_per_image` that came with one
    decode_steps: int = 0
    decoder_depth: int = 0
    _pages: list[Any] | None = None  # of the forward that is running: pairs of (crops, global view)
    _grids: list[list[int]] = field(default_factory=list)  # of those pages
    _crops: int = 0  # of the page that still waits for its global view
    _layers: set[int] = field(default_factory=set)

    def begin(self, input_ids: Any, past_key_values: Any, images: Any, grids: Any) -> None:
        """A forward of the whole model began; what is not as expected is left for the model to refuse."""
        pages = images if isinstance(images, (list, tuple)) else ()
        self._pages = [page for page in pages if isinstance(page, (list, tuple)) and len(page) == 2]
        self._grids = grids.tolist() if isinstance(grids, torch.Tensor) and grids.ndim == 2 else []
        self._crops, self._layers = 0, set()
        if isinstance(input_ids, torch.Tensor) and input_ids.shape[1] == 1 and past_key_values:
            self.decode_steps += 1

    def encode(self, pixels: Any) -> None:
        """The first vision encoder was given these pixels: the crops of a page, or its global view, which is last."""
        for page, (crops, view) in enumerate(self._pages or ()):
            if pixels is crops:
                self._crops = pixels.shape[0]
            elif pixels is view:
                self.crops_per_image.append(self._crops)
                self.grids += self._grids[page : page + 1]
                self._crops = 0
                return

    def layer(self, module: nn.Module) -> None:
        """A decoder layer ran."""
        self._layers.add(id(module))

    def end(self) -> None:
        """The forward is over, or was given up; tell everything that is known by now."""
        self._pages = None
        self.decoder_depth = max(self.decoder_depth, len(self._layers))
        facts = {
            "images": len(self.crops_per_image),
            "crops_per_image": list(self.crops_per_image),
            "decoder_depth": self.decoder_depth,
            "decode_steps": self.decode_steps,
        }
        if len(self.grids) == len(self.crops_per_image):
            facts["images_spatial_crop"] = list(self.grids)
        for name, fact in facts.items():
            if name in self.seen:
                self.emit(name, fact)


def _ignore(name: str, fact: object) -> None:
    """For those who want the patches and not the facts."""


@contextmanager
def patched(model: nn.Module, emit: Emit = _ignore, *, sees_views: bool = True) -> Iterator[LoopFacts]:
    """The model's classes, ready for tracing; afterwards every attribute is the very object that it was.

    May be nested and left in any order. Only forwards of `model` itself are counted, not another instance's.
    Without `sees_views` images and crops stay the adapter's claim: this rank encodes only some of them.
    """
    classes = {type(module).__name__: type(module) for module in model.modules()}
    missing = list(_missing_points(classes))
    for point in missing:
        log.warning("patch point %s is missing: %s", point.name, point.loss)
    if missing:
        emit("missing_patch_points", {point.name: point.loss for point in missing})
    seen = _seen_facts(missing)
    facts = LoopFacts(emit, seen if sees_views else seen - VIEW_FACTS)
    own = frozenset(map(id, model.modules()))
    with ThreadPatches() as patches:
        if ACTIVATION_POINT not in missing:
            patches.wrap(_home_of(classes[VISION_MLP]), ACTIVATION, _plain)
        for point, class_name, wrap in (
            (FORWARD_POINT, WHOLE_MODEL, _around_model(facts, own)),
            (VISION_POINT, VISION_ENCODER, _before(own, lambda _, pixels: facts.encode(pixels))),
            (LAYER_POINT, DECODER_LAYER, _before(own, lambda layer, _: facts.layer(layer))),
        ):
            if point not in missing:
                patches.wrap(classes[class_name], "forward", wrap)
        yield facts


def _missing_points(classes: dict[str, type]) -> Iterator[PatchPoint]:
    wanted = {"input_ids", "past_key_values", "images"}
    if (
        WHOLE_MODEL not in classes
        or not wanted <= inspect.signature(_forward_of(classes[WHOLE_MODEL])).parameters.keys()
    ):
        yield FORWARD_POINT
    if VISION_ENCODER not in classes:
        yield VISION_POINT
    if DECODER_LAYER not in classes:
        yield LAYER_POINT
    if VISION_MLP not in classes or not hasattr(_home_of(classes[VISION_MLP]), ACTIVATION):
        yield ACTIVATION_POINT


def _seen_facts(missing: list[PatchPoint]) -> frozenset[str]:
    if FORWARD_POINT in missing:
        return frozenset()
    facts = {"decode_steps"}
    if VISION_POINT not in missing:
        facts |= VIEW_FACTS
    if LAYER_POINT not in missing:
        facts |= {"decoder_depth"}
    return frozenset(facts)


def _forward_of(owner: type) -> Callable[..., Any]:
    forward: Callable[..., Any] = owner.forward  # type: ignore[attr-defined]  # every class here is a torch module
    return forward


def _home_of(owner: type) -> Any:
    """The Python module in which the class looks its global names up."""
    return sys.modules.get(owner.__module__)


def _plain(activation: Any) -> Any:
    """A scripted activation becomes the plain function that it was compiled from; a plain one stays."""
    return quick_gelu if isinstance(activation, torch.jit.ScriptFunction) else activation


def _around_model(facts: LoopFacts, own: frozenset[int]) -> Wrap:
    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(forward)

        @functools.wraps(forward)
        def observed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(self) not in own:
                return forward(self, *args, **kwargs)
            given = signature.bind(self, *args, **kwargs).arguments
            facts.begin(*map(given.get, ("input_ids", "past_key_values", "images", "images_spatial_crop")))
            try:
                return forward(self, *args, **kwargs)
            finally:
                facts.end()

        return observed

    return wrap


def _before(own: frozenset[int], tell: Callable[[nn.Module, Any], None]) -> Wrap:
    """Tell who is called with which first argument, then go on as before."""

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def observed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(self) in own:
                tell(self, args[0] if args else next(iter(kwargs.values()), None))
            return forward(self, *args, **kwargs)

        return observed

    return wrap
