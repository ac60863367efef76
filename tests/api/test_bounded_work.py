"""Work without end: refused where the numbers say so, stopped with the place where they do not, and nothing is left."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
from tests.api.tiny_folders import llama_folder

X = torch.zeros(2, 3)


class Endless(nn.Module):
    """Ops without end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        while True:
            x = self.layer(x)


class Spinning(nn.Module):
    """A loop that no op interrupts."""

    def forward(self, x: Tensor) -> Tensor:
        while True:
            pass


class Hoarding(nn.Module):
    """Memory without end, none of it a tensor's."""

    def forward(self, x: Tensor) -> Tensor:
        held = []
        while True:
            held.append(bytearray(1 << 20))


class Growing(nn.Module):
    """Layers without end, while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        while True:
            self.layers.append(nn.Linear(3, 3))


@pytest.fixture(autouse=True)
def plain_afterwards() -> Any:
    yield
    assert torch.zeros(1).device.type == "cpu"
    assert lpo.trace(nn.Linear(3, 3), (X,)).graphs[0].call_counts == {"": 1}
    assert not [thread for thread in threading.enumerate() if thread.name == "llm-perf-opt watch"]


@pytest.mark.parametrize("tracer", ["weightless", "hooks"])
@pytest.mark.parametrize(
    ("model", "limits", "option"),
    [
        (Endless(), {"max_seconds": 0.4}, "--max-seconds"),
        (Spinning(), {"max_seconds": 0.4}, "--max-seconds"),
        (Hoarding(), {"max_memory": 0.05}, "--max-memory"),
    ],
    ids=["ops", "a loop", "memory"],
)
def test_a_forward_without_end_is_stopped(tracer: str, model: nn.Module, limits: dict[str, float], option: str) -> None:
    with pytest.raises(PerfOptError) as stopped, lpo.limits(**limits):
        lpo.trace(model, (X,), tracer=tracer)
    assert option in stopped.value.fix
    assert f"of {type(model).__name__}, forward, after" in stopped.value.why


def test_ops_are_counted_to_the_limit() -> None:
    with pytest.raises(PerfOptError, match="The phase ran 5,000 ops") as stopped, lpo.limits(max_ops=5000):
        lpo.trace(Endless(), (X,))
    assert "stopped in module layer of Endless" in stopped.value.why
    with lpo.limits(max_ops=10):
        lpo.trace(nn.Linear(3, 3), (X,))  # within a limit of ten


def test_a_run_in_another_thread_is_stopped_at_its_next_op() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with lpo.limits(max_seconds=0.4):
                lpo.trace(Endless(), (X,))
        except PerfOptError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "The phase ran for" in str(raised[0])


def test_building_is_bounded_too() -> None:
    from llm_perf_opt.weightless import Engine

    with pytest.raises(PerfOptError, match="The phase ran"), lpo.limits(max_ops=2000), Engine():
        Growing()


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        ({"decode_steps": 10**9}, "1,000,000,000 decode steps would run at least"),
        ({"batch": 10**9}, "A batch of 1,000,000,000"),
        ({"prompt_tokens": 10**12}, "of memory here"),
        ({"crops": (99, 99)}, "A page of 99x99 crops"),
        ({"batch": 10**8}, "A batch of 100,000,000"),
    ],
)
def test_numbers_that_are_too_large_are_refused_before_the_work(workload: dict[str, Any], what: str) -> None:
    with pytest.raises(PerfOptError, match=what):
        lpo.trace("deepseek-ocr", **workload)


def test_a_million_layers_are_refused_before_the_model_is_built(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 10**6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PerfOptError, match="A model of 1,000,000 layers would run at least 10,000,000 ops") as refused:
        lpo.trace(tmp_path)
    assert "--max-ops" in refused.value.fix


def test_the_limits_of_another_thread_are_its_own() -> None:
    from llm_perf_opt.core.work_limits import current_limits

    seen: list[int] = []
    with lpo.limits(max_ops=7):
        thread = threading.Thread(target=lambda: seen.append(current_limits().max_ops))
        thread.start()
        thread.join()
        assert current_limits().max_ops == 7
    assert seen == [current_limits().max_ops]


def test_what_this_process_may_have_is_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="Windows has none")
    from llm_perf_opt.core.work_limits import WorkLimits, machine_memory_bytes

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, resource.RLIM_INFINITY))
    assert machine_memory_bytes() == 1 << 30
    assert WorkLimits().max_memory_bytes == round(0.9 * (1 << 30))
    with pytest.raises(PerfOptError, match=r"prompts would need at least 2\.24 GiB"):
        lpo.trace("deepseek-ocr-tiny", prompt_tokens=10**8)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_an_allocator_that_gives_up_is_no_fault_of_the_configuration(error: Exception, is_memory: bool) -> None:
    from llm_perf_opt.core.work_limits import out_of_memory

    found = out_of_memory(error, "the model was being built")
    assert (found is not None) == is_memory
    assert found is None or (found.what, "ulimit -v" in found.fix) == (
        "There is no memory left: the model was being built.",
        True,
    )


def test_a_limit_ends_cost_before_other_sources_run_into_it_too() -> None:
    with pytest.raises(PerfOptError, match="The phase ran 2,000 ops"), lpo.limits(max_ops=2000):
        lpo.cost(Endless(), (X,))


def test_calls_in_another_thread_are_counted_by_the_hooks_tracer() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with lpo.limits(max_ops=500):
                lpo.trace(Endless(), (X,), tracer="hooks")
        except PerfOptError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "The phase ran 500 module calls" in str(raised[0])


@pytest.mark.parametrize(("batch", "context"), [("1..1000000000", "16..64"), ("1..100000", "1..100000")])
def test_a_sweep_whose_far_corner_fits_no_machine_is_refused_first(tmp_path: Path, batch: str, context: str) -> None:
    """Its far corner has 6.4 x 10^10 or 10^10 tokens, each with an id, a mask and a position."""
    with pytest.raises(PerfOptError, match="would need at least") as caught:
        lpo.sweep(llama_folder(tmp_path / "m"), users=batch, input=context)
    assert "--max-memory" in caught.value.fix


def test_more_pages_than_a_table_shows_are_refused_first() -> None:
    with pytest.raises(PerfOptError, match="names 65 pages"):
        lpo.pages("deepseek-ocr", crops=["1x1"] * 65)
