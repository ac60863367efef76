"""Lists, keyword arguments and caches become tensors, and come out again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from llm_perf_opt.exports.part_under_test import TensorsOnly, cached_tensors, input_names, signature_adaptations


class GrowingCache:
    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys


class Layer(nn.Module):
    def forward(self, x: torch.Tensor, pair: Any, flag: bool, *, cache: GrowingCache) -> dict[str, torch.Tensor]:
        cache.keys[0] = torch.cat([cache.keys[0], x])
        return {"sum": x + pair[0] + pair[1] if flag else x}


def call() -> TensorsOnly:
    cache = GrowingCache([torch.zeros(2), torch.full((2,), 9.0)])
    return TensorsOnly(Layer(), (torch.ones(2), [torch.ones(2), torch.ones(2)], True), {"cache": cache})


def test_every_tensor_is_an_input_under_a_name_that_can_be_found_again() -> None:
    assert input_names(call()) == ["x", "pair.0", "pair.1", "cache.0", "cache.1"]
    assert cached_tensors(call()) == [3, 4]


def test_what_a_cache_gained_is_an_output() -> None:
    wrapped = call()
    result, grown = wrapped(*wrapped.given)
    assert result.tolist() == [3.0, 3.0]
    assert grown.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_cache_is_never_written_to_twice() -> None:
    wrapped = call()
    first = wrapped(*wrapped.given)
    second = wrapped(*wrapped.given)
    assert [tensor.shape for tensor in first] == [tensor.shape for tensor in second]


def test_a_tensor_that_appears_twice_is_one_input() -> None:
    shared = torch.ones(2)
    wrapped = TensorsOnly(Layer(), (shared, [shared, shared], True), {"cache": GrowingCache([torch.zeros(2)])})
    assert len(wrapped.given) == 2
    assert wrapped(torch.full((2,), 2.0), torch.zeros(2))[0].tolist() == [6.0, 6.0]


def test_idle_tensors_are_neither_inputs_nor_outputs() -> None:
    wrapped = call()
    wrapped.leave_out({4})
    assert input_names(wrapped) == ["x", "pair.0", "pair.1", "cache.0"]
    assert len(wrapped(*wrapped.given)) == 2


def test_what_was_changed_is_told() -> None:
    assert signature_adaptations(call()) == (
        "GrowingCache as key and value tensors, in and out",
        "lists and tuples as separate tensors",
        "arguments that are no tensors as constants",
    )
    plain = TensorsOnly(nn.Linear(2, 2), (torch.ones(1, 2),), {})
    assert signature_adaptations(plain) == ()
