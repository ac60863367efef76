"""Watches module calls by wrapping `forward` per instance, as the facts were recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.models.deepseek_ocr.attention import KvCache


class ForwardWatch:
    """Calls, edges, tensors in and out, and FLOPs with children included, by module path."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.edges: Counter[str] = Counter()
        self.io: defaultdict[str, list[dict[str, list[Any]]]] = defaultdict(list)
        self.flops: Counter[str] = Counter()
        self._stack: list[str] = []
        self._counter = FlopCounterMode(display=False)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[ForwardWatch]:
        with ExitStack() as cleanup:
            cleanup.enter_context(self._counter)
            for path, module in model.named_modules():
                module.forward = self._watched(path, module.forward)
                cleanup.callback(delattr, module, "forward")
            yield self

    def _watched(self, path: str, forward: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls[path] += 1
            if self._stack:
                self.edges[f"{self._stack[-1]}->{path}"] += 1
            inputs = tensors([args, kwargs])
            before = self._counter.get_total_flops()
            self._stack.append(path)
            output = forward(*args, **kwargs)
            self._stack.pop()
            self.flops[path] += self._counter.get_total_flops() - before
            self.io[path].append({"in": inputs, "out": tensors(output)})
            return output

        return watched


def tensors(value: Any) -> list[Any]:
    """`[shape, dtype]` of each tensor in `value`; a cache object is the one word `cache`, as in the facts."""
    if isinstance(value, torch.Tensor):
        return [[list(value.shape), str(value.dtype)]]
    if isinstance(value, KvCache):
        return ["cache"]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for item in value for found in tensors(item)]
    return []
