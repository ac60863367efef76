"""What watching a real run costs: the same forward plain and under each tracer, turn by turn in one process.

    python benchmarks/tracer_overhead.py --out docs/data/tracer_overhead.json

The model is DeepSeek-OCR at full width with 3 decoder layers, on a page of 512 x 512: a forward of a second or more.
Runs alternate, so that whatever else the machine does falls on all of them, and the median of the ratios
to the plain run of the same round is taken.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.profiler_tracer import ProfilerTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, DeepSeekOcrWorkload

LAYERS = 3
Seconds = tuple[float, float]  # wall, CPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = full_width_target()
    hooks, profiler = HooksTracer(), ProfilerTracer()
    calls = sum(hooks.trace(target).call_counts.values())  # builds the model, and warms it up
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: target.run(target.build()),
        "hooks": lambda: hooks.trace(target),
        "profiler": lambda: profiler.trace(target),
    }
    spent = take_turns(target, ways, options.rounds)
    record: dict[str, object] = {"threads": options.threads, "rounds": options.rounds, "module_calls": calls}
    for row, clock in enumerate(("wall", "cpu")):
        plain = [turn[row] for turn in spent["plain"]]
        record[f"plain_{clock}_seconds_median"] = round(median(plain), 3)
        for name in ("hooks", "profiler"):
            ratios = [turn[row] / alone for turn, alone in zip(spent[name], plain, strict=True)]
            record[f"{name}_{clock}_overhead_percent"] = round(100 * (median(ratios) - 1), 2)
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)


def full_width_target() -> Target:
    released = DeepSeekOcrConfig()
    config = replace(released, decoder=replace(released.decoder, num_hidden_layers=LAYERS))
    (target,) = DeepSeekOcrAdapter(config).targets(
        DeepSeekOcrWorkload(image="512x512", mode="tiny", dtype="float32", decode_steps=0)
    )
    return target


def take_turns(target: Target, ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[Seconds]]:
    """Wall and CPU seconds of each forward itself: reading a trace afterwards is not part of it.

    CPU time is what a busy machine does not change.
    """
    spent: dict[str, list[Seconds]] = {name: [] for name in ways}
    inside: list[Seconds] = []
    invoke = target.invoke

    def timed(model: object) -> object:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return invoke(model)
        finally:
            inside.append((time.perf_counter() - wall, time.process_time() - cpu))

    object.__setattr__(target, "invoke", timed)
    for _ in range(rounds):
        for name, run in ways.items():
            inside.clear()
            run()
            spent[name].append(inside[0])
    return spent


if __name__ == "__main__":
    main()
