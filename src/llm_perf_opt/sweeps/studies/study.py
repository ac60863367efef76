"""A study as it is declared: models x workloads x deployments x devices x traffic, every axis a list of values.

The grid is the Cartesian product of its axes; nothing here runs. `sweeps/studies/study.py` reads it from YAML.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.number_ranges import POINTS, read_range
from llm_perf_opt.core.parallel_plan import AXES, ParallelPlan
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, read_bytes

MOST_POINTS = 10**10  # of one study, so that a slip of the pen does not run for months
AS_STORED = ("checkpoint", "as stored", None)  # words for the format that the checkpoint has
ONE_DEVICE = "one device"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CALL = re.compile(r"\s*(choice|range)\((.*)\)\s*", re.DOTALL)
_PLAN_WORD = re.compile(rf"({'|'.join(AXES)})(\d{{1,5}})")
_GRID = ("users", "input", "points", "output")  # of a workload: read here, not by the model


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
        """The points of the whole grid."""
        return len(self.models) * len(self.workloads) * self.deployments * self.pairs


def require_name(name: str) -> str:
    """A name that may be part of a path."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a name for a study.",
            why="it becomes the name of a folder and may have letters, digits, dots, dashes and underscores",
            fix="choose another name",
        )
    return name


def traffic_texts(given: object, workload: Mapping[str, Any]) -> tuple[str, ...]:
    """Requests as `serve --traffic` takes them: one line, or a list of them. They leave no grid of batches."""
    texts = given if isinstance(given, list) else [] if given is None else [given]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageError(
            "Traffic is described by a line of text.",
            why=f"{texts!r:.80} holds something else",
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
    """The study, unless it has too many points."""
    if study.points > MOST_POINTS:
        raise UsageError(
            f"{study.points:,} points are too many for one study.",
            why=f"a study has at most {MOST_POINTS:,}",
            fix="give fewer values on an axis, or several studies",
        )
    return study


def values_of(given: object) -> tuple[Any, ...]:
    """The values of an axis: one, a list, or as Hydra writes sweeps: `a,b`, `choice(a,b)`, `range(1,9,2)`."""
    if isinstance(given, list):
        return tuple(given)
    if not isinstance(given, str):
        return (given,)
    match = _CALL.fullmatch(given)
    if match is not None and match[1] == "range":
        return _range(match[2])
    words = [word.strip() for word in (given if match is None else match[2]).split(",")]
    return tuple(_plain(word) for word in words)


def _plain(word: str) -> Any:
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else word


def _range(text: str) -> tuple[int, ...]:
    """A range as in Python: without its end."""
    numbers = [_plain(word.strip()) for word in text.split(",")]
    if not 1 <= len(numbers) <= 3 or not all(type(number) is int for number in numbers):
        raise _no_range(text)
    if len(numbers) == 3 and numbers[2] < 1:
        raise _no_range(text)
    numbers_in = range(*numbers)
    if not 1 <= len(numbers_in) <= 10**7:
        raise _no_range(text)
    return tuple(numbers_in)


def _no_range(text: str) -> UsageError:
    return UsageError(
        f"range({text[:60]}) is not an axis.",
        why="it takes a start, an end that is left out, and a step of 1 or more, and holds 1 to 10,000,000 numbers",
        fix="write range(1,65) or range(8,65,8)",
    )


def numbers_of(given: object, name: str, points: int = POINTS) -> tuple[int, ...]:
    """Batches or contexts: one number, a list, `1..512`, `1k,8k`, `choice(...)` or `range(...)`."""
    if isinstance(given, str) and _CALL.fullmatch(given) is None:
        return read_range(given, name, points=points).values
    texts = values_of(given)
    numbers = [value for text in texts for value in read_range(text, name).values]
    return tuple(dict.fromkeys(numbers))


def read_plan(text: str) -> ParallelPlan:
    """A plan as people write it: `tp2 dp4`, `one device`."""
    words = text.replace(",", " ").split()
    if text.strip() == ONE_DEVICE:
        return ParallelPlan()
    matches = [_PLAN_WORD.fullmatch(word) for word in words]
    sizes = {match[1]: int(match[2]) for match in matches if match is not None}
    if not words or None in matches or len(sizes) < len(words):
        raise UsageError(
            f"{text[:80]!r} is not a plan.",
            why=f"a plan is {ONE_DEVICE!r}, or sizes of {', '.join(AXES)}, each once",
            fix="write tp8, or tp2 pp2 dp4",
        )
    return ParallelPlan.make(**sizes)


def format_names(given: Sequence[Any]) -> tuple[str | None, ...]:
    """Stored formats; `checkpoint` is what the model itself says."""
    return tuple(dict.fromkeys(None if name in AS_STORED else str(name) for name in given))


def split_workload(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """What the grid itself reads, and every combination of the fields that models read."""
    own = {name: value for name, value in given.items() if name in _GRID}
    rest = {name: values_of(value) for name, value in given.items() if name not in _GRID}
    if "batch" in rest:
        raise UsageError(
            "A study takes no batch.",
            why="a batch is what one rank runs, and the plans of a study share the sequences among their replicas",
            fix="give users: the sequences of all GPUs together",
        )
    for name in ("prompt_tokens", "decode_steps", "new_tokens"):
        if name in rest:
            raise UsageError(
                f"A study takes no {name}.",
                why="a point is a prefill of `input` tokens and the decode steps after it",
                fix="give input and output",
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


# Study files: YAML that a person writes, bounded and typed like every file that is read.
#
# Values follow Hydra's way to write sweeps (`a,b`, `choice(a,b)`, `range(1,9)`), and `key.key=value` on the command
# line replaces what the file says. Anchors are refused: a few lines of them can stand for gigabytes.

STUDY_FILE = FileKind(
    name="study file", fix="compare it with the example in docs/start/studies.md", max_bytes=2**20, error=UsageError
)
FUNCTION_SUFFIX = ".function.json"
_WILD = "*?["


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDeployments:
    """The axes of a deployment: plans and stored formats."""

    plan: Any = "one device"
    weights: Any = None
    cache: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDocument:
    """A study file as it is written."""

    name: str
    models: list[Any]
    gpus: Any
    workload: dict[str, Any] = field(default_factory=dict)
    deployments: StudyDeployments = field(default_factory=StudyDeployments)
    prices: dict[str, float] = field(default_factory=dict)  # of one device for one hour
    currency: str = "USD"
    execution: str = "fused"
    rates: str | None = "data-sheet"
    traffic: Any = None
    trust_remote_code: bool = False  # a wish: a file cannot give that permission


def read_study(path: Path, overrides: Sequence[str] = (), *, trust_remote_code: bool = False) -> Study:
    """The study in a file, with what `overrides` replace in it.

    `trust_remote_code` is the permission of whoever runs the study. A file that asks for it is refused without it: it
    may come from a stranger, and the folders that it names too.
    """
    raw = read_bytes(path, STUDY_FILE)
    with naming_file(path):
        document = _parse_yaml(raw.decode("utf-8", errors="replace"))
        if not isinstance(document, dict):
            raise STUDY_FILE.malformed("the top level", "keys and values", document)
    for word in overrides:
        _override(document, word)
    with naming_file(path):
        declared = as_record(document, StudyDocument, STUDY_FILE)
        if declared.trust_remote_code and not trust_remote_code:
            raise UsageError(
                "The study asks to run the Python code of its model folders.",
                why="a study file cannot allow that: code runs with your rights",
                fix="read the code, then add --trust-remote-code",
            )
        return replace(study_of(declared, path.parent), trust_remote_code=trust_remote_code)


def study_of(document: StudyDocument, folder: Path = Path()) -> Study:
    """The study that a document declares; relative paths of models are looked for in `folder` first."""
    own, workloads = split_workload(document.workload)
    points = own.get("points", 10)
    context = own.get("input")
    generated = own.get("output", 0)
    if type(generated) is not int or generated < 0:
        raise STUDY_FILE.malformed("workload.output", "a whole number, 0 or more", generated)
    plans = values_of(document.deployments.plan)
    return refuse_size(
        Study(
            name=require_name(document.name),
            models=_named([model for entry in document.models for model in _models(entry, folder)]),
            workloads=workloads,
            batches=numbers_of(own.get("users", 1), "users", points),
            contexts=None if context is None else numbers_of(context, "input", points),
            generated_tokens=generated,
            plans=tuple(dict.fromkeys(read_plan(str(plan)) for plan in plans)),
            weights=format_names(values_of(document.deployments.weights)),
            caches=format_names(values_of(document.deployments.cache)),
            devices=tuple(dict.fromkeys(map(str, values_of(document.gpus)))),
            traffics=traffic_texts(document.traffic, document.workload),
            prices=_prices(document.prices),
            currency=document.currency,
            execution=document.execution,
            rates=document.rates,
        )
    )


def _prices(given: Mapping[str, float]) -> dict[str, float]:
    for device, price in given.items():
        if not 0 < price < 10**6:
            raise STUDY_FILE.malformed(f"prices.{device}", "a price for one hour, above 0", price)
    return dict(given)


def _models(entry: object, folder: Path) -> Iterator[StudyModel]:
    """A text, or a mapping with `model` and the workload of that model alone; `*` stands for several folders."""
    workload: dict[str, Any] = dict(entry) if isinstance(entry, dict) else {}
    source = workload.pop("model", None) if isinstance(entry, dict) else entry
    if not isinstance(source, str) or not source:
        raise STUDY_FILE.malformed("models", "a name, a folder, or `model:` with a workload of its own", entry)
    name = workload.pop("name", None)
    in_folder = folder / source
    is_there = os.path.exists(in_folder)  # noqa: PTH110  Path.exists raises for a name that is too long
    if is_there or not any(sign in source for sign in _WILD):
        resolved = str(in_folder) if is_there and not Path(source).is_absolute() else source
        yield StudyModel(name=str(name or _short(source)), source=resolved, workload=workload)
        return
    pattern = Path(source)
    base = Path(pattern.anchor) if pattern.is_absolute() else folder  # the folder's own name is no pattern
    found_places = base.glob(str(pattern.relative_to(pattern.anchor)))
    places = [place for place in sorted(found_places) if _is_model(place)]
    if not places:
        raise UsageError(
            f"No model matches {source}.", why="a pattern stands for folders with a config.json", fix="check the path"
        )
    for place in places:
        yield StudyModel(name=_short(str(place)), source=str(place), workload=workload)


def _is_model(place: Path) -> bool:
    return (place / "config.json").is_file() or place.name.endswith(FUNCTION_SUFFIX)


def _short(source: str) -> str:
    """The last part of a path, as a folder may be called."""
    name = Path(source).name.removesuffix(FUNCTION_SUFFIX) or "model"
    return "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in name)


def _named(models: Sequence[StudyModel]) -> tuple[StudyModel, ...]:
    """Two models of one name are told apart by a few digits of their path."""
    names = [model.name for model in models]
    if not models:
        raise STUDY_FILE.malformed("models", "at least one model", [])
    renamed = []
    for model in models:
        digits = hashlib.sha256(f"{model.source} {sorted(model.workload.items())}".encode()).hexdigest()[:6]
        name = model.name if names.count(model.name) == 1 else f"{model.name}-{digits}"
        renamed.append(StudyModel(name=require_name(name), source=model.source, workload=model.workload))
    return tuple(renamed)


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise PerfOptError(
            "PyYAML is not installed.", why="a study file is YAML", fix="pip install 'llm-perf-opt[study]'"
        ) from error
    try:
        opening = yaml.BlockSequenceStartToken | yaml.BlockMappingStartToken
        opening |= yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken
        closing = yaml.BlockEndToken | yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken
        levels = 0
        for token in yaml.scan(text, Loader=yaml.SafeLoader):  # as it goes: 100,000 brackets take minutes to the end
            if isinstance(token, yaml.AliasToken | yaml.TagToken):
                raise STUDY_FILE.refusal("holds an alias or a tag", "a few lines of them can stand for gigabytes")
            levels += isinstance(token, opening) - isinstance(token, closing)
            if levels > STUDY_FILE.max_levels:
                raise STUDY_FILE.refusal("is nested too deeply", f"it has more than {STUDY_FILE.max_levels} levels")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise STUDY_FILE.refusal("is not valid YAML", " ".join(str(error).split())[:300]) from None


def _override(document: dict[str, Any], word: str) -> None:
    """`workload.users=1,8`: the value is read as in the file."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UsageError(
            f"{word[:80]!r} changes nothing.", why="an override is KEY=VALUE", fix="write workload.users=8"
        )
    place, *rest = key.split(".")
    target = document
    for name in rest:
        inner = target.setdefault(place, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{key} is not a key of a study.", why=f"{place} holds a value", fix="check the key")
        target, place = inner, name
    target[place] = _parse_yaml(text)
