"""The fixture that guards every test notices what it is there to notice."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import _attributes, _changed, _state


def test_a_replaced_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _attributes()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(torch.Tensor, "device", property(lambda tensor: "nowhere"))  # inherited: a new name in the class
        after = _attributes()
    assert _changed(before, after) == {"torch.cuda.synchronize", "torch.Tensor.device"}
    assert _changed(before, _attributes()) == set()


def test_an_active_mode_and_a_global_hook_are_seen() -> None:
    before = _state()
    with TorchDispatchMode():
        assert _state() != before
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    assert _state() != before
    hook.remove()
    assert _state() == before


def test_a_changed_default_is_seen() -> None:
    before = _state()
    torch.set_default_dtype(torch.float64)
    try:
        assert _state() != before
    finally:
        torch.set_default_dtype(torch.float32)
