"""The first three entries of `advise` for six models on three devices each, with the arithmetic behind every figure.

    python -m benchmarks.advice_examples            prints the tables
    python -m benchmarks.advice_examples --docs     puts them on docs/evidence/advice-examples.md

A request is what comes before decoding, and a decode step for each token behind the first. An entry saves the
difference of two requests, each of two times that `trace --device` prints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import llm_perf_opt as lpo
from benchmarks.pages import show_sections, table
from benchmarks.runner import parser
from llm_perf_opt.api.advise import AdviceAnswer
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.core.workload import steps_after_prompt

PAGE = "evidence/advice-examples"
SHOWN = 3
TOKENS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A model, what it is asked, and the devices that it runs on."""

    model: str
    workload: Mapping[str, Any]
    words: str  # the same as options
    devices: tuple[str, ...]


EXAMPLES = (
    Example(
        model="deepseek-ocr",
        workload={"image": "1240x1754"},
        words="--image 1240x1754",
        devices=("rtx-5090", "l4", "h100-sxm"),
    ),
    Example(
        model="Qwen/Qwen3-30B-A3B",
        workload={"prompt_tokens": 1000},
        words="--input 1000",
        devices=("a100-sxm-80g", "h100-sxm", "b200-sxm"),
    ),
    Example(
        model="deepseek-ai/DeepSeek-V3",
        workload={"prompt_tokens": 1000, "tp": 8},
        words="--input 1000 --tp 8",
        devices=("8x h200-sxm", "8x b200-sxm", "8x mi300x"),
    ),
    Example(
        model="openai/whisper-large-v3",
        workload={},
        words="",
        devices=("rtx-4090", "l4", "h100-sxm"),
    ),
    Example(
        model="nvidia/Nemotron-H-56B-Base-8K",
        workload={"prompt_tokens": 1000},
        words="--input 1000",
        devices=("h200-sxm", "b200-sxm", "mi300x"),
    ),
    Example(
        model="Qwen/Qwen3-VL-2B-Instruct",
        workload={"image": "1240x1754"},
        words="--image 1240x1754",
        devices=("rtx-4090", "l4", "h100-sxm"),
    ),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What comes before decoding, and a decode step in which `shared_by` sequences get a token."""

    first_s: float
    step_s: float
    shared_by: int = 1

    def minus(self, after: Request) -> str:
        """The arithmetic of what a change saves: `499 x (11.62 - 1.443) ms + (86.44 - 42.68) ms`."""
        first = self.first_s - after.first_s
        rest = "" if abs(first) < 1e-7 else f" + ({_ms(self.first_s)} - {_ms(after.first_s)}) ms"
        return f"{steps_after_prompt(TOKENS)} x ({self._step()} - {after._step()}) ms{rest}"

    def _step(self) -> str:
        return _ms(self.step_s) + (f" / {self.shared_by}" if self.shared_by > 1 else "")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.6g}"


def written(answer: AdviceAnswer) -> Request:
    """The request as it runs now, from its ladder."""
    first = sum(stage.top_ns for stage in answer.ladder.stages if stage.phase != DECODE)
    step = sum(stage.top_ns / stage.runs for stage in answer.ladder.stages if stage.phase == DECODE)
    return Request(first * 1e-9, step * 1e-9)


def entries(answer: AdviceAnswer) -> Iterator[tuple[str, str, str]]:
    """Title, arithmetic and result of the first entries."""
    before = written(answer)
    for change in answer.changes[:SHOWN]:
        assert change.step_s is not None
        after = Request(change.first_s, change.step_s, change.shared_by)
        yield change.title, before.minus(after), format_seconds(change.after_s)
        before = after


def rows(example: Example) -> Iterator[tuple[str, ...]]:
    """One for each entry of each device."""
    with shared_work():
        trace = lpo.trace(example.model, **example.workload)
        for device in example.devices:
            answer = trace.advise(device, output=TOKENS)
            time = format_seconds(answer.written_s)
            for number, (title, sum_text, saved) in enumerate(entries(answer), 1):
                yield (device if number == 1 else "", time if number == 1 else "", title, f"{sum_text} = {saved}")


def sections() -> dict[str, str]:
    """One table for each model."""
    titles = ("device", "as it runs now", "change", "saves")
    texts = {}
    for example in EXAMPLES:
        command = f"`llm-perf-opt advise {' '.join(filter(None, (example.model, example.words)))} --device ...`"
        texts[example.model] = f"{command}\n\n{table(titles, rows(example), 'llll')}"
        print(texts[example.model], flush=True)
    return texts


def main() -> None:
    options = parser(__doc__, docs="write the page").parse_args()
    logging.disable(logging.WARNING)
    show_sections(PAGE, sections(), is_written=options.docs)


if __name__ == "__main__":
    main()
