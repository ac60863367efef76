"""Small modules on which one tool or another gives a wrong figure, each with the right one worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.costs.sources.one_module import OneModule

BATCH, HEADS, TOKENS, HEAD_DIM = 2, 4, 16, 8
LONG = 256  # tokens: enough that their matmuls are more than one matmul of the inputs could be
SCORES_AND_SUM = 2 * (2 * BATCH * HEADS * TOKENS * TOKENS * HEAD_DIM)  # two matmuls, two FLOPs per multiply-add
EXPERTS, ROWS, IN, OUT = 8, 24, 16, 32
GRID, WINDOW, WIDTH = 10, 7, 8
PADDED = 14  # the next multiple of the window


class FusedAttention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.causal)


class GroupedExperts(nn.Module):
    """All experts in one kernel: rows sorted by expert, one matrix each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, IN, OUT, dtype=torch.bfloat16))

    def forward(self, rows: Tensor) -> Tensor:
        ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32) * (ROWS // EXPERTS)
        return torch._grouped_mm(rows, self.weight, offs=ends)


class BatchedExperts(nn.Module):
    """The matrix of each row's expert is gathered, so the matmul is one batch of small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, IN, OUT))

    def forward(self, rows: Tensor) -> Tensor:
        expert_of = torch.arange(ROWS) % EXPERTS
        return torch.bmm(rows[:, None], self.weight[expert_of])[:, 0]


class Einsum(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", query, key)


class WindowedAttention(nn.Module):
    """A grid that no window divides is padded first; the padding is multiplied like anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, grid: Tensor) -> Tensor:
        grid = F.pad(grid, (0, 0, 0, PADDED - GRID, 0, PADDED - GRID))
        windows = grid.view(1, PADDED // WINDOW, WINDOW, PADDED // WINDOW, WINDOW, WIDTH).transpose(2, 3)
        query, key, value = self.qkv(windows.reshape(-1, 1, WINDOW * WINDOW, WIDTH)).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value)


class SharedModule(nn.Module):
    """One layer under two names, called under both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IN, IN, bias=False)
        self.second = self.first

    def forward(self, rows: Tensor) -> Tensor:
        return self.second(self.first(rows))


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(OUT, IN)
        self.head = nn.Linear(IN, OUT, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(IN, OUT)

    def forward(self, *, rows: Tensor, scale: float) -> Tensor:
        return self.project(rows) * scale


class MostlyUnusedExperts(nn.Module):
    """Two of eight experts get all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(IN, OUT, bias=False) for _ in range(EXPERTS))

    def forward(self, rows: Tensor) -> Tensor:
        halves = rows.chunk(2)
        return torch.cat([self.experts[index](half) for index, half in zip((2, 5), halves, strict=True)])


@torch.library.custom_op("llm_perf_opt_traps::mix", mutates_args=())
def mix(rows: Tensor, weight: Tensor) -> Tensor:
    """A matmul that no counter can recognise by name."""
    return rows @ weight


@mix.register_fake
def _(rows: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


class CustomOp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(IN, OUT))

    def forward(self, rows: Tensor) -> Tensor:
        return mix(rows, self.weight)


@torch.library.custom_op("llm_perf_opt_traps::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention under a name that no counter knows, as the kernels of other vendors have."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1) @ value


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


class CustomAttention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A module, its inputs, and the FLOPs that it takes."""

    adapter: OneModule
    flops: int


def _attention_inputs() -> tuple[Tensor, ...]:
    return tuple(torch.zeros(BATCH, HEADS, TOKENS, HEAD_DIM) for _ in range(3))


def _rows() -> tuple[Tensor, ...]:
    return (torch.zeros(ROWS, IN),)


def _trap(build: Callable[[], nn.Module], args: Callable[[], tuple[Tensor, ...]], flops: int) -> Trap:
    return Trap(adapter=OneModule(build, args), flops=flops)


_PER_WINDOW = WINDOW * WINDOW
_WINDOWS = (PADDED // WINDOW) ** 2
TRAPS = {
    "SDPA on CPU": _trap(FusedAttention, _attention_inputs, SCORES_AND_SUM),
    "SDPA with a mask": _trap(
        FusedAttention, lambda: (*_attention_inputs(), torch.zeros(1, 1, TOKENS, TOKENS)), SCORES_AND_SUM
    ),
    "causal SDPA": _trap(lambda: FusedAttention(causal=True), _attention_inputs, SCORES_AND_SUM),
    "grouped_mm": _trap(GroupedExperts, lambda: (torch.zeros(ROWS, IN, dtype=torch.bfloat16),), 2 * ROWS * IN * OUT),
    "batched_mm": _trap(BatchedExperts, _rows, 2 * ROWS * IN * OUT),
    "einsum": _trap(Einsum, lambda: (torch.zeros(3, 5, 67, 71), torch.zeros(3, 5, 73, 71)), 2 * 3 * 5 * 67 * 73 * 71),
    "windows with padding": _trap(
        WindowedAttention,
        lambda: (torch.zeros(1, GRID, GRID, WIDTH),),
        2 * PADDED * PADDED * WIDTH * 3 * WIDTH + _WINDOWS * 2 * (2 * _PER_WINDOW * _PER_WINDOW * WIDTH),
    ),
    "shared module": _trap(SharedModule, _rows, 2 * (2 * ROWS * IN * IN)),
    "tied weights": _trap(TiedHead, lambda: (torch.arange(ROWS) % OUT,), 2 * ROWS * IN * OUT),
    "keywords only": Trap(
        adapter=OneModule(KeywordsOnly, kwargs=lambda: {"rows": torch.zeros(ROWS, IN), "scale": 0.5}),
        flops=2 * ROWS * IN * OUT,
    ),
    "unused experts": _trap(MostlyUnusedExperts, _rows, 2 * ROWS * IN * OUT),
    "conv with groups": _trap(
        lambda: nn.Conv2d(16, 32, kernel_size=3, padding=1, groups=8),
        lambda: (torch.zeros(1, 16, 10, 10),),
        2 * 32 * (16 // 8) * 3 * 3 * 10 * 10,
    ),
    "embedding": _trap(lambda: nn.Embedding(OUT, IN), lambda: (torch.arange(ROWS) % OUT,), 0),
}
CUSTOM_OP = _trap(CustomOp, _rows, 2 * ROWS * IN * OUT)
CUSTOM_ATTENTION = _trap(
    CustomAttention,
    lambda: tuple(torch.zeros(1, 2, LONG, HEAD_DIM) for _ in range(3)),
    2 * (2 * 2 * LONG * LONG * HEAD_DIM),
)
