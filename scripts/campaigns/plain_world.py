"""What a run must leave as it found it: torch, the process, and the caller's module."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributions
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from llm_perf_opt.core import interrupts, run_lock, thread_patches
from llm_perf_opt.core.callgraph import CallGraph, to_json_dict
from llm_perf_opt.harness import quiet
from llm_perf_opt.weightless.ghost import ENGINES
from llm_perf_opt.weightless.storage import Storage

OWNERS = (
    "torch", "torch.cuda", "torch.nn.functional", "torch.nn.init", "torch.nn.modules.module", "torch.backends.mha",
    "torch._library.simple_registry", "torch.Tensor", "torch.autocast", "torch.distributions.Distribution",
    "torch.nn.Module",
)  # fmt: skip
# Changed for good by libraries when they are first used.
BY_OTHERS = {"torch.manual_seed", "torch.Tensor.__slotnames__", "torch.nn.Module.smart_apply"}
_OPEN_FILES = Path("/proc/self/fd")
_CLASSES = ("torch.Tensor", "torch.autocast", "torch.distributions.Distribution", "torch.nn.Module")


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the caller's module that a run could change."""

    attributes: dict[str, object]
    state: dict[str, object]


def look(*, random_state: bool = True) -> World:
    """The world as it is now. `random_state=False` for models that draw numbers themselves."""
    state = {**_torch_state(), **_process_state(), **_own_state()}
    if random_state:
        state |= _random_state()
    return World(_attributes(), state)


def changes(before: World, after: World) -> Iterator[str]:
    """One line for each thing that is not as it was."""
    for name, value in before.attributes.items():
        if name not in BY_OTHERS and after.attributes.get(name) is not value:
            yield f"{name} is another object"
    for name in after.attributes.keys() - before.attributes.keys() - BY_OTHERS:
        if name.rpartition(".")[0] in _CLASSES:
            yield f"{name} was added"
    for name, value in before.state.items():
        if after.state.get(name) != value:
            yield f"{name}: {str(value)[:80]} became {str(after.state.get(name))[:80]}"


def put_right(before: World) -> None:
    """After a finding: undo what can be undone, so that the next fault starts clean."""
    for name, value in before.attributes.items():
        place, _, attribute = name.rpartition(".")
        owner = _owner(place)
        if name not in BY_OTHERS and vars(owner).get(attribute) is not value:
            with contextlib.suppress(AttributeError, TypeError):
                setattr(owner, attribute, value)
    thread_patches._PATCHED.clear()
    ENGINES.open.clear()
    Storage.on_free = None
    is_on, dtype = before.state["autocast"]  # type: ignore[misc]
    torch.set_autocast_enabled("cpu", is_on)
    torch.set_autocast_dtype("cpu", dtype)
    sys.stdout = before.state["stdout"]  # type: ignore[assignment]


def describe(module: nn.Module) -> dict[str, object]:
    """What of the caller's module may not change: attributes, hooks, weights, their values, and modes."""
    parts: dict[str, object] = {}
    for path, part in module.named_modules():
        hooks = {name: list(vars(part)[name]) for name in vars(part) if name.endswith("_hooks")}
        parts[path] = (sorted(vars(part)), vars(part).get("forward"), hooks, part.training)
        for name, weight in (*part._parameters.items(), *part._buffers.items()):
            if weight is not None:
                values = weight.detach().double().sum().item() if type(weight.data) is torch.Tensor else None
                parts[f"{path}:{name}"] = (id(weight), weight.requires_grad, values)
    return parts


def _owner(place: str) -> Any:
    return reduce(getattr, place.split(".")[1:], torch)


def _attributes() -> dict[str, object]:
    return {f"{place}.{name}": value for place in OWNERS for name, value in vars(_owner(place)).items()}


def _torch_state() -> dict[str, object]:
    keys = torch._C._TorchDispatchModeKey
    hooks = [name for name in vars(module_hooks) if name.startswith("_global_") and name.endswith("_hooks")]
    return {
        "plain tensor": (type(torch.zeros(1)), torch.zeros(1).device, torch.zeros(1).is_cuda),
        "CUDA": torch.cuda.is_available(),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "function modes": len(_get_current_function_mode_stack()),
        "infra modes": [torch._C._get_dispatch_mode(key) is None for key in (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)],
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads of torch": torch.get_num_threads(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "TorchScript tracing": torch._C._get_tracing_state(),
        "lifting": torch._C._only_lift_cpu_tensors(),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        **{name: len(vars(module_hooks)[name]) for name in hooks},
    }


def _process_state() -> dict[str, object]:
    return {
        "stdout": sys.stdout,
        "stderr": sys.stderr,
        "collector": (gc.isenabled(), gc.get_threshold()),
        "environment": dict(os.environ),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] == 0,
        "warning filters": list(warnings.filters),
        "show warning": warnings.showwarning,
        "log levels": (logging.root.level, logging.root.disabled, logging.root.manager.disable),
        "hooks of Python": (sys.excepthook, threading.excepthook, sys.getprofile(), sys.getrecursionlimit()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "open files": len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.is_dir() else None,
        "folder": Path.cwd(),
    }


def _own_state() -> dict[str, object]:
    return {
        "patched attributes": len(thread_patches._PATCHED),
        "open engines": len(ENGINES.open),
        "listener of freed storages": Storage.on_free,
        "silenced threads": (len(quiet._STDOUT.routed), len(quiet._STDERR.routed)),
        "users of the collector's setting": len(quiet._COLLECTOR.users),
        "users of the profiler's setting": len(quiet._PROFILER.users),
        "blocks that hold interrupts": (interrupts._STATE.depth, interrupts._STATE.is_open, interrupts._STATE.raised),
        "locks": [_is_free(lock) for lock in (run_lock._LOCK, thread_patches._LOCK, quiet._LOCK)],
    }


def _is_free(lock: Any) -> bool:
    """Whether another thread could take it."""
    was_free: list[bool] = []

    def take() -> None:
        taken = lock.acquire(blocking=False)
        was_free.append(taken)
        if taken:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return was_free[0]


def _random_state() -> dict[str, object]:
    numpy_state = np.random.get_state(legacy=False)
    return {
        "random numbers of torch": hash(torch.get_rng_state().numpy().tobytes()),
        "random numbers of Python": hash(random.getstate()),
        "random numbers of numpy": str(numpy_state),
    }


_OF_TIME = frozenset({"started_ns", "ended_ns", "duration_ns", "device_ns"})


def fingerprint(graph: CallGraph) -> str:
    """Everything that the file of the graph would hold, but for times."""
    text = json.dumps(_timeless(to_json_dict(graph)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in _OF_TIME}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value
