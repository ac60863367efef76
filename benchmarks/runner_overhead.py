"""What timing costs: a pass as the runner makes it against a bare loop over the same forwards, pair by pair.

    python -m benchmarks.runner_overhead [--full-size] [--pairs N]

The runner's side is all that it does for one pass: the phases, the clock on every stage, and a progress bar
that is told of each. The bare side prepares the same page and calls the model. Garbage collection is put off on both
sides, so that rarer collections pay for nothing. Time is the processor's, on one thread: other processes do not
lengthen it. The model is the tiny twin with as many decoder layers as the released one, every op of it next to free.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn

from llm_perf_opt.cli.progress import ProgressBar
from llm_perf_opt.harness.quiet import few_collections
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.measurements.timed.timed_runs import PageRun, TimedRuns
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession

PAGE, MODE, PROMPT = "90x130", "gundam", 20


def deep_and_tiny() -> DeepSeekOcrConfig:
    """The widths of the twin in miniature, the depth of the released decoder."""
    tiny = DeepSeekOcrConfig.tiny()
    return replace(tiny, decoder=replace(tiny.decoder, num_hidden_layers=DeepSeekOcrConfig().decoder.num_hidden_layers))


@torch.no_grad()
def bare_loop(session: DeepSeekOCRSession, new_tokens: int) -> list[int]:
    """Prepare, prefill and greedy decode, written as plainly as can be."""
    model = session.model
    inputs, _ = session.prepare(PAGE, PROMPT, MODE, None)
    output = model(
        input_ids=inputs.input_ids,
        images=inputs.images,
        images_seq_mask=inputs.images_seq_mask,
        images_spatial_crop=inputs.images_spatial_crop,
    )
    token = output.logits[:, -1].argmax(dim=-1, keepdim=True)
    tokens = [token]
    for step in range(new_tokens - 1):
        position = torch.full((1, 1), inputs.num_tokens + step)
        output = model(input_ids=token, past_key_values=output.past_key_values, position_ids=position)
        token = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens.append(token)
    return [int(token) for token in tokens]


def overhead(session: DeepSeekOCRSession, runner: TimedRuns, page: PageRun, new_tokens: int, pairs: int) -> float:
    """The runner's extra time as a share of the bare loop's: the median over pairs of passes, side by side in time.

    Either side begins every other pair. A disturbance spoils single pairs, on either side, and the median with neither.
    """
    done, _ = runner.timed_pass(page)
    assert list(done.token_ids) == bare_loop(session, new_tokens)
    ratios = []
    with few_collections():
        for turn in range(pairs):
            if turn % 2:
                bare_ns = spent_ns(lambda: bare_loop(session, new_tokens))
                timed_ns = spent_ns(lambda: runner.timed_pass(page))
            else:
                timed_ns = spent_ns(lambda: runner.timed_pass(page))
                bare_ns = spent_ns(lambda: bare_loop(session, new_tokens))
            ratios.append(timed_ns / bare_ns)
    return median(ratios) - 1


def made_page(config: DeepSeekOcrConfig, new_tokens: int, dtype: str = "float32") -> PageRun:
    """The same page for the runner; it ends after a fixed number of tokens."""
    workload = DeepSeekOcrWorkload(
        image=PAGE, mode=MODE, prompt_tokens=PROMPT, decode_steps=new_tokens - 1, dtype=dtype
    )
    return PageRun(image=PAGE, run=DeepSeekOcrAdapter(config).real_run(workload, None))


def spent_ns(work: Callable[[], object]) -> int:
    """Time of the processor that this process spends on it."""
    started = time.process_time_ns()
    work()
    return time.process_time_ns() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full-size", action="store_true", help="the released sizes, in bfloat16: 8 GB, minutes")
    parser.add_argument("--pairs", type=int, default=100)
    wanted = parser.parse_args()
    config = DeepSeekOcrConfig() if wanted.full_size else deep_and_tiny()
    dtype = "bfloat16" if wanted.full_size else "float32"
    session = DeepSeekOCRSession.from_blueprint(config, weights="random", dtype=dtype)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True)  # drawn as on a terminal
        with Progress(TextColumn("{task.fields[stage]}"), console=console, refresh_per_second=4) as bar:
            runner = TimedRuns(RealModels(weights="random", device="cpu"), threads=1, watch=ProgressBar(bar))
            share = overhead(session, runner, made_page(config, 16, dtype), 16, wanted.pairs)
    print(f"{share:+.2%} over a bare loop, the median of {wanted.pairs} pairs")


if __name__ == "__main__":
    main()
