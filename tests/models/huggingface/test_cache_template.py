from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch

from llm_perf_opt.models.huggingface.phases import with_zeros, without_tensors


class Layer:
    def __init__(self, tokens: int) -> None:
        self.keys = torch.ones(1, 2, tokens, 4, dtype=torch.bfloat16)
        self.is_initialized = True


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(3), Layer(5)]
        self.first = self.layers[0]
        self.by_name = OrderedDict(state=torch.ones(2), width=7)


class Pair(NamedTuple):
    keys: torch.Tensor
    count: int


def test_a_cache_comes_back_with_the_same_shapes_and_no_values() -> None:
    rebuilt = with_zeros(without_tensors(Cache()))
    assert [tuple(layer.keys.shape) for layer in rebuilt.layers] == [(1, 2, 3, 4), (1, 2, 5, 4)]
    assert rebuilt.layers[0].keys.dtype == torch.bfloat16
    assert not rebuilt.layers[1].keys.any()
    assert rebuilt.layers[0].is_initialized
    assert rebuilt.first is rebuilt.layers[0]
    assert rebuilt.by_name["width"] == 7


def test_the_template_holds_no_tensor_and_the_original_keeps_its_own() -> None:
    original = Cache()
    template = without_tensors(original)
    assert not isinstance(template.layers[0].keys, torch.Tensor)
    assert bool(original.layers[0].keys.all())


def test_each_use_gets_its_own_tensors() -> None:
    template = without_tensors(((torch.ones(2), torch.ones(2)),))
    first, second = with_zeros(template), with_zeros(template)
    first[0][0].add_(1)
    assert not second[0][0].any()


def test_named_tuples_and_shared_tensors_keep_their_form() -> None:
    shared = torch.ones(3)
    rebuilt = with_zeros(without_tensors([Pair(shared, 2), shared]))
    assert rebuilt[0].count == 2
    assert rebuilt[0].keys is rebuilt[1]
