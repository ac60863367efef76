"""Run every model type of the installed transformers, at its default full size, without weights.

    python -m benchmarks.breadth.full_size

One forked child per model type under a cap of time and memory. The data file is written as the sweep goes, and a second
run continues it: `--redo failed` repeats what failed, `--only NAME` runs some model types and prints their records.
With `--control N` every model of at most N parameters also runs for real, with random weights and the same inputs.

Default configurations of composite models rarely fit together: the towers and the text model were never one model. Two
misfits are common, and each has one cure that keeps every other size: the placeholder token lies beyond the text
vocabulary (the vocabulary grows), or a tower's output is not as wide as the text model (that width is set).
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.pages import cell, wide_table
from benchmarks.runner import Record, Sweep, quieten, resident_bytes, sweeper
from llm_perf_opt.models.huggingface.folder import class_names, load_class, model_types
from llm_perf_opt.models.huggingface.inputs import (
    Found,
    NoInputs,
    Plan,
    Subject,
    accepted_modalities,
    find_inputs,
    make_inputs,
)
from llm_perf_opt.models.huggingface.phases import prefill
from llm_perf_opt.weightless import Engine

PLACEHOLDERS = (
    "image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id", "audio_token_index",
    "media_placeholder_token_id", "vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id",
    "boa_token_id", "eoa_token_id", "image_start_token_id", "image_end_token_id",
)  # fmt: skip
COMPOSITES = ("vlm_config",)
TOWERS = ("vision_config", "audio_config", "vit_config")
WIDTHS = ("out_hidden_size", "output_dim")


def align(config: Any) -> Iterator[str]:
    """Change `config` where its parts do not fit, and say in words what was changed."""
    for name in COMPOSITES:
        if hasattr(nested := getattr(config, name, None), "to_dict"):
            yield from (f"{name}.{change}" for change in align(nested))
    text = getattr(config, "text_config", None)
    if not hasattr(text, "to_dict"):
        return
    yield from _grow_vocabulary(config, text)
    yield from _match_widths(config, text)


def _grow_vocabulary(config: Any, text: Any) -> Iterator[str]:
    used = [value for name in PLACEHOLDERS if isinstance(value := getattr(config, name, None), int)]
    size = getattr(text, "vocab_size", None)
    if isinstance(size, int) and used and max(used) >= size:
        text.vocab_size = (max(used) // 64 + 1) * 64
        yield f"text_config.vocab_size {size} -> {text.vocab_size}: the placeholder token is {max(used)}"


def _match_widths(config: Any, text: Any) -> Iterator[str]:
    wanted = getattr(text, "hidden_size", None)
    for tower_name in TOWERS:
        tower = getattr(config, tower_name, None)
        for name in WIDTHS:
            given = getattr(tower, name, None)
            if isinstance(given, int) and isinstance(wanted, int) and given != wanted:
                setattr(tower, name, wanted)
                yield f"{tower_name}.{name} {given} -> {wanted}: the width of the text model"


CHANGES_FILE = Path(__file__).with_name("full_size_changes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSizeConfig:
    """A configuration, what was changed in it and why, and the class if not the preferred one."""

    config: Any
    why: str | None
    changes: Mapping[str, Any]
    alignments: tuple[str, ...]
    class_name: str | None


def full_size_config(model_type: str) -> FullSizeConfig:
    """The default configuration of `model_type` with the changes of `full_size_changes.toml`, its parts aligned."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    entry = _entries().get(model_type, {})
    changes = entry.get("config", {})
    config = auto.CONFIG_MAPPING[model_type](**_built(changes))
    return FullSizeConfig(
        config=config,
        alignments=tuple(align(config)),
        why=entry.get("why"),
        changes=changes,
        class_name=entry.get("class"),
    )


def _entries() -> dict[str, Any]:
    return tomllib.loads(CHANGES_FILE.read_text(encoding="utf-8"))


def _built(value: Any) -> Any:
    """Tables with a `repeat` stand for long lists and name tables, which would drown the file."""
    match value:
        case {"repeat": item, "times": int() as times, **rest}:
            return [*rest.get("first", []), *[item] * times]
        case {"numbered": str() as pattern, "times": int() as times, "start": int() as start, **rest}:
            return rest.get("also", {}) | {pattern.format(index): start + index for index in range(times)}
        case dict():
            return {key: _built(item) for key, item in value.items()}
        case _:
            return value


MESSAGE_LENGTH = 400
TRACEBACK_LENGTH = 4000


@dataclass(slots=True)
class Progress:
    """How far the run came; becomes the record whatever happens."""

    stage: str = "config"
    record: Record = field(default_factory=dict)


def run_model_type(model_type: str) -> Record:
    """The record of one model type: status `ok`, or `failed` with the stage, the message and the traceback."""
    progress = Progress()
    try:
        _run(model_type, progress)
        progress.record["status"] = "ok"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a sweep records whatever a model raises; nothing is swallowed
        progress.record |= {
            "status": "failed",
            "stage": progress.stage,
            "message": _message(error),
            "traceback": traceback.format_exc()[-TRACEBACK_LENGTH:],
        }
        if isinstance(error, NoInputs):
            progress.record["refusals"] = _refusals(error.refusals)
    progress.record["rss_bytes"] = resident_bytes()
    return progress.record


