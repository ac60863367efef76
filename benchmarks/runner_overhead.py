"""What timing costs: the runner against a bare loop over the same forwards, in one process, in turns.

    python benchmarks/runner_overhead.py [--full-size] [--rounds N]

Both sides preprocess nothing: the bare loop makes its inputs once, and of the runner the stages of the model count.
"""

from __future__ import annotations

import argparse
import math
import time

import torch

from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.generation import generate
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession
from llm_perf_opt.runs.stage_clock import HostStamps, StageClock

PAGE, MODE, PROMPT = "90x130", "gundam", 20


@torch.no_grad()
def bare_loop(session: DeepSeekOCRSession, inputs: OcrInputs, new_tokens: int) -> list[int]:
    """Prefill and greedy decode, written as plainly as can be."""
    model = session.model
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


def timed_loop(session: DeepSeekOCRSession, inputs: OcrInputs, new_tokens: int) -> list[int]:
    """The same work as the runner does it, with its clock on every stage."""
    clock = StageClock(HostStamps())
    clock.start()
    made = generate(session.model, inputs, new_tokens, watch=clock, eos_token_id=None)
    clock.finish()
    return list(made.token_ids)


def overhead(session: DeepSeekOCRSession, new_tokens: int, rounds: int) -> float:
    """The runner's extra time as a share of the bare loop's, each by its quickest round: disturbances only add.

    In each round both go once, in changing order.
    """
    inputs, _ = session.prepare(PAGE, PROMPT, MODE, None)
    sides = [bare_loop, timed_loop]
    assert bare_loop(session, inputs, new_tokens) == timed_loop(session, inputs, new_tokens)
    quickest = {bare_loop: math.inf, timed_loop: math.inf}
    for turn in range(rounds):
        for side in sides if turn % 2 else reversed(sides):
            started = time.perf_counter_ns()
            side(session, inputs, new_tokens)
            quickest[side] = min(quickest[side], time.perf_counter_ns() - started)
    return quickest[timed_loop] / quickest[bare_loop] - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full-size", action="store_true", help="the released sizes, in bfloat16: 8 GB, minutes")
    parser.add_argument("--rounds", type=int, default=101)
    wanted = parser.parse_args()
    config = DeepSeekOcrConfig() if wanted.full_size else DeepSeekOcrConfig.tiny()
    dtype = "bfloat16" if wanted.full_size else "float32"
    session = DeepSeekOCRSession.from_blueprint(config, weights="random", dtype=dtype)
    print(f"{overhead(session, 16, wanted.rounds):+.2%} over a bare loop, the quickest of {wanted.rounds} rounds each")


if __name__ == "__main__":
    main()
