"""A small model that does what is known to trip tracers, with points at which a fault can be raised.

Its classes carry the names that the runtime patches of DeepSeek-OCR look for, its activation is scripted, one child is
called by its `forward`, and it prints. Every run passes the same points in the same order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from llm_perf_opt.core.target import Part, Stage, Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.patches import patched
from llm_perf_opt.weightless import Ghost

WIDTH, TOKENS = 16, 5


class UnprintableError(Exception):
    """Raises again where somebody asks what it says."""

    def __str__(self) -> str:
        raise ValueError("no text")


class ForeignInterrupt(BaseException):
    """Neither an error nor Ctrl-C, such as a time limit of the caller's."""


ERRORS: tuple[type[BaseException], ...] = (
    RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError, NotImplementedError, MemoryError,
    OSError, RecursionError, torch.OutOfMemoryError, UnprintableError, KeyboardInterrupt, SystemExit,
    ForeignInterrupt,
)  # fmt: skip


class FaultPlan:
    """Counts the points that a run passes, and raises at one of them."""

    def __init__(self) -> None:
        self.passed = 0
        self.raised: list[BaseException] = []  # one for each try
        self.set(0, RuntimeError)

    def set(self, at: int, error: type[BaseException], *, each_try: bool = True) -> None:
        """Raise `error` at the n-th point of what runs next; at 0 nowhere.

        `each_try`: points are counted anew whenever a phase is prepared again, so that a second try fails alike.
        """
        self._at, self._error, self._each_try = at, error, each_try
        self._prepared_at: int | None = None
        self.passed, self.raised = 0, []

    def point(self) -> None:
        """Here a fault may be raised."""
        self.passed += 1
        if self.passed == self._at:
            error = self._error("planned fault")
            self.raised.append(error)
            raise error

    def prepare(self) -> None:
        """A phase is prepared, perhaps for another try."""
        if self._prepared_at is None:
            self._prepared_at = self.passed
        elif self._each_try:
            self.passed = self._prepared_at
        self.point()


PLAN = FaultPlan()


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class NoTPFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        PLAN.point()
        x = quick_gelu(self.up(x))
        PLAN.point()
        return self.down(x)


class ImageEncoderViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=4, stride=4)
        self.mlp = NoTPFeedForward()

    def forward(self, pixels: Tensor) -> Tensor:
        PLAN.point()
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        PLAN.point()
        return patches + self.mlp.forward(patches)  # no hook sees this call


class DeepseekV2DecoderLayer(nn.Module):
    """`refuses_ghosts`: it runs without weights, and cannot be traced by `torch.jit` without them."""

    def __init__(self, refuses_ghosts: bool = False) -> None:
        super().__init__()
        self.refuses_ghosts = refuses_ghosts
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.router = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        PLAN.point()
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        PLAN.point()
        if self.refuses_ghosts and torch.jit.is_tracing() and isinstance(query, Ghost):
            raise RuntimeError("no ghosts in a trace")
        x = x + nn.functional.scaled_dot_product_attention(query, key, value)
        PLAN.point()
        chosen = self.router(x).topk(2, dim=-1).indices
        for expert in chosen.flatten().unique().tolist():
            PLAN.point()
            x = x + self.experts[expert](x)
        return x


class DeepseekOCRModel(nn.Module):
    """Pixels and token ids to scores."""

    def __init__(self, *, refuses_ghosts: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.vision = ImageEncoderViT()
        self.layers = nn.ModuleList(DeepseekV2DecoderLayer(refuses_ghosts) for _ in range(2))
        self.head = nn.Linear(WIDTH, 32, bias=False)
        nn.init.trunc_normal_(self.head.weight)

    def forward(self, input_ids: Tensor, past_key_values: Any = None, images: Any = None) -> Tensor:
        PLAN.point()
        print("from the model")
        x = self.embed(input_ids)
        for crops, view in images or ():
            x = torch.cat([self.vision(crops), self.vision(view), x], dim=1)
        PLAN.point()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            for layer in self.layers:
                x = layer(x)
        PLAN.point()
        if x.float().abs().max() > 1e6:
            x = x / 2
        PLAN.point()
        return self.head(x.float())


def build(*, refuses_ghosts: bool = False) -> nn.Module:
    """The model, with weights of the same seed each time; whoever calls keeps the global random numbers."""
    PLAN.point()
    model = DeepseekOCRModel(refuses_ghosts=refuses_ghosts).eval()
    PLAN.point()
    return model


def inputs() -> dict[str, Any]:
    """What one forward is called with."""
    crops, view = torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8)
    return {"input_ids": torch.arange(TOKENS)[None], "images": [(crops, view)]}


def _prepare(model: nn.Module) -> dict[str, Any]:
    PLAN.prepare()
    return inputs()


def _invoke(model: nn.Module, given: dict[str, Any]) -> object:
    return model(**given)


def make_target(model: nn.Module | None = None, *, refuses_ghosts: bool = False) -> Target:
    """A phase of the stand-in: on `model`, which runs with its own weights, or on one that is built anew."""
    made = functools.cache(functools.partial(build, refuses_ghosts=refuses_ghosts))
    return Target(
        model="stand-in",
        phase="prefill",
        workload={"context_tokens": TOKENS + 8},
        build=made if model is None else lambda: model,
        prepare=_prepare,
        invoke=_invoke,
        stages=(Stage(name="vision", paths=("vision",)),),
        observe=patched,
        has_weights=model is not None,
    )


class StandInAdapter:
    """The stand-in as a source sees it."""

    title = "stand-in"

    def __init__(self, *, refuses_ghosts: bool = False) -> None:
        self._refuses_ghosts = refuses_ghosts

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """One phase, built anew each time."""
        return (make_target(refuses_ghosts=self._refuses_ghosts),)


PART = Part(name="vision", path="vision", title="vision encoder", axes=("batch", "", "", ""))


def plain_model() -> nn.Module:
    """A model of the caller's, outside of any run."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return build()
