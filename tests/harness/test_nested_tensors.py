"""Tensors are found as deep as libraries put them: the cache of an encoder-decoder holds two caches of layers."""

from __future__ import annotations

import torch

from llm_perf_opt.harness.twins import tensors_in


class LayerCache:
    def __init__(self) -> None:
        self.keys, self.values = torch.ones(1), torch.ones(2)


class Cache:
    def __init__(self) -> None:
        self.layers = [LayerCache(), LayerCache()]


class CacheOfTwo(Cache):
    def __init__(self) -> None:
        self.own, self.crossed = Cache(), Cache()


def test_a_cache_of_caches_among_the_keywords_of_a_call() -> None:
    found = tensors_in(((torch.ones(3),), {"past_key_values": CacheOfTwo()}))
    assert [tensor.numel() for tensor in found] == [3, *[1, 2] * 4]
