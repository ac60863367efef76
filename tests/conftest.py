"""Shared by every test: none may leave a hook, a mode or a patch behind in torch, or the log switched off."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

os.environ["LLM_PERF_OPT_CACHE"] = "off"  # a test that is about the store names a folder of its own

# Where something that watches torch could leave a patch behind.
MODULES = ("torch", "torch.cuda", "torch.nn.functional", "torch.nn.init", "torch.nn.modules.module")
CLASSES = ("torch.Tensor", "torch.autocast", "torch.distributions.Distribution", "torch.nn.Module")

BY_OTHERS = {
    "torch.manual_seed",  # torch._dynamo wraps it when it is first imported
    "torch.Tensor.__slotnames__",  # copyreg keeps it there from the first time that a tensor is pickled
    "torch.distributions.Distribution._validate_args",  # a library that peft imports switches it off for good
    "torch.nn.Module.smart_apply",  # transformers adds it for good when it first initialises a model
}


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end: no later collection of garbage need walk over them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_is_left_on() -> Iterator[None]:
    """A command called in this process that silences every log would change what later tests see."""
    before = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == before


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Iterator[None]:
    """Every attribute that could be patched is the same object afterwards, and no mode or hook is still on."""
    if "torch" not in sys.modules:  # a test that never loads torch cannot leave anything in it
        yield
        return
    attributes, state = _attributes(), _state()
    yield
    assert _changed(attributes, _attributes()) - BY_OTHERS == set()
    assert _state() == state


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests of tiny models: small tensors lose more to a thread pool than they gain."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Attributes = dict[str, dict[str, object]]  # place -> name -> object


def _attributes() -> Attributes:
    import torch.distributions

    return {place: dict(vars(reduce(getattr, place.split(".")[1:], torch))) for place in (*MODULES, *CLASSES)}


def _changed(before: Attributes, after: Attributes) -> set[str]:
    """Dotted names. Modules grow by lazy imports, so only in classes is a new name a patch."""
    found: set[str] = set()
    for place, old in before.items():
        new = after[place]
        found.update(f"{place}.{name}" for name, value in old.items() if new.get(name) is not value)
        if place in CLASSES:
            found.update(f"{place}.{name}" for name in new.keys() - old.keys())
    return found


def _state() -> dict[str, object]:
    import torch
    from torch.nn.modules import module as module_hooks
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    hooks = [name for name in vars(module_hooks) if name.startswith("_global_") and name.endswith("_hooks")]
    return {
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "function modes": len(_get_current_function_mode_stack()),
        "infra modes": [torch._C._get_dispatch_mode(key) is None for key in _mode_keys()],
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "process group": torch.distributed.is_initialized(),
        "excepthook of a rank": sys.excepthook.__name__ == "_distributed_excepthook",
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        **{name: len(vars(module_hooks)[name]) for name in hooks},
    }


def _mode_keys() -> list[Any]:
    from torch._C import _TorchDispatchModeKey as Key

    return [Key.FAKE, Key.PROXY, Key.FUNCTIONAL]
