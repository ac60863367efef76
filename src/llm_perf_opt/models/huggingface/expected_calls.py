"""How often the blocks of a folder's towers must run, from the depths in its configuration and the inputs.

A tower has a rule if the configuration gives its depth and just one list of blocks in it is as long. All images of a
batch go through the vision tower together, in the prefill alone; the language model runs once in the prefill and once
per step. Towers of sound, and models whose encoder reads text, have no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from llm_perf_opt.core.expected_calls import ExpectedCalls, stated
from llm_perf_opt.core.target import Json, Stage

VISION = "vision"
_DEPTHS = ("num_hidden_layers", "depth")  # in the configuration of a tower


def expected_prefill(model: Any, stages: tuple[Stage, ...], images: int) -> dict[str, Json]:
    """Vision towers where there are images, and one forward of the language model."""
    vision = _vision_lists(model, stages)
    seen = [_vision_calls(path, depth, images) for path, depth in vision.items()] if images else []
    return stated([*seen, *_language_calls(model, stages, forwards=1, unit="forward")])


def expected_decode(model: Any, stages: tuple[Stage, ...], steps: int) -> dict[str, Json]:
    """One forward of the language model per step, and no vision."""
    idle = [
        ExpectedCalls(what="vision blocks", formula="none: the cache holds the images", calls=0, paths=f"{path}.*")
        for path in _vision_lists(model, stages)
    ]
    return stated([*idle, *_language_calls(model, stages, forwards=steps, unit="step" if steps == 1 else "steps")])


def _vision_calls(path: str, depth: int, images: int) -> ExpectedCalls:
    batch = f"1 batch, images: {images:,}"  # no plural: a function of the batch writes other numbers into it
    return ExpectedCalls(what="vision blocks", formula=f"{depth} blocks x {batch}", calls=depth, paths=f"{path}.*")


def _language_calls(model: Any, stages: tuple[Stage, ...], *, forwards: int, unit: str) -> Iterator[ExpectedCalls]:
    config = model.config
    depth = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if getattr(config, "is_encoder_decoder", False) or not isinstance(depth, int):
        return
    towers = [path for stage in stages for path in stage.paths]
    lists = [path for path in _lists_of(model, depth) if not any(f"{path}.".startswith(f"{one}.") for one in towers)]
    if len(lists) == 1:
        yield ExpectedCalls(
            what="layers",
            formula=f"{depth} layers x {forwards:,} {unit}",
            calls=depth * forwards,
            paths=f"{lists[0]}.*",
        )


def _vision_lists(model: Any, stages: tuple[Stage, ...]) -> Mapping[str, int]:
    """Path of the list of blocks of every vision tower that has a rule -> its depth."""
    found: dict[str, int] = {}
    for tower in (path for stage in stages if stage.name == VISION for path in stage.paths):
        module = model.get_submodule(tower)
        depths = (getattr(getattr(module, "config", None), name, None) for name in _DEPTHS)
        depth = next((value for value in depths if isinstance(value, int)), None)
        lists = [] if depth is None else list(_lists_of(module, depth))
        if depth is not None and len(lists) == 1:
            found[f"{tower}.{lists[0]}"] = depth
    return found


def _lists_of(module: torch.nn.Module, length: int) -> Iterator[str]:
    """Lists of so many modules, those inside another list apart."""
    outer: list[str] = []
    for path, inner in module.named_modules():
        if isinstance(inner, torch.nn.ModuleList) and not any(path.startswith(f"{one}.") for one in outer):
            outer.append(path)
            if len(inner) == length:
                yield path
