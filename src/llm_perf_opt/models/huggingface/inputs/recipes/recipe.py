"""What a recipe is, and recipes of models that are driven through an object instead of a plain forward."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from llm_perf_opt.models.huggingface.inputs.media import picture
from llm_perf_opt.models.huggingface.inputs.plan import Built, Filled, Leaf, Noise, Subject
from llm_perf_opt.models.huggingface.inputs.text import prompt_length, token_ids

Recipe = Callable[[Subject, Mapping[str, int]], Mapping[str, Leaf]]


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A recipe, the modalities it feeds (placeholder counts of theirs may be corrected), and the method it is for.

    `chooses`: of its modalities it feeds only the ones that it is given a count of.
    """

    make: Recipe
    modalities: tuple[str, ...] = ()
    entry: str = "forward"
    chooses: bool = False

    def choices(self) -> Iterator[tuple[str, ...]]:
        """The sets of modalities it can feed, all of them first."""
        sizes = range(len(self.modalities), -1, -1) if self.chooses else (len(self.modalities),)
        return (chosen for size in sizes for chosen in combinations(self.modalities, size))


def tracked_video(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """The first frame of a video, with one point on the object to follow."""
    view = picture(subject)
    pixels = Noise((2, view.channels, view.height, view.width))
    point, label = Noise((1, 1, 1, 2)), Filled((1, 1, 1), 1, "int32")
    return {
        "inference_session": Built(_tracking_session, {"video": pixels, "point": point, "label": label}),
        "frame_idx": 0,
    }


def _tracking_session(video: Any, point: Any, label: Any) -> object:
    module = importlib.import_module("transformers.models.sam3_tracker_video.modeling_sam3_tracker_video")
    height, width = video.shape[-2:]
    session = module.Sam3TrackerVideoInferenceSession(
        video=video, video_height=height, video_width=width, inference_device="cpu", dtype=torch.float32
    )
    index = session.obj_id_to_idx(1)
    session.add_point_inputs(index, 0, {"point_coords": point, "point_labels": label})
    session.obj_with_new_inputs = [1]
    return session


def quantised_features(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Features of an image, channels first, to be looked up in the codebook."""
    return {"hidden_states": Noise((subject.sizes.batch, subject.config.latent_channels, 16, 16))}


def prompt_only(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A text prompt for the first of several models that only `generate` chains together."""
    return {"input_ids": token_ids(subject, prompt_length(subject))}


SESSIONS = {
    "bark": ModelRecipe(prompt_only, entry="semantic"),
    "glm_image_vqmodel": ModelRecipe(quantised_features, ("image",), entry="encode"),
    "sam3_tracker_video": ModelRecipe(tracked_video, ("video",)),
}
