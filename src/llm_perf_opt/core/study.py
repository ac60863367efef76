"""A study as it is declared: models x workloads x deployments x devices x traffic, every axis a list of values.

The grid is the product of its axes; nothing here runs. `core/study_file.py` reads it from YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import POINTS, read_range
from llm_perf_opt.core.parallel_plan import AXES, ParallelPlan

MOST_POINTS = 10**10  # of one study, so that a slip of the pen does not run for months
AS_STORED = ("checkpoint", "as stored", None)  # words for the format that the checkpoint has
ONE_DEVICE = "one device"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CALL = re.compile(r"\s*(choice|range)\((.*)\)\s*", re.DOTALL)
_PLAN_WORD = re.compile(rf"({'|'.join(AXES)})(\d{{1,5}})")
_GRID = ("global_batch", "context", "points", "generated_tokens")  # of a workload: read here, not by the model


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel:
    """One model: a registered name, a folder, or a saved function; `workload` is what it alone is run with."""

    name: str  # in the results: the last part of a path, different for every model of a study
    source: str
    workload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The axes of a grid, and what all its points share.

    `contexts` None: the model's own default prompt. `generated_tokens` is the length of each answer. With `traffics`
    every point is a replay of requests, which say both themselves, and how many run together. A price is of one device
    for one hour, given by whoever asks: it is assumed, not known.
    """

    name: str
    models: tuple[StudyModel, ...]
    workloads: tuple[Mapping[str, Any], ...]  # every combination of the fields that the models read
    batches: tuple[int, ...]  # sequences of all replicas together
    contexts: tuple[int, ...] | None
    generated_tokens: int
    plans: tuple[ParallelPlan, ...]
    weights: tuple[str | None, ...]  # stored formats; None: as the checkpoint says
    caches: tuple[str | None, ...]
    devices: tuple[str, ...]
    traffics: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    currency: str = "USD"
    execution: str = "fused"
    rates: str | None = "data-sheet"  # None: as `predict` chooses them
    trust_remote_code: bool = False  # said by whoever runs it, never by a file

    @property
    def pairs(self) -> int:
        """Batches times contexts; or kinds of traffic."""
        return len(self.traffics) or len(self.batches) * len(self.contexts or (None,))

    @property
    def deployments(self) -> int:
        """Plans times formats times devices."""
        return len(self.plans) * len(self.weights) * len(self.caches) * len(self.devices)

    @property
    def points(self) -> int:
        """Of the whole grid."""
        return len(self.models) * len(self.workloads) * self.deployments * self.pairs


def require_name(name: str) -> str:
    """A name that may be part of a path."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a study.",
            why="it becomes the name of a folder: letters, digits, dots, dashes and underscores",
            fix="choose such a name",
        )
    return name


def traffic_texts(given: object, workload: Mapping[str, Any]) -> tuple[str, ...]:
    """Requests as `plan --traffic` takes them: one line, or a list of them. They leave no grid of batches."""
    texts = given if isinstance(given, list) else [] if given is None else [given]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageError(
            "A traffic is a line of text.",
            why=f"{texts!r:.80} has others",
            fix='write "8/s prompt=800 output=200 for 60s"',
        )
    both = next((name for name in _GRID if texts and name in workload), None)
    if both is not None:
        raise UsageError(
            f"A study under traffic takes no {both}.",
            why="the traffic says how long prompts and answers are; how many run together follows from it",
            fix=f"leave traffic or workload.{both} out",
        )
    return tuple(dict.fromkeys(texts))


def refuse_size(study: Study) -> Study:
    """At most so many points."""
    if study.points > MOST_POINTS:
        raise UsageError(
            f"{study.points:,} points are too many for one study.",
            why=f"at most {MOST_POINTS:,} are taken",
            fix="give fewer values on an axis, or several studies",
        )
    return study


def values_of(given: object) -> tuple[Any, ...]:
    """The values of an axis: one, a list, or as Hydra writes sweeps: `a,b`, `choice(a,b)`, `range(1,9,2)`."""
    if isinstance(given, list):
        return tuple(given)
    if not isinstance(given, str):
        return (given,)
    found = _CALL.fullmatch(given)
    if found is not None and found[1] == "range":
        return _range(found[2])
    words = [word.strip() for word in (given if found is None else found[2]).split(",")]
    return tuple(_plain(word) for word in words)


def _plain(word: str) -> Any:
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else word


def _range(text: str) -> tuple[int, ...]:
    """As Python's: without its end."""
    numbers = [_plain(word.strip()) for word in text.split(",")]
    if not 1 <= len(numbers) <= 3 or not all(type(one) is int for one in numbers):
        raise _no_range(text)
    if len(numbers) == 3 and numbers[2] < 1:
        raise _no_range(text)
    found = range(*numbers)
    if not 1 <= len(found) <= 10**7:
        raise _no_range(text)
    return tuple(found)


