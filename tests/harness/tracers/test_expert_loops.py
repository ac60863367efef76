"""Every tracer's trace gives the grouped picture the same `for` and `parfor`, also where it does not follow ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.target import Target
from llm_perf_opt.graphs.view import group
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

SIZE = 8
REAL = ("hooks", "profiler", "torchlens")

pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(tracer: str, target: Target) -> CallGraph:
    if tracer == "torchlens":
        pytest.importorskip("torchlens", reason="an optional extra")
    return TRACERS.get(tracer)().trace(target)


def loops(graph: CallGraph) -> dict[str, str]:
    """Label -> loops of every box that has one. Parts by cost are a finer level, which needs the costs."""
    view = group(graph)
    boxes = [box for root in view.roots for box in root.walk()]
    parts = {part.id for box in boxes if box.is_split for part in box.children}
    return {box.label: " ".join(loop.text for loop in box.loops) for box in boxes if box.loops and box.id not in parts}


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


class Gathered(nn.Module):
    """As Mixtral was written: each expert gathers its rows by index and adds its weighted result into them."""

    def __init__(self, experts: int, top: int) -> None:
        super().__init__()
        self.gate = nn.Linear(SIZE, experts, bias=False)
        self.experts = nn.ModuleList([Expert() for _ in range(experts)])
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), self.top, dim=-1)
        mask = nn.functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            place, rows = torch.where(mask[number])
            if len(rows):
                total.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return x + total


class WithShared(Gathered):
    """As Qwen2-MoE: a shared expert of the same class, with a gate of its own, beside the routed ones."""

    def __init__(self, experts: int, top: int) -> None:
        super().__init__(experts, top)
        self.shared_expert, self.shared_expert_gate = Expert(), nn.Linear(SIZE, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shared: Tensor = self.shared_expert(x) * torch.sigmoid(self.shared_expert_gate(x))
        return super().forward(x) + shared


class Sliced(nn.Module):
    """As DeepSeek-V2 infers: tokens sorted by expert, each expert reads a slice of one tensor."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x) // len(self.experts)
        ordered = x.flip(0)
        return torch.cat([expert(ordered[n * rows : (n + 1) * rows]) for n, expert in enumerate(self.experts)])


class Residual(nn.Module):
    """The caller adds what a block returns to what it took: a chain that only the ops in between show."""

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Expert() for _ in range(3)])
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for block in self.blocks:
            if self.in_place:
                x += block(x)
            else:
                x = x + block(x)
        return x


class Heads(nn.Module):
    """Heads that all read the same hidden state, as heads for several tokens ahead do."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        return torch.stack([head(x) for head in self.heads])


def target_of(make: Callable[[], nn.Module], rows: int = 12) -> Target:
    @cache
    def build() -> nn.Module:
        torch.manual_seed(7)
        return make().eval()

    def invoke(model: Any) -> object:
        with torch.no_grad():
            return model(torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(3)))

    return Target(model="m", phase="forward", workload={}, build=build, invoke=invoke)


def stack(make: Callable[[], nn.Module], count: int = 3) -> nn.Module:
    return nn.Sequential(*[make() for _ in range(count)])


def routed(graph: CallGraph) -> str:
    """The one label of the routed experts; how many got tokens is the router's affair."""
    (label,) = [text for name, text in loops(graph).items() if ".experts.[" in name]
    return label


@pytest.mark.parametrize("tracer", REAL)
@pytest.mark.parametrize("kind", [Gathered, WithShared])
def test_experts_are_a_parfor_to_every_tracer(kind: type[Gathered], tracer: str) -> None:
    def make() -> nn.Module:
        return stack(lambda: kind(4, 2))

    expected = loops(graph_of("weightless", target_of(make)))
    assert expected == {f"{kind.__name__} @ [0-2]": "for 3", "Expert @ [0-2].experts.[0-3]": "parfor 4"}
    assert loops(graph_of(tracer, target_of(make))) == expected


@pytest.mark.parametrize("tracer", REAL)
def test_experts_that_got_no_token_are_counted_in_every_tracer(tracer: str) -> None:
    def make() -> nn.Module:
        return stack(lambda: WithShared(16, 2))

    seen = routed(graph_of(tracer, target_of(make, rows=3)))
    assert seen.startswith("parfor ") and seen.endswith(" of 16")
    assert max(int(count) for count in seen.split()[1].split("-")) <= 6  # 3 tokens, 2 experts each
    # What uniform routing reaches: 16 * (1 - (1 - 2 / 16) ** 3) = 5.28.
    assert routed(graph_of("weightless", target_of(make, rows=3))) == "parfor 5 of 16"


@pytest.mark.parametrize("tracer", ["hooks", "profiler"])
def test_equal_slices_of_one_tensor_are_a_parfor(tracer: str) -> None:
    target = target_of(lambda: Sliced(4))
    assert loops(graph_of(tracer, target)) == {"Expert @ experts.[0-3]": "parfor 4"}


@pytest.mark.parametrize("tracer", ["weightless", *REAL])
def test_heads_that_read_one_hidden_state_are_a_parfor(tracer: str) -> None:
    assert loops(graph_of(tracer, target_of(Heads))) == {"Expert @ heads.[0-3]": "parfor 4"}


@pytest.mark.parametrize("tracer", REAL)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_chain_through_a_residual_sum_is_never_taken_for_a_parfor(in_place: bool, tracer: str) -> None:
    def make() -> nn.Module:
        return Residual(in_place=in_place)

    assert loops(graph_of("weightless", target_of(make))) == {"Expert @ blocks.[0-2]": "for 3"}
    assert loops(graph_of(tracer, target_of(make))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_tiny_deepseek_ocr_has_the_same_loops_in_every_tracer(phase: str) -> None:
    def target() -> Target:
        targets = DeepSeekOcrTinyAdapter().targets(DeepSeekOcrWorkload(image="200x300", dtype="float32"))
        return next(target for target in targets if target.phase == phase)

    expected = loops(graph_of("weightless", target()))
    experts = {"prefill": "parfor 8", "decode": "parfor 3 of 8"}[phase]
    assert expected["DeepseekV2MLP @ model.layers.[1-2].mlp.experts.[0-7]"] == experts
    assert {tracer: loops(graph_of(tracer, target())) for tracer in REAL} == dict.fromkeys(REAL, expected)


SAMPLE = (  # experts in a ModuleDict, chains through residual sums, necks and heads with many branches
    "SwitchTransformersForConditionalGeneration",
    "LongcatFlashForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "RTDetrForObjectDetection",
    "DPTForDepthEstimation",
    "YolosForObjectDetection",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_no_loop_is_claimed_that_the_ops_contradict(name: str) -> None:
    pytest.importorskip(
        "transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5"
    )
    from tests.breadth.tiny_models import TINY_MODELS

    (model,) = [model for model in TINY_MODELS if model.model == name]

    def target() -> Target:
        def invoke(built: Any) -> object:
            with torch.no_grad():
                return built(**model.make_inputs())

        return Target(model=name, phase="forward", workload={}, build=cache(model.build), invoke=invoke)

    known, claimed = loops(graph_of("weightless", target())), loops(graph_of("hooks", target()))
    assert {label: text.split()[0] for label, text in claimed.items()} == {
        label: known.get(label, "").partition(" ")[0] for label in claimed
    }
    assert claimed
