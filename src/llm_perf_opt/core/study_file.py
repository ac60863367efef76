"""Study files: YAML that a person writes, bounded and typed like every file that is read.

Values follow Hydra's way to write sweeps (`a,b`, `choice(a,b)`, `range(1,9)`), and `key.key=value` on the command line
replaces what the file says. Anchors are refused: a few lines of them can stand for gigabytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, read_bytes
from llm_perf_opt.core.study import (
    Study,
    StudyModel,
    format_names,
    numbers_of,
    read_plan,
    refuse_size,
    require_name,
    split_workload,
    traffic_texts,
    values_of,
)

STUDY_FILE = FileKind(
    name="study file", fix="compare it with the example in docs/studies.md", max_bytes=2**20, error=UsageError
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
    devices: Any
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
                fix="read the code, then add --trust-remote-code (Python: trust_remote_code=True)",
            )
        return replace(study_of(declared, path.parent), trust_remote_code=trust_remote_code)


def study_of(document: StudyDocument, folder: Path = Path()) -> Study:
    """The study that a document declares; relative paths of models are looked for in `folder` first."""
    own, workloads = split_workload(document.workload)
    points = own.get("points", 10)
    context = own.get("context")
    generated = own.get("generated_tokens", 0)
    if type(generated) is not int or generated < 0:
        raise STUDY_FILE.malformed("workload.generated_tokens", "a whole number, 0 or more", generated)
    plans = values_of(document.deployments.plan)
    return refuse_size(
        Study(
            name=require_name(document.name),
            models=_named([one for entry in document.models for one in _models(entry, folder)]),
            workloads=workloads,
            batches=numbers_of(own.get("global_batch", 1), "global_batch", points),
            contexts=None if context is None else numbers_of(context, "context", points),
            generated_tokens=generated,
            plans=tuple(dict.fromkeys(read_plan(str(plan)) for plan in plans)),
            weights=format_names(values_of(document.deployments.weights)),
            caches=format_names(values_of(document.deployments.cache)),
            devices=tuple(dict.fromkeys(map(str, values_of(document.devices)))),
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
    beside = folder / source
    is_there = os.path.exists(beside)  # noqa: PTH110  Path.exists raises for a name that is too long
    if is_there or not any(sign in source for sign in _WILD):
        found = str(beside) if is_there and not Path(source).is_absolute() else source
        yield StudyModel(name=str(name or _short(source)), source=found, workload=workload)
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
    found = []
    for model in models:
        digits = hashlib.sha256(f"{model.source} {sorted(model.workload.items())}".encode()).hexdigest()[:6]
        name = model.name if names.count(model.name) == 1 else f"{model.name}-{digits}"
        found.append(StudyModel(name=require_name(name), source=model.source, workload=model.workload))
    return tuple(found)


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
    """`workload.global_batch=1,8`: the value is read as in the file."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UsageError(
            f"{word[:80]!r} changes nothing.", why="an override is KEY=VALUE", fix="write workload.global_batch=8"
        )
    place, *rest = key.split(".")
    target = document
    for name in rest:
        inner = target.setdefault(place, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{key} is no key of a study.", why=f"{place} holds a value", fix="check the key")
        target, place = inner, name
    target[place] = _parse_yaml(text)