def _no_range(text: str) -> UsageError:
    return UsageError(
        f"range({text[:60]}) is no axis.",
        why="it takes a start, an end that is left out, and a step of 1 or more, and holds 1 to 10,000,000 numbers",
        fix="write range(1,65) or range(8,65,8)",
    )


def numbers_of(given: object, name: str, points: int = POINTS) -> tuple[int, ...]:
    """Batches or contexts: one number, a list, `1..512`, `1k,8k`, `choice(...)` or `range(...)`."""
    if isinstance(given, str) and _CALL.fullmatch(given) is None:
        return read_range(given, name, points=points).values
    found = values_of(given)
    numbers = [one for each in found for one in read_range(each, name).values]
    return tuple(dict.fromkeys(numbers))


def read_plan(text: str) -> ParallelPlan:
    """A plan as people write it: `tp2 dp4`, `one device`."""
    words = text.replace(",", " ").split()
    if text.strip() == ONE_DEVICE:
        return ParallelPlan()
    found = [_PLAN_WORD.fullmatch(word) for word in words]
    sizes = {match[1]: int(match[2]) for match in found if match is not None}
    if not words or None in found or len(sizes) < len(words):
        raise UsageError(
            f"{text[:80]!r} is no plan.",
            why=f"a plan is {ONE_DEVICE!r}, or sizes of {', '.join(AXES)}, each once",
            fix="write tp8, or tp2 pp2 dp4",
        )
    return ParallelPlan.make(**sizes)


def format_names(given: Sequence[Any]) -> tuple[str | None, ...]:
    """Stored formats; `checkpoint` is what the model itself says."""
    return tuple(dict.fromkeys(None if one in AS_STORED else str(one) for one in given))


def split_workload(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """What the grid itself reads, and every combination of the fields that models read."""
    own = {name: value for name, value in given.items() if name in _GRID}
    rest = {name: values_of(value) for name, value in given.items() if name not in _GRID}
    if "batch" in rest:
        raise UsageError(
            "A study takes no batch.",
            why="a batch is what one rank runs, and the plans of a study share the sequences among their replicas",
            fix="give global_batch: the sequences of all devices together",
        )
    for name in ("prompt_tokens", "decode_steps", "new_tokens"):
        if name in rest:
            raise UsageError(
                f"A study takes no {name}.",
                why="a point is a prefill of `context` tokens and the decode steps behind it",
                fix="give context and generated_tokens",
            )
    combined = product(*rest.values())
    return own, tuple(dict(zip(rest, values, strict=True)) for values in combined)


def combinations(study: Study) -> Iterator[tuple[StudyModel, Mapping[str, Any]]]:
    """Every model with every workload; what a model entry says itself goes before what all share."""
    for model in study.models:
        seen = []
        for shared in study.workloads:
            workload = {**shared, **model.workload}
            if workload not in seen:
                seen.append(workload)
                yield model, workload
