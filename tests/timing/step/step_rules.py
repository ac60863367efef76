"""Rules that the time of every step keeps, asked of random models, devices and plans.

`python -m tests.timing.step.step_rules 2000` asks as many; it needs the measured tables.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.timing.lower_bound import bytes_from_memory
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import StepRange, step_table
from tests.timing.step.test_engine_blocks import CONFIGS, blocks_of

DEVICES = ("l4", "l40s", "rtx-4090", "a100-sxm-80g", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "b300-sxm")
PAIRS = 5  # of steps, for each table
REACH = StepRange(tokens=8192, sequences=512, context=65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose steps on what."""

    model: str
    device: str
    plan: ParallelPlan


def all_models() -> list[str]:
    """Those whose configurations are with the facts."""
    return sorted(folder.name for folder in CONFIGS.iterdir())


def drawn(number: random.Random, models: list[str]) -> Asked:
    """Any of them; models with experts share those among ranks, or have groups with attention of their own."""
    model, device = number.choice(models), number.choice(DEVICES)
    tp, groups, shares_experts = number.choice((1, 2, 4, 8)), number.choice((1, 1, 1, 2, 4)), number.random() < 0.5
    if not blocks_of(model).experts or tp * groups > 8:
        groups = 1
    shares_experts = bool(blocks_of(model).experts) and (shares_experts or groups > 1)
    plan = ParallelPlan(tp=tp, attention_dp=groups, ep=tp * groups if shares_experts else 1)
    return Asked(model=model, device=device, plan=plan)


def broken_rules(asked: Asked, number: random.Random) -> Iterator[str]:
    """What a step of this many sequences, cached tokens and new tokens does that it must not."""
    table, blocks = _table(asked), blocks_of(asked.model)
    fewer = replace(asked.plan, tp=asked.plan.tp // 2, ep=max(1, asked.plan.ep // 2)) if asked.plan.tp > 1 else None
    slower = None if fewer is None else _table(replace(asked, plan=fewer))
    for _ in range(PAIRS):
        few, more = sorted(number.randint(1, 600) for _ in "ab")
        short, long = sorted(number.randint(1, 100_000) for _ in "ab")
        step, prompt = table.seconds(few, few * short), table.seconds(0, 0, [(short, 0)])
        at = f"{asked}: {few} sequences of {short} tokens"
        if step > table.seconds(more, more * short):
            yield f"{at}: slower than {more} sequences"
        if step > table.seconds(few, few * long):
            yield f"{at}: slower than {long} tokens"
        if prompt > table.seconds(0, 0, [(long, 0)]):
            yield f"{at}: as a prompt slower than {long} tokens"
        if step < physics_s(asked, blocks, few, short):
            yield f"{at}: reads faster than memory"
        if slower is not None and 2 * step < slower.seconds(few, few * short) * (1 - 1e-12):
            yield f"{at}: more than twice as fast as half the ranks"
        if slower is not None and 2 * prompt < slower.seconds(0, 0, [(short, 0)]) * (1 - 1e-12):
            yield f"{at}: as a prompt more than twice as fast as half the ranks"


def physics_s(asked: Asked, blocks: EngineBlocks, sequences: int, context: int) -> float:
    """Every weight and cached token read once by some rank; of the experts as few as a token chooses."""
    weights = sum(_stored(one.weight_format, one.columns, one.depth) * one.layers for one in blocks.matmuls)
    for block in blocks.experts:
        each = _stored(block.weight_format, block.matrix_elements_each // block.hidden, block.hidden)
        weights += block.chosen * each * block.layers
    cached = sum(
        layer.cached_bytes * layer.layers * min(context, layer.span.window or context, layer.span.chosen or context)
        for layer in blocks.attentions
        if not layer.encoded_keys
    )
    device = find_device(asked.device)
    must_read = (weights + sequences * cached) // asked.plan.stage_ranks
    return bytes_from_memory(must_read, device) / device.bandwidth_bytes_per_s


def _stored(weight_format: str, *shape: int) -> int:
    return tensor_bytes(TensorMeta(shape=shape, dtype=weight_format, device="cuda"))


@cache
def _timer(device: str) -> EngineTimer:
    return EngineTimer.of(device, "vllm", parse_cluster(f"8x {device}"))


@cache
def _table(asked: Asked) -> StepTable:
    return step_table(blocks_of(asked.model), _timer(asked.device), asked.plan, reach=REACH)


def main(count: int) -> int:
    """Ask this many; the number of rules that were broken."""
    number, models, broken = random.Random(34), all_models(), 0
    for _ in range(count):
        for rule in broken_rules(drawn(number, models), number):
            print(rule, flush=True)
            broken += 1
    print(f"{count:,} random (model, device, plan), {PAIRS} pairs of steps each: {broken:,} rules broken")
    return broken


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
