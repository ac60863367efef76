"""A model that names a kernel of another package is switched to torch's own attention, and the switch is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from llm_perf_opt.exports.part_under_test import switch_attention


class Model(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=attention)

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


def test_a_kernel_of_another_package_gives_way() -> None:
    model = Model("flash_attention_2")
    assert switch_attention(model) == ("attention flash_attention_2 switched to sdpa",)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_exports_already_stays(attention: str) -> None:
    model = Model(attention)
    assert switch_attention(model) == ()
    assert model.config._attn_implementation == attention


def test_a_module_without_a_configuration_is_left_alone() -> None:
    assert switch_attention(nn.Linear(2, 2)) == ()
