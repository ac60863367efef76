"""FLOPs of a training step by the conventions in which others print MFU.

Every convention counts a multiply-add as two. N are the parameters that a token meets, W those that multiply it: with
the head, without the look-up of the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.training_run import FULL, TrainingRun

NECESSARY = "6W + causal attention"
SIX_N = "6N"
SIX_N_WHOLE = "6N + whole attention"
SIX_W_WHOLE = "6W + whole attention"
HARDWARE = "hardware, with recomputation"
TWO_THIRDS = "two thirds of 6W + causal attention"
FROZEN = "4W + causal attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A way to count the FLOPs of one token, and what it leaves out or counts twice."""

    name: str
    flops_per_token: float
    meaning: str


def necessary_flops(shape: ModelShape, run: TrainingRun) -> float:
    """FLOPs of one token that no implementation avoids: active weights, causal attention, nothing twice.

    Frozen weights need no gradient: two thirds of their matmuls.
    """
    weights = (6 if run.method.kind == FULL else 4) * shape.matmul_parameters
    return weights + 3 * _attention(shape, run.sequence, is_causal=True)


def hardware_flops(shape: ModelShape, run: TrainingRun) -> float:
    """The same with the forward that recomputation runs again; the head is not run again."""
    again = 0.0
    if run.recompute == "full":
        head = 0 if shape.head is None else shape.head.columns * shape.head.depth
        again = 2 * (shape.matmul_parameters - head) + _attention(shape, run.sequence, is_causal=True)
    return necessary_flops(shape, run) + again


def conventions(shape: ModelShape, run: TrainingRun) -> Mapping[str, Convention]:
    """Every convention for this run, by name."""
    active, weights = shape.active_parameters, shape.matmul_parameters
    whole, causal = (_attention(shape, run.sequence, is_causal=is_causal) for is_causal in (False, True))
    rows = [
        Convention(name=SIX_N, flops_per_token=6.0 * active, meaning="all active parameters, no attention"),
        Convention(
            name=SIX_N_WHOLE, flops_per_token=6 * active + 3 * whole, meaning="every pair of tokens, masked ones too"
        ),
        Convention(name=SIX_W_WHOLE, flops_per_token=6 * weights + 3 * whole, meaning="the same without the embedding"),
        Convention(name=NECESSARY, flops_per_token=6 * weights + 3 * causal, meaning="visible pairs alone; no look-up"),
        Convention(
            name=HARDWARE, flops_per_token=hardware_flops(shape, run), meaning="what the GPU runs: nothing is left out"
        ),
    ]
    if run.method.has_adapters:
        rows += [
            Convention(
                name=FROZEN, flops_per_token=4 * weights + 3 * causal, meaning="frozen weights need no gradient"
            ),
            Convention(
                name=TWO_THIRDS,
                flops_per_token=(6 * weights + 3 * causal) * 2 / 3,
                meaning="as printed for adapters: the attention of the backward is left out too",
            ),
        ]
    return {row.name: row for row in rows}


def necessary_name(run: TrainingRun) -> str:
    """The convention that counts the necessary FLOPs of this run."""
    return FROZEN if run.method.has_adapters else NECESSARY


def _attention(shape: ModelShape, tokens: int, *, is_causal: bool) -> float:
    """Forward FLOPs of scores and values for one token."""
    return 2 * shape.attention_macs(tokens, is_causal=is_causal) / tokens
