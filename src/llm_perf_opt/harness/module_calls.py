"""Seeing every module call, including `child.forward(...)` called directly, which hooks never see.

`forward` is wrapped per instance, in the instance's own dictionary, and taken off again on every way out. FSDP2 works
in hooks around `forward`: the call of a module that it manages is wrapped as a whole, so that gathering the weights is
work of that module and not of its caller.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from llm_perf_opt.core.interrupts import Interruptible, InterruptsWait
from llm_perf_opt.core.run_lock import DOING
from llm_perf_opt.core.work_limits import OPS_BETWEEN_CHECKS, WorkBudget
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.weightless.ghost import ENGINES

Before = Callable[[str, torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[str, Any], None]
Enter = Callable[[str, Sequence[torch.Tensor]], None]
Leave = Callable[[Sequence[torch.Tensor]], None]
Report = Callable[[Callable[..., Any]], Callable[..., Any]]  # of a module: what it runs -> the same, reported

_LEFT = "_llm_perf_opt_left_module"  # an attribute of errors
_CALL = "_compiled_call_impl"  # what `Module.__call__` runs in place of hooks and forward, where it is set


class StopSite:
    """The innermost module that the last error passed through on its way out.

    The error itself carries it. Kept here, an error that the model catches would keep every frame it passed, and the
    tensors in them: recomputation ends each layer that it runs again by an error.
    """

    def passes(self, error: BaseException, path: str) -> None:
        """The error leaves the forward of this module; the first module that says so is the innermost."""
        vars(error).setdefault(_LEFT, path)

    def of(self, error: BaseException) -> str:
        """Where the error came from; the root when it never was in a module below it."""
        return str(vars(error).get(_LEFT, ""))


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
    Calls that another thread makes meanwhile run as ever and are not reported.
    """
    stop, calls = StopSite(), _CountedCalls()
    with InterruptsWait(), ExitStack() as undo:
        for path, module in root.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # compiled: its forward is no Python function and calls no children
            if paths is not None and path not in paths:
                continue
            report = functools.partial(_watched, module, path, before, after, stop, calls)
            undo.callback(unwatch, module, module.__dict__.get("forward"))
            if is_fully_sharded(module):
                undo.callback(unwatch, module, module.__dict__.get(_CALL), _CALL)
                module.__dict__[_CALL], module.__dict__["forward"] = _whole_call(module, report)
            else:
                module.__dict__["forward"] = report(module.forward)
        with Interruptible():
            yield stop


def unwatch(module: torch.nn.Module, own: Any, method: str = "forward") -> None:
    """Give a module back the method that its own dictionary held, or None where it inherited it."""
    if own is None:
        module.__dict__.pop(method, None)
    else:
        module.__dict__[method] = own


class _CountedCalls:
    """Stops a run that calls modules without end. Where no engine counts its ops, calls count in their place."""

    def __init__(self) -> None:
        self._budget = WorkBudget()
        self._count = 0
        self._check_at = min(OPS_BETWEEN_CHECKS, self._budget.max_ops + 1)

    def one_more(self) -> None:
        self._count += 1
        if self._count >= self._check_at:
            reached = self._budget.exceeded(None if ENGINES.open else self._count, "module calls")
            if reached is not None:
                raise reached
            left = self._budget.max_ops - self._count + 1
            self._check_at = self._count + (min(OPS_BETWEEN_CHECKS, left) if left > 0 else OPS_BETWEEN_CHECKS)


def _watched(
    module: torch.nn.Module,
    path: str,
    before: Before,
    after: After,
    stop: StopSite,
    calls: _CountedCalls,
    run: Callable[..., Any],
) -> Callable[..., Any]:
    thread = threading.get_ident()
    counted = calls.one_more

    @functools.wraps(run)  # libraries read the signature of `model.forward` to pick arguments
    def watched(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return run(*args, **kwargs)
        DOING[thread] = path
        counted()
        before(path, module, args, kwargs)
        try:
            output = run(*args, **kwargs)
        except BaseException as error:
            stop.passes(error, path)
            after(path, None)
            raise
        after(path, output)
        return output

    return watched


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 gathers the weights of this module before it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def class_name(module: torch.nn.Module) -> str:
    """The class that the model's code names; FSDP2 puts each module into a class of its own, derived from that one."""
    return (type(module).__bases__[-1] if is_fully_sharded(module) else type(module)).__name__


def _whole_call(module: torch.nn.Module, report: Report) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The call with all its hooks, reported, and the forward: within that call as it is, called directly reported."""
    thread, plain, is_open = threading.get_ident(), module.forward, False
    reported_call, reported_forward = report(module._call_impl), report(plain)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_open
        is_open = threading.get_ident() == thread
        try:
            return reported_call(*args, **kwargs)
        finally:
            is_open = False

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_open
        run, is_open = (plain if is_open else reported_forward), False
        return run(*args, **kwargs)

    return call, forward
