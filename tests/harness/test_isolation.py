"""Modules are taken out of a run with the arguments they get there; calls that do the same are one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.target import Stage, Target
from llm_perf_opt.harness.isolation import IsolatedCall, cut_apart, isolate, stage_roots
from llm_perf_opt.harness.twins import meta_twin, real_twin
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import Engine, Ghost
from tests.costs.sources.one_module import OneModule

WIDTH, ROWS = 8, 3


class Cache:
    """Grows by one entry per layer, so no two layers see it in the same state."""

    def __init__(self) -> None:
        self.held: list[Tensor] = []


class Layer(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)

    def forward(self, rows: Tensor, cache: Cache) -> Tensor:
        cache.held.append(rows)
        return self.down(self.up(rows))


class Stack(nn.Module):
    """Three layers of one size and one of another, a tower before them, and a matmul of its own after them."""

    def __init__(self, *, multiplies: bool = False) -> None:
        super().__init__()
        self.tower = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(inner) for inner in (16, 16, 32, 16))
        self.multiplies = multiplies

    def forward(self, rows: Tensor) -> Tensor:
        rows, cache = self.tower(rows), Cache()
        for layer in self.layers:
            rows = layer(rows, cache)
        return rows @ rows.t() if self.multiplies else rows


TOWER = (Stage(name="tower", paths=("tower",)),)
LAYERS = ("layers.0", "layers.1", "layers.2", "layers.3")


def stack(*, multiplies: bool = False, stages: tuple[Stage, ...] = ()) -> Target:
    return OneModule(lambda: Stack(multiplies=multiplies), lambda: (torch.zeros(ROWS, WIDTH),), stages=stages).target()


def test_layers_that_do_the_same_are_one_call_although_their_cache_differs() -> None:
    calls = isolate(stack(), LAYERS, Engine())
    assert [(call.path, call.paths, call.calls) for call in calls] == [
        ("layers.0", ("layers.0", "layers.1", "layers.3"), 3),
        ("layers.2", ("layers.2",), 1),
    ]


def test_arguments_are_as_they_were_before_the_call() -> None:
    first, other = isolate(stack(), LAYERS, Engine())
    assert [len(call.args[1].held) for call in (first, other)] == [0, 2]
    args, _ = first.fresh_arguments()
    args[1].held.append("changed")
    assert first.args[1].held == []


def test_a_call_inside_a_wanted_call_is_part_of_it() -> None:
    calls = isolate(stack(), ("layers.2", "layers.2.up"), Engine())
    assert [call.path for call in calls] == ["layers.2"]


def test_what_ran_in_no_piece_is_kept_with_its_stage() -> None:
    isolation = cut_apart(stack(multiplies=True, stages=TOWER), LAYERS, Engine())
    matmuls = [op for op in isolation.loose if "linear" in str(op.func) or "matmul" in str(op.func)]
    assert [(op.stage, op.calls) for op in matmuls] == [("tower", 1), ("forward", 1)]


def test_isolated_calls_run_by_themselves() -> None:
    engine = Engine()
    (call,) = isolate(stack(), ("layers.2",), engine)
    args, kwargs = call.fresh_arguments()
    with engine:
        output = call.module(*args, **kwargs)
    assert isinstance(output, Ghost)
    assert tuple(output.shape) == (ROWS, WIDTH)


@pytest.mark.parametrize(
    ("target", "roots"),
    [
        (stack(), ("tower", *LAYERS)),
        (stack(stages=TOWER), ("tower", *LAYERS)),
        (stack(multiplies=True), ("",)),  # cutting it into layers would leave its own matmul out
        (stack(multiplies=True, stages=TOWER), ("tower", *LAYERS)),  # but stages must be told apart
    ],
)
def test_a_run_is_cut_by_stage_and_then_into_layers(target: Target, roots: tuple[str, ...]) -> None:
    assert stage_roots(target, Engine()) == roots


def test_deepseek_ocr_is_cut_into_towers_and_layers() -> None:
    config = DeepSeekOcrConfig.tiny()
    prefill, decode = DeepSeekOcrAdapter(config).targets(DeepSeekOcrWorkload(image="1240x1754", crops=(2, 1)))
    layers = [f"model.layers.{index}" for index in range(config.decoder.num_hidden_layers)]
    vision = ["model.sam_model", "model.vision_model", "model.projector"]
    engine = Engine(device="cuda")
    assert list(stage_roots(prefill, engine)) == ["model.embed_tokens", *vision, *layers, "model.norm", "lm_head"]
    assert list(stage_roots(decode, engine)) == ["model.embed_tokens", *layers, "model.norm", "lm_head"]


def test_every_step_of_a_decode_is_its_own_call_since_the_context_grows() -> None:
    adapter = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())
    _, decode = adapter.targets(DeepSeekOcrWorkload(mode="base", decode_steps=3))
    engine = Engine(device="cuda")
    calls = isolate(decode, ["model.layers.0", "model.layers.1"], engine)
    assert {call.calls for call in calls} == {1}
    assert [call.path for call in calls] == ["model.layers.0", "model.layers.1"] * 3


def one_layer() -> IsolatedCall:
    return isolate(stack(), ("layers.2",), Engine())[0]


def test_a_meta_twin_runs_on_shapes_alone() -> None:
    call = one_layer()
    module, (args, kwargs) = meta_twin(call.module), meta_twin((call.args, call.kwargs))
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module(*args, **kwargs).shape == (ROWS, WIDTH)
    assert all(isinstance(parameter.data, Ghost) for parameter in call.module.parameters())


def test_a_real_twin_has_values_and_the_same_ones_each_time() -> None:
    call = one_layer()
    outputs = []
    for _ in range(2):
        module, (args, kwargs) = real_twin(call.module), real_twin((call.args, call.kwargs))
        with torch.no_grad():
            outputs.append(module(*args, **kwargs))
    assert torch.isfinite(outputs[0]).all()
    assert torch.equal(*outputs)


def test_a_twin_keeps_ties() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, WIDTH)
            self.head = nn.Linear(WIDTH, 4, bias=False)
            self.head.weight = self.embed.weight

    for twin in (meta_twin(Tied()), real_twin(Tied())):
        assert twin.head.weight is twin.embed.weight
