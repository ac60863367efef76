"""The structure of a composite model: its stages, and the parts to export, one of each kind of repeated block.

A composite configuration holds one nested configuration per tower, and each tower is a module that carries it. So the
towers are found by their configurations, not by a list of module names. Connectors have no configuration of
their own; they are recognised by name, at most two levels down and outside every tower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from llm_perf_opt.core.target import ExpectedCalls, Json, Part, Stage, stated

_TEXT = re.compile(r"text|language|llm|decoder|thinker|generator|talker")
_KINDS = (("vision", re.compile(r"vision|image|visual|vit|video")), ("audio", re.compile(r"audio|speech|sound")))
_CONNECTOR = re.compile(
    r"projector|projection|connector|merger|aligner|adapter|resampler|perceiver|qformer|embed_(vision|audio)"
)


def guess_stages(model: Any) -> tuple[Stage, ...]:
    """One stage per tower other than the language model, then `projector`; empty for a model of one piece."""
    towers = dict(_towers(model))
    if not towers:
        return ()
    paths_of: dict[str, list[str]] = {}
    for path, kind in towers.items():
        paths_of.setdefault(kind, []).append(path)
    connectors = [path for path in _connectors(model) if not any(_is_inside(path, tower) for tower in towers)]
    if connectors:
        paths_of["projector"] = connectors
    return tuple(Stage(name=name, paths=tuple(paths)) for name, paths in paths_of.items())


def _towers(model: Any) -> Iterator[tuple[str, str]]:
    """(path, kind) of the outermost modules that carry a nested configuration other than the language model's."""
    nested = {name: value for name, value in vars(model.config).items() if hasattr(value, "to_dict")}
    towers: list[str] = []
    for path, module in model.named_modules():
        name = _name_of(getattr(module, "config", None), nested)
        if path and name and not _TEXT.search(name) and not any(_is_inside(path, other) for other in towers):
            towers.append(path)
            yield path, _kind(name)


def _name_of(config: Any, nested: Mapping[str, Any]) -> str | None:
    """The field that holds `config`; some versions give a tower a copy, which its class tells if no other has it."""
    by_identity = [name for name, value in nested.items() if value is config]
    by_class = [name for name, value in nested.items() if type(value) is type(config)]
    if by_identity:
        return by_identity[0]
    return by_class[0] if len(by_class) == 1 else None


def _kind(config_name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(config_name)), config_name.removesuffix("_config"))


def _connectors(model: Any) -> Iterator[str]:
    for path, _ in model.named_modules():
        if path.count(".") <= 1 and _CONNECTOR.search(path.rpartition(".")[2]):
            yield path


def _is_inside(path: str, tower: str) -> bool:
    return path == tower or path.startswith(tower + ".")


def guess_parts(model: torch.nn.Module) -> tuple[Part, ...]:
    """The first of each kind of block in a list of blocks, outermost lists only, then the whole model.

    Two blocks are of one kind if their class and the shapes of their weights are the same.
    """
    blocks = tuple(Part(name=path, path=path, title=type(block).__name__) for path, block in _first_blocks(model))
    full_model = Part(
        name="full-model", path="", title=type(model).__name__, instead=tuple(part.name for part in blocks)
    )
    return (*blocks, full_model)


def _first_blocks(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    lists: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or any(path.startswith(f"{outer}.") for outer in lists):
            continue
        lists.append(path)
        for name, block in module.named_children():
            kind = (type(block), *(tuple(parameter.shape) for parameter in block.parameters()))
            if kind not in seen:
                seen.add(kind)
                yield f"{path}.{name}", block


# How often the blocks of a folder's towers must run, from the depths in its configuration and the inputs.
#
# A tower has a rule if the configuration gives its depth and just one list of blocks in it is as long. All images of a
# batch go through the vision tower together, in the prefill alone; the language model runs once in the prefill and once
# per step. Towers of sound, and models with an encoder of text, have no rule.

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
    lists = [
        path for path in _lists_of(model, depth) if not any(f"{path}.".startswith(f"{tower}.") for tower in towers)
    ]
    if len(lists) == 1:
        yield ExpectedCalls(
            what="layers",
            formula=f"{depth} layers x {forwards:,} {unit}",
            calls=depth * forwards,
            paths=f"{lists[0]}.*",
        )


def _vision_lists(model: Any, stages: tuple[Stage, ...]) -> Mapping[str, int]:
    """Path of the list of blocks of every vision tower that has a rule -> its depth."""
    depth_of_list: dict[str, int] = {}
    for tower in (path for stage in stages if stage.name == VISION for path in stage.paths):
        module = model.get_submodule(tower)
        depths = (getattr(getattr(module, "config", None), name, None) for name in _DEPTHS)
        depth = next((value for value in depths if isinstance(value, int)), None)
        lists = [] if depth is None else list(_lists_of(module, depth))
        if depth is not None and len(lists) == 1:
            depth_of_list[f"{tower}.{lists[0]}"] = depth
    return depth_of_list


def _lists_of(module: torch.nn.Module, length: int) -> Iterator[str]:
    """Lists of this many modules, those inside another list apart."""
    outer: list[str] = []
    for path, inner in module.named_modules():
        if isinstance(inner, torch.nn.ModuleList) and not any(
            path.startswith(f"{outer_path}.") for outer_path in outer
        ):
            outer.append(path)
            if len(inner) == length:
                yield path
