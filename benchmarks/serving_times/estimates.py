"""Every aggregated run with its estimate: the step, one prompt, and where their times came from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.plans.measured_pairs import WAITED
from benchmarks.records import MeasuredRun, read_silicon
from benchmarks.serving_times.deployed import deployed_blocks, engine_plan
from llm_perf_opt.analyses.serving.engine_step import Forward
from llm_perf_opt.analyses.serving.engine_time import AskedForward, EngineTimer, ForwardTime
from llm_perf_opt.analyses.serving.request_time import RequestLoad, time_per_token

FROZEN_DEVICES = frozenset({"b300-sxm", "gb300"})
FROZEN_MODELS = frozenset({"kimi-k2.5", "glm-5", "qwen3.5-397b-a17b"})
INFERENCEX_LENGTHS = frozenset({921, 7372})  # nominal 1,024 and 8,192, drawn from a range


def is_frozen(run: MeasuredRun) -> bool:
    """Whether a run belongs to the systems and models that no choice was made with."""
    return run.device in FROZEN_DEVICES or run.model in FROZEN_MODELS


def has_drawn_lengths(run: MeasuredRun) -> bool:
    """Whether its load generator drew lengths from a range."""
    return run.prompt_tokens in INFERENCEX_LENGTHS


def sender(run: MeasuredRun) -> str:
    """Engine and load generator."""
    return f"{run.engine} {'range' if has_drawn_lengths(run) else 'fixed'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A run, and what one step of all its sequences and one prompt of it take."""

    run: MeasuredRun
    step: ForwardTime
    prompt: ForwardTime

    @property
    def load(self) -> RequestLoad:
        """What was in flight."""
        run = self.run
        return RequestLoad(
            in_flight=run.in_flight or 1, prompt_tokens=run.prompt_tokens, output_tokens=run.output_tokens
        )

    @property
    def tpot_s(self) -> float:
        """Expected time per output token."""
        return time_per_token(self.step.seconds, self.prompt.seconds, self.load)

    @property
    def is_frozen(self) -> bool:
        """Whether the run belongs to the systems and models that no choice was made with."""
        return is_frozen(self.run)

    @property
    def is_saturated(self) -> bool:
        """Whether requests mostly waited: such a record says how long the queue was."""
        return (self.run.ttft_s or 0) / (self.run.e2e_s or 1) > WAITED

    @property
    def is_clean(self) -> bool:
        """Whether its time is that of steps: neither waiting, nor drafted, nor a repetition, nor a whole system."""
        run = self.run
        return not (self.is_saturated or run.drafts or run.is_repeat or run.is_whole_system)

    @property
    def sender(self) -> str:
        """Engine and load generator."""
        return sender(self.run)


def aggregated_runs() -> list[MeasuredRun]:
    """The runs whose prompts and steps share their GPUs, all of them."""
    return [run for run in read_silicon() if not run.is_disaggregated]


def estimated(runs: Iterable[MeasuredRun]) -> list[Estimated]:
    """Every run, in the order of systems and engines."""
    groups: Mapping[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[run.device, run.engine].append(run)
    found: list[Estimated] = []
    for (device, engine), some in groups.items():
        times = EngineTimer.of(device, engine).times([one for run in some for one in _asked(run)])
        pairs = zip(some, times[::2], times[1::2], strict=True)
        found.extend(Estimated(run=run, step=step, prompt=prompt) for run, step, prompt in pairs)
    return found


def _asked(run: MeasuredRun) -> tuple[AskedForward, AskedForward]:
    blocks, plan = deployed_blocks(run), engine_plan(run)
    step = Forward(sequences=run.in_flight or 1, queries=1, keys=run.mean_context)
    prompt = Forward(sequences=1, queries=run.prompt_tokens, keys=run.prompt_tokens)
    return (
        AskedForward(blocks=blocks, forward=step, plan=plan),
        AskedForward(blocks=blocks, forward=prompt, plan=plan),
    )
