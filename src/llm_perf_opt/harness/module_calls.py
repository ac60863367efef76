"""Seeing every module call, including `child.forward(...)` called directly, which hooks never see.

`forward` is wrapped per instance, in the instance's own dictionary, and taken off again on every way out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from llm_perf_opt.harness.twins import tensors_in

Before = Callable[[str, torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[str, Any], None]
Enter = Callable[[str, Sequence[torch.Tensor]], None]
Leave = Callable[[Sequence[torch.Tensor]], None]


class StopSite:
    """The innermost module that the last error passed through on its way out."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._path = ""

    def passes(self, error: BaseException, path: str) -> None:
        """The error leaves the forward of this module; the first module that says so is the innermost."""
        if error is not self._error:
            self._error, self._path = error, path

    def of(self, error: BaseException) -> str:
        """Where the error came from; the root when it never was in a module below it."""
        return self._path if error is self._error else ""


@contextmanager
def watch_modules(
    root: torch.nn.Module, enter: Enter, leave: Leave, paths: Container[str] | None = None
) -> Iterator[StopSite]:
    """Report every forward below `root` by the tensors it takes and returns, none of them where it raises.

    With `paths` the forwards of these modules alone.
    """

    def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        enter(path, tensors_in((args, kwargs)))

    def after(path: str, output: Any) -> None:
        leave((output,) if isinstance(output, torch.Tensor) else tensors_in(output))

    with watch_forwards(root, before, after, paths) as stop:
        yield stop


@contextmanager
def watch_forwards(
    root: torch.nn.Module, before: Before, after: After, paths: Container[str] | None = None
) -> Iterator[StopSite]:
    """Report every forward below `root` with its arguments; a module that is shared is reported under its first path.

    A call that raises is left with the output None, so calls pair up also where the model catches the error itself.
    """
    stop = StopSite()
    wrapped: list[tuple[torch.nn.Module, Any]] = []
    try:
        for path, module in root.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # compiled: its forward is no Python function and calls no children
            if paths is not None and path not in paths:
                continue
            wrapped.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = _watched(module, path, before, after, stop)
        yield stop
    finally:
        for module, own_forward in wrapped:
            if own_forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own_forward


def _watched(module: torch.nn.Module, path: str, before: Before, after: After, stop: StopSite) -> Callable[..., Any]:
    forward = module.forward

    @functools.wraps(forward)  # libraries read the signature of `model.forward` to pick arguments
    def watched(*args: Any, **kwargs: Any) -> Any:
        before(path, module, args, kwargs)
        try:
            output = forward(*args, **kwargs)
        except BaseException as error:
            stop.passes(error, path)
            after(path, None)
            raise
        after(path, output)
        return output

    return watched
