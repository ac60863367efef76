"""Replacing an attribute of a live class or module for a while.

Several may wrap one attribute, nested or not, and leave in any order: whoever leaves takes its own layer out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

Wrap = Callable[[Any], Any]  # what is there now -> what shall be there instead

_INHERITED = object()  # the owner has no such attribute of its own, only one that it inherits


@dataclass(slots=True, eq=False)
class _Patched:
    own: Any  # the owner's own attribute as it was, or _INHERITED
    found: Any  # what looking it up gave
    layers: list[Wrap] = field(default_factory=list)  # innermost first


_PATCHED: dict[tuple[type | ModuleType, str], _Patched] = {}  # whatever is replaced right now, and nothing else


@contextmanager
def replaced(owner: type | ModuleType, name: str, wrap: Wrap) -> Iterator[None]:
    """`owner.name` is `wrap` of what it was, until the block ends in whatever way."""
    layer: Wrap = lambda inner: wrap(inner)  # noqa: E731  # its own identity, also where `wrap` is used twice
    key = (owner, name)
    if key not in _PATCHED:
        _PATCHED[key] = _Patched(vars(owner).get(name, _INHERITED), getattr(owner, name))
    _PATCHED[key].layers.append(layer)
    _install(*key)
    try:
        yield
    finally:
        _PATCHED[key].layers.remove(layer)
        _install(*key)


def _install(owner: type | ModuleType, name: str) -> None:
    patched = _PATCHED[owner, name]
    if patched.layers:
        current = patched.found
        for layer in patched.layers:
            current = layer(current)
        setattr(owner, name, current)
        return
    del _PATCHED[owner, name]
    if patched.own is _INHERITED:
        delattr(owner, name)
    else:
        setattr(owner, name, patched.own)