def _run(model_type: str, progress: Progress) -> None:
    record = progress.record
    chosen = full_size_config(model_type)
    if chosen.why:
        record |= {"why_changed": chosen.why, "changes": chosen.changes}
    if chosen.alignments:
        record["alignments"] = list(chosen.alignments)
    progress.stage = "class"
    record["class"] = chosen.class_name or class_names(model_type)[0]
    model_class = load_class(model_type, str(record["class"]))
    progress.stage = "build"
    engine = Engine(device="cpu")
    with _timed(record, "build_s"), engine:
        model = engine.adopt(model_class(chosen.config).eval())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record["parameters"] = parameters

    def attempt(plan: Plan, entry: str) -> None:
        def once() -> None:  # the engine may revise an answer and run again: only the last run counts
            before = engine.ops_dispatched
            record["calls"] = _count_calls(lambda: prefill(model, make_inputs(plan, torch.float32), entry))
            record["ops"] = engine.ops_dispatched - before

        engine.run(once)

    progress.stage = "inputs"
    subject = Subject.of(model_class, chosen.config)
    record["accepts"] = list(accepted_modalities(subject))
    with _timed(record, "search_s"):
        inputs = find_inputs(subject, attempt)
    record |= _described(inputs)
    progress.stage = "forward"
    with _timed(record, "forward_s"):
        engine.run(lambda: prefill(model, make_inputs(inputs.plan, torch.float32), inputs.entry))


def _described(inputs: Found) -> Record:
    described: Record = {
        "modalities": list(inputs.modalities),
        "entry": inputs.entry,
        "inputs": {name: str(list(getattr(leaf, "shape", ())) or leaf)[:80] for name, leaf in inputs.plan.items()},
    }
    return described | ({"refusals": _refusals(inputs.refusals)} if inputs.refusals else {})


def _refusals(messages: tuple[str, ...]) -> list[str]:
    return [message[:MESSAGE_LENGTH] for message in dict.fromkeys(messages)]


def _message(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, NoInputs) and error.__cause__ is not None else error
    return f"{type(cause).__name__}: {cause}".strip()[:MESSAGE_LENGTH]


@contextmanager
def _timed(record: Record, name: str) -> Iterator[None]:
    started = time.process_time()
    yield
    record[name] = round(time.process_time() - started, 3)


