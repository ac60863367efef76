"""The default dtype while a model is built: torch's own where nobody else runs, and of one thread where others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from llm_perf_opt.harness import default_dtype as own
from llm_perf_opt.harness.default_dtype import default_dtype
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.targets import build_blueprint


@contextmanager
def another_thread() -> Iterator[list[torch.dtype]]:
    """Makes tensors meanwhile; their types."""
    found, is_over, has_begun = [], threading.Event(), threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            found.append(torch.zeros(1).dtype)
            has_begun.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    has_begun.wait()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


MADE: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(2),
    "empty without a dtype": lambda: torch.empty(2, dtype=None),
    "float32": lambda: torch.empty(2, dtype=torch.float32),
    "zeros": lambda: torch.zeros(2, 3),
    "randn": lambda: torch.randn(2),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "whole numbers": lambda: torch.arange(4),
    "floats": lambda: torch.arange(0.0, 2.0, 0.5),
    "full of floats": lambda: torch.full((2,), 0.5),
    "full of whole numbers": lambda: torch.full((2,), 1),
    "tensor of floats": lambda: torch.tensor([[1.0, 2.0]]),
    "tensor of whole numbers": lambda: torch.tensor([1, 2]),
    "tensor of an array": lambda: torch.tensor(np.ones(2, dtype=np.float32)),
    "tensor of a numpy number": lambda: torch.tensor(np.float64(1.5)),
    "linear layer": lambda: nn.Linear(2, 3).weight,
    "embedding": lambda: nn.Embedding(2, 3).weight,
    "norm": lambda: nn.LayerNorm(4).bias,
    "buffer": lambda: nn.BatchNorm2d(3).running_var,  # type: ignore[dict-item,return-value]
    "a quotient": lambda: torch.arange(4) / 3,
    "a logarithm": lambda: torch.log(torch.arange(1, 4)),
    "a matmul": lambda: torch.arange(4) * 0.5,
    "a power": lambda: 10000.0 ** (torch.arange(4) / 4),
    "converted": lambda: torch.arange(4).float() / 3,
    "converted by name": lambda: torch.arange(4).to(torch.float32),
    "converted like another": lambda: torch.arange(4).to(torch.empty(1, dtype=torch.float16)),
    "like another": lambda: torch.zeros_like(torch.ones(2)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MADE)
def test_a_thread_gets_what_torch_would_give(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "is_alone", lambda: True)
    with default_dtype(dtype):
        expected = MADE[name]().dtype
    monkeypatch.setattr(own, "is_alone", lambda: False)
    with default_dtype(dtype):
        assert MADE[name]().dtype is expected
    assert torch.get_default_dtype() is torch.float32


def test_setting_it_within_stays_within() -> None:
    with another_thread() as found:
        with default_dtype():
            torch.set_default_dtype(torch.float16)
            assert torch.get_default_dtype() is torch.float16
            assert torch.ones(1).dtype is torch.float16
            with pytest.raises(TypeError, match="floating-point"):
                torch.set_default_dtype(torch.int64)
        assert torch.ones(1).dtype is torch.float32
    assert set(found) == {torch.float32}


def test_alone_it_is_put_back_whatever_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "is_alone", lambda: True)
    with pytest.raises(KeyboardInterrupt), default_dtype(torch.bfloat16):
        torch.set_default_dtype(torch.float16)
        raise KeyboardInterrupt
    assert torch.get_default_dtype() is torch.float32


def test_the_blueprint_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(is_alone: bool) -> dict[str, tuple[torch.dtype, torch.Size]]:
        monkeypatch.setattr(own, "is_alone", lambda: is_alone)
        model = build_blueprint(DeepSeekOcrConfig.tiny(), "eager", torch.bfloat16)
        return {name: (one.dtype, one.shape) for name, one in (*model.named_parameters(), *model.named_buffers())}

    assert built(is_alone=False) == built(is_alone=True)


def test_other_threads_keep_their_type_while_a_named_model_is_traced() -> None:
    with another_thread() as found, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: lpo.trace("deepseek-ocr-tiny", crops=(1, 2), decode_steps=0), range(4)))
    assert set(found) == {torch.float32}
