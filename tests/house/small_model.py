"""A model of two matmuls without bias, so that a rule of thumb is exact on it."""

from __future__ import annotations

import functools

import torch

from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload

TOKENS = 7


class SmallAdapter:
    """One phase; every token passes both layers once."""

    title = "two matmuls"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        def build() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False))

        return (
            Target(
                model="small",
                phase="prefill",
                workload={"context_tokens": TOKENS, "dtype": "float32"},
                build=functools.cache(build),
                invoke=lambda model: model(torch.ones(1, TOKENS, 8)),
            ),
        )