def _count_calls(run: Callable[[], object]) -> int:
    calls = 0

    def count(module: Any, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        run()
    finally:
        hook.remove()
    return calls


def run_control(model_type: str) -> Record:
    """The inputs found weightless on a real model with random weights: how many module calls, or why it refuses."""
    chosen = full_size_config(model_type)
    model_class = load_class(model_type, chosen.class_name or class_names(model_type)[0])
    engine = Engine(device="cpu")
    with engine:
        ghost = engine.adopt(model_class(chosen.config).eval())
    subject = Subject.of(model_class, chosen.config)
    inputs = find_inputs(subject, lambda plan, entry: engine.run(lambda: prefill(ghost, make_inputs(plan), entry)))
    torch.manual_seed(0)
    model = model_class(chosen.config).eval()
    return {"calls": _count_calls(lambda: prefill(model, make_inputs(inputs.plan, torch.float32), inputs.entry))}


# ---- the page

Records = Mapping[str, Mapping[str, Any]]

OPTIONAL_PACKAGES = ("detectron2", "natten", "scipy", "timm", "torchaudio", "torchvision")
VALUES_DECIDE = {"lightglue": "it stops when enough points match, which only values can tell"}
STAGES = {"config": "configuration", "class": "class", "build": "configuration", "inputs": "inputs"}
INTRODUCTION = """
## Full-size default configurations

`benchmarks/breadth/full_size.py` takes every model type that the installed transformers has a model class for, builds
the fullest class at the default configuration of its configuration class, finds inputs and runs one forward, all
without weights. The inputs come from `models/huggingface/inputs`: plausible shapes from the signature and the
configuration, corrected after the model's own error messages. A default configuration that cannot be built, or has
parts that do not fit each other, is changed as little as possible; every change is in the data file with its reason.

```sh
python -m benchmarks.breadth.full_size
```
"""


def section(header: Mapping[str, Any], records: Records) -> str:
    """The whole section as Markdown."""
    ran = {name: record for name, record in records.items() if record["status"] == "ok"}
    named = {**{key: header[key] for key in ("transformers", "torch")}, **header["optional"]}
    versions = ", ".join(f"{name} {version}" for name, version in named.items())
    fed = Counter(_fed(record["modalities"]) for record in ran.values())
    parts = [
        INTRODUCTION.strip(),
        f"With {versions}: **{len(ran)} of {len(records)}** model types run.",
        wide_table(("fed with", "model types"), fed.most_common()),
        _cost(ran),
        _failures(records),
        _control(ran),
        _partial(ran),
        _changes(ran),
    ]
    return "\n\n".join(part for part in parts if part)


def _cell(text: object) -> str:
    return cell(text, 160)


def _fed(modalities: Sequence[str]) -> str:
    return " + ".join(modalities) or "states of another model"


def _cost(ran: Records) -> str:
    def row(title: str, name: str, form: str = ",.0f", total: str = ",.0f") -> tuple[str, str, str, str]:
        values = [float(record[name]) for record in ran.values()]
        return title, f"{median(values):{form}}", f"{max(values):{form}}", f"{sum(values):{total}}"

    memory = [record["rss_bytes"] / 2**30 for record in ran.values()]
    rows = [
        row("parameters", "parameters"),
        row("build, CPU s", "build_s", ".2f", ".0f"),
        row("forward, CPU s", "forward_s", ".2f", ".0f"),
        row("ops", "ops"),
        row("module calls", "calls"),
        ("resident memory, GiB", f"{median(memory):.2f}", f"{max(memory):.2f}", ""),
    ]
    return wide_table(("", "median", "largest", "together"), rows)


def _failures(records: Records) -> str:
    failed = [(name, record) for name, record in records.items() if record["status"] != "ok"]
    rows = [(f"`{name}`", _reason(record), _cell(record["message"])) for name, record in failed]
    return "### What fails, and why\n\n" + wide_table(("model type", "reason", "its own words"), rows) if rows else ""


def _reason(record: Mapping[str, Any]) -> str:
    message = str(record["message"])
    if record["status"] != "failed":
        return str(record["status"])
    if message.startswith("ImportError") and (package := re.search(r"requires the (\S+) library", message)):
        return f"package missing: {package[1]}"
    return "the engine refuses" if message.startswith("Refusal") else STAGES.get(str(record["stage"]), "engine")


def _control(ran: Records) -> str:
    held = {name: record for name, record in ran.items() if "control" in record}
    if not held:
        return ""
    rows = [
        (
            f"`{name}`",
            record["calls"],
            _cell(record["control"].get("calls", record["control"].get("message"))),
            VALUES_DECIDE.get(name, ""),
        )
        for name, record in held.items()
        if record["control"].get("calls") != record["calls"]
    ]
    text = (
        f"### The same inputs on real weights\n\n{len(held)} of these models are small enough to run for real, with "
        f"random weights and the same inputs; {len(held) - len(rows)} make the same number of module calls."
    )
    return f"{text}\n\n{wide_table(('model type', 'calls weightless', 'for real', 'why'), rows)}" if rows else text


def _partial(ran: Records) -> str:
    """Composite models that took no pixels or sound: they count as run, but only their text model did."""
    rows = [
        (f"`{name}`", _fed(record["modalities"]), _cell((record.get("refusals") or ["-"])[0]))
        for name, record in ran.items()
        if not set(record["accepts"]) - {"text"}
        <= {"image" if kind == "video" else kind for kind in record["modalities"]}
    ]
    if not rows:
        return ""
    return (
        f"### Run with less than they can take\n\nThe classes of these {len(rows)} also accept pixels or sound, for "
        f"which no accepted input was found.\n\n{wide_table(('model type', 'fed with', 'first refusal'), rows)}"
    )


def _changes(ran: Records) -> str:
    rows = [(f"`{name}`", record["why_changed"]) for name, record in ran.items() if "why_changed" in record]
    aligned = [f"`{name}`" for name, record in ran.items() if "alignments" in record]
    return (
        f"### Changed configurations\n\nIn {len(aligned)} composite models the vocabulary was too small for the "
        f"placeholder token, or a tower's output not as wide as the text model, and was set to fit: "
        f"{', '.join(aligned)}.\n\n{len(rows)} need a value that the configuration class does not give:\n\n"
        f"{wide_table(('model type', 'why'), rows)}"
    )


def main() -> None:
    """Sweep, write the data, refresh the page."""
    parser = sweeper(__doc__, "breadth_full_size", "evidence/breadth.md", seconds=120)
    parser.add_argument("--control", type=int, default=0, metavar="N", help="models of at most N parameters for real")
    options = parser.parse_args()
    optional: dict[str, str] = {}
    for name in OPTIONAL_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            optional[name] = metadata.version(name)
    sweep = Sweep(options, {**quieten(), "optional": optional})
    run_model_type("llama")  # what every child would otherwise import for itself
    sweep.run(model_types(), run_model_type)
    ran = {
        name: kept_record
        for name, kept_record in sweep.records.items()
        if kept_record["status"] == "ok" and "control" not in kept_record
    }
    small = [name for name, record in ran.items() if record["parameters"] <= options.control]
    small.sort(key=lambda name: int(ran[name]["parameters"]))
    for name, record in sweep.jobs(small, run_control, str):
        sweep.records[name]["control"] = record
    sweep.put("full-size configurations", section(sweep.header, sweep.records))


if __name__ == "__main__":
    main()
