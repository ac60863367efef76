"""Replacing an attribute of a class or module for one thread: every other thread goes on with the plain one.

Several may wrap one attribute, nested or in several threads, and leave in any order: whoever leaves takes its own layer
out, and the last one puts the attribute back as it was.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from llm_perf_opt.core.interrupts import InterruptsWait, puts_back

Wrap = Callable[[Any], Any]  # what is there now -> what shall be there instead
Owner = type | ModuleType

_INHERITED = object()  # the owner has no such attribute of its own, only one that it inherits
_LOCK = threading.RLock()
_get_ident = threading.get_ident
_OWN_THREADS = "llm-perf-opt"  # how the names of threads begin that this package starts; they only wait and look


@dataclass(slots=True, eq=False)
class _Layer:
    thread: int
    wrap: Wrap


@dataclass(slots=True, eq=False)
class _Patched:
    own: Any  # the owner's own attribute as it was, or _INHERITED
    plain: Callable[..., Any]  # what a thread without layers calls
    is_property: bool
    layers: list[_Layer] = field(default_factory=list)  # innermost first
    of_thread: dict[int, Callable[..., Any]] = field(default_factory=dict)


_PATCHED: dict[tuple[Owner, str], _Patched] = {}  # whatever is replaced right now, and nothing else


def _after_fork() -> None:
    """A forked child has only the thread that forked: what other threads had replaced is put back there."""
    _LOCK._at_fork_reinit()  # type: ignore[attr-defined]
    me = _get_ident()
    for (owner, name), patched in list(_PATCHED.items()):
        for layer in [layer for layer in patched.layers if layer.thread != me]:
            _take_out(owner, name, layer)


if os.name == "posix":
    os.register_at_fork(after_in_child=_after_fork)


def is_alone() -> bool:
    """Whether no other thread runs Python code. Then none begins meanwhile either: only a thread starts another."""
    own = {thread.ident for thread in threading.enumerate() if thread.name.startswith(_OWN_THREADS)}
    return not sys._current_frames().keys() - own - {_get_ident()}


class ThreadPatches:
    """Attributes replaced in the thread that replaces them, until `close` or the end of a `with` block."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def __enter__(self) -> ThreadPatches:
        return self

    @puts_back
    def __exit__(self, *error: object) -> None:
        self.close()

    @puts_back
    def close(self) -> None:
        """Put everything back, last in first out, whichever step raises."""
        self._undo.close()

    def wrap(self, owner: Owner, name: str, wrap: Wrap) -> None:
        """`owner.name`, which can be called, is `wrap` of what it was."""
        self._add(owner, name, wrap, is_property=False)

    def replace(self, owner: Owner, name: str, function: Callable[..., Any]) -> None:
        """`owner.name`, which can be called, is `function`."""
        self.wrap(owner, name, lambda plain: function)

    def wrap_property(self, owner: type, name: str, wrap: Wrap) -> None:
        """Reading `name` of an instance gives `wrap` of the plain getter, called with the instance."""
        self._add(owner, name, wrap, is_property=True)

    def finally_(self, undo: Callable[[], object]) -> None:
        """Run `undo` when the patches are taken back."""
        self._undo.callback(undo)

    def _add(self, owner: Owner, name: str, wrap: Wrap, *, is_property: bool) -> None:
        layer = _Layer(_get_ident(), wrap)
        with InterruptsWait(), _LOCK:
            self._undo.callback(_take_out, owner, name, layer)
            patched = _PATCHED.get((owner, name))
            if patched is None:
                patched = _PATCHED[owner, name] = _found(owner, name, is_property=is_property)
            patched.layers.append(layer)
            _compose(patched, layer.thread)
            if len(patched.layers) == 1:
                setattr(owner, name, _routed(patched))


def _found(owner: Owner, name: str, *, is_property: bool) -> _Patched:
    current = getattr(owner, name)
    return _Patched(vars(owner).get(name, _INHERITED), current.__get__ if is_property else current, is_property)


def _compose(patched: _Patched, thread: int) -> None:
    """What this thread calls: its layers around the plain one."""
    layers = [layer for layer in patched.layers if layer.thread == thread]
    if layers:
        patched.of_thread[thread] = functools.reduce(lambda inner, layer: layer.wrap(inner), layers, patched.plain)
    else:
        patched.of_thread.pop(thread, None)


def _routed(patched: _Patched) -> Any:
    of_thread, plain = patched.of_thread, patched.plain
    if patched.is_property:
        return property(lambda instance: of_thread.get(_get_ident(), plain)(instance))

    def routed(*args: Any, **kwargs: Any) -> Any:
        return of_thread.get(_get_ident(), plain)(*args, **kwargs)

    return functools.update_wrapper(routed, plain)  # libraries read the signature of `model.forward`


@puts_back
def _take_out(owner: Owner, name: str, layer: _Layer) -> None:
    with _LOCK:
        patched = _PATCHED.get((owner, name))
        if patched is None or layer not in patched.layers:
            return  # putting it there had failed
        patched.layers.remove(layer)
        if patched.layers:
            _compose(patched, layer.thread)
            return
        del _PATCHED[owner, name]
        if patched.own is not _INHERITED:
            setattr(owner, name, patched.own)
        elif name in vars(owner):
            delattr(owner, name)
