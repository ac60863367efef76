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

from llm_perf_opt.core.target import Part, Stage

_TEXT = re.compile(r"text|language|llm|decoder|thinker|generator|talker")
_KINDS = (("vision", re.compile(r"vision|image|visual|vit|video")), ("audio", re.compile(r"audio|speech|sound")))
_CONNECTOR = re.compile(
    r"projector|projection|connector|merger|aligner|adapter|resampler|perceiver|qformer|embed_(vision|audio)"
)


def guess_stages(model: Any) -> tuple[Stage, ...]:
    """One stage per tower beside the language model, then `projector`; empty for a model of one piece."""
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
    found: list[str] = []
    for path, module in model.named_modules():
        name = _name_of(getattr(module, "config", None), nested)
        if path and name and not _TEXT.search(name) and not any(_is_inside(path, other) for other in found):
            found.append(path)
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
    whole = Part(name="full-model", path="", title=type(model).__name__, instead=tuple(part.name for part in blocks))
    return (*blocks, whole)


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
