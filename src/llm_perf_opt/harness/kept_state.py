"""What a model keeps from one run to the next in attributes of its modules.

Some models write down in one phase what a later phase reads: the offset between positions and tokens that an image
causes, a table of angles for the longest sequence so far. Such a phase says the truth only after the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

_OWN_TABLES = frozenset(("_modules", "_parameters", "_buffers"))  # of torch: their entries count, not the tables

State = Mapping[tuple[str, str], object]  # (path of a module, attribute) -> its value


def state_of(model: torch.nn.Module) -> State:
    """Every attribute and every buffer of all modules."""
    return {(path, name): value for path, module in model.named_modules() for name, value in _attributes(module)}


def is_same_state(one: State, other: State) -> bool:
    """Whether each attribute holds the same object, or an equal number or text."""
    return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    yield from ((name, value) for name, value in vars(module).items() if name not in _OWN_TABLES)
    yield from module.named_buffers(recurse=False)


def _is_same(one: object, other: object) -> bool:
    if one is other:
        return True
    plain = (bool, int, float, str)
    return isinstance(one, plain) and isinstance(other, plain) and one == other
