"""Traced needs beside formulas from the configuration: two sources that have nothing in common but the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bounds.closed_form import ClosedForm, closed_form
from benchmarks.bounds.traced_models import CONFIGS, DEEPSEEK_OCR, traced_needs

DEEPSEEK_OCR_FACTS = CONFIGS.parents[1] / DEEPSEEK_OCR.replace("-", "_")
STEPS = ((1, 1025), (8, 1025), (32, 8193), (512, 5000))  # batch, context
PROMPT = 9000  # beyond every window and chunk


def models() -> list[str]:
    """Every model that a measured run names."""
    return sorted([DEEPSEEK_OCR, *(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())])


def formulas(model: str) -> ClosedForm:
    """The closed form of a model."""
    folder: Path = DEEPSEEK_OCR_FACTS if model == DEEPSEEK_OCR else CONFIGS / model
    return closed_form(folder)


def agreement(model: str) -> dict[str, Any]:
    """Traced over formula: active parameters, and of several steps and a prompt the ratio furthest from 1."""
    traced, closed = traced_needs(model), formulas(model)
    bytes_ratios, flops_ratios = [], []
    for batch, context in STEPS:
        step, other = traced.step(batch=batch, context=context), closed.step(batch=batch, context=context)
        bytes_ratios.append((step.bytes or 0) / other.bytes)
        flops_ratios.append(step.flops / other.flops)
    prompt, other = traced.prefill(batch=1, prompt=PROMPT), closed.prefill(batch=1, prompt=PROMPT)
    return {
        "model": model,
        "active_matrix_parameters": closed.active_matrix_parameters,
        "active": traced.active_matrix_parameters / closed.active_matrix_parameters,
        "step_bytes": _furthest(bytes_ratios),
        "step_flops": _furthest(flops_ratios),
        "prefill_bytes": (prompt.bytes or 0) / other.bytes,
        "prefill_flops": prompt.flops / other.flops,
    }


def _furthest(ratios: list[float]) -> float:
    return max(ratios, key=lambda ratio: abs(ratio - 1))
