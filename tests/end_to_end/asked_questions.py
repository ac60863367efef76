"""200 questions about 25 models of the catalogue: which model, workload and deployment, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.end_to_end.asked_models import MORE_MODELS, RUNS

SMALLEST = "openai-community/gpt2"
DEVICES = ("l4", "l40s", "a100-sxm-80g", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "rtx-4090")
ONE, SPREAD = "one device", ("tp2", "dp2", "pp2", "fsdp2")
DEVICES_OF_A_RUN, MORE_DEVICES, PLANS_OF_A_RUN = 4, 7, 1
SEED = 410  # every plan at least twice, one that a model refuses, and key heads fewer than ranks
PHASES = ("prefill", "decode")
MOST = "most_of_all_ranks_"
OVER_ALL = "over_all_stages_"

Figure = str | int | float | bool | None
Told = dict[tuple[str, str], Figure]  # phase and printed key -> figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is traced once for all devices and each plan: `global_batch` are the sequences of all ranks."""

    model: str
    global_batch: int
    context: int
    weights: str | None
    cache: str | None
    execution: str
    devices: tuple[str, ...]  # of its questions
    plans: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run on a device, or spread over two of them."""

    run: Run
    device: str
    plan: str

    def __str__(self) -> str:
        run = self.run
        formats = "-".join(one or "stored" for one in (run.weights, run.cache))
        model = run.model.partition("/")[2]
        return f"{model}-{run.global_batch}x{run.context}-{formats}-{run.execution}-{self.device}-{self.plan}".replace(
            " ", "-"
        )


def questions() -> list[Question]:
    """40, the same at every run: of each model some runs, each on several devices and spread by a plan."""
    drawn = random.Random(SEED)
    return _of_runs([_drawn_run(drawn, model) for model, count in RUNS.items() for _ in range(count)])


def more_questions() -> list[Question]:
    """160 of more and larger models, which take minutes."""
    drawn = random.Random(SEED)
    return _of_runs([_drawn_run(drawn, model, MORE_DEVICES) for model in MORE_MODELS])


def _of_runs(runs: Sequence[Run]) -> list[Question]:
    return [
        question
        for run in runs
        for question in (
            *(Question(run=run, device=device, plan=ONE) for device in run.devices),
            *(Question(run=run, device=run.devices[0], plan=plan) for plan in run.plans),
        )
    ]


def _drawn_run(drawn: random.Random, model: str, devices: int = DEVICES_OF_A_RUN) -> Run:
    is_alone = drawn.random() < 0.5  # one user, whose prompt is all of a prefill
    return Run(
        model=model,
        global_batch=1 if is_alone else 2 * drawn.randint(1, 12),
        context=drawn.randint(16, 1000),
        weights=drawn.choice((None, None, "fp8", "int4-g128")),
        cache=drawn.choice((None, None, "fp8")),
        execution=drawn.choice(("eager", "fused", "fused")),
        devices=tuple(drawn.sample(DEVICES, devices)),
        plans=tuple(drawn.sample([plan for plan in SPREAD if not is_alone or "dp" not in plan], PLANS_OF_A_RUN)),
    )
