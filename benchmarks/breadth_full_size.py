"""Run every model type of the installed transformers, at its default full size, without weights.

    python -m benchmarks.breadth_full_size

One forked child per model type under a cap of time and memory. The data file is written as the sweep goes, and a second
run continues it: `--redo failed` repeats what failed, `--only NAME` runs some model types and prints their records.
With `--control N` every model of at most N parameters also runs for real, with random weights and the same inputs.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from statistics import median
from typing import Any

from benchmarks.pages import cell, replace_section, table
from benchmarks.runner import Record, Sweep, load_records, quieten, sweeper

Records = Mapping[str, Mapping[str, Any]]

OPTIONAL_PACKAGES = ("detectron2", "natten", "scipy", "timm", "torchaudio", "torchvision")
VALUES_DECIDE = {"lightglue": "it stops when enough points match, which only values can tell"}
STAGES = {"config": "configuration", "class": "class", "build": "configuration", "inputs": "inputs"}
INTRODUCTION = """
## Full-size default configurations

`benchmarks/breadth_full_size.py` takes every model type that the installed transformers has a model class for, builds
the fullest class at the default configuration of its configuration class, finds inputs and runs one forward, all
without weights. The inputs come from `models/huggingface/inputs`: plausible shapes from the signature and the
configuration, corrected by what the model says of them. A default configuration that cannot be built or whose parts
do not fit each other is changed as little as possible; every change is in the data file with its reason.

```sh
python -m benchmarks.breadth_full_size
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
        _table(("fed with", "model types"), fed.most_common()),
        _cost(ran),
        _failures(records),
        _control(ran),
        _partial(ran),
        _changes(ran),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    return table(titles, rows, "l", wide=True)


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
    return _table(("", "median", "largest", "together"), rows)


def _failures(records: Records) -> str:
    failed = [(name, record) for name, record in records.items() if record["status"] != "ok"]
    rows = [(f"`{name}`", _reason(record), _cell(record["message"])) for name, record in failed]
    return "### What fails, and why\n\n" + _table(("model type", "reason", "its own words"), rows) if rows else ""


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
    return f"{text}\n\n{_table(('model type', 'calls weightless', 'for real', 'why'), rows)}" if rows else text


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
        f"which no accepted input was found.\n\n{_table(('model type', 'fed with', 'first refusal'), rows)}"
    )


def _changes(ran: Records) -> str:
    rows = [(f"`{name}`", record["why_changed"]) for name, record in ran.items() if "why_changed" in record]
    aligned = [f"`{name}`" for name, record in ran.items() if "alignments" in record]
    return (
        f"### Changed configurations\n\nIn {len(aligned)} composite models the vocabulary was too small for the "
        f"placeholder token, or a tower's output not as wide as the text model, and was set to fit: "
        f"{', '.join(aligned)}.\n\n{len(rows)} need a value that the configuration class does not give:\n\n"
        f"{_table(('model type', 'why'), rows)}"
    )


def main() -> None:
    """Sweep, write the data, refresh the page."""
    parser = sweeper(__doc__, "breadth_full_size", "breadth.md", seconds=120)
    parser.add_argument("--redo", choices=("failed", "all"), help="repeat records that are there already")
    parser.add_argument("--control", type=int, default=0, metavar="N", help="models of at most N parameters for real")
    options = parser.parse_args()
    optional: dict[str, str] = {}
    for name in OPTIONAL_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            optional[name] = metadata.version(name)
    header = {**quieten(), "optional": optional}
    from benchmarks.breadth.full_size import run_control, run_model_type
    from llm_perf_opt.models.huggingface.folder import model_types

    records = load_records(options.out)
    sweep = Sweep(options=options, header=header, records=records)

    def is_wanted(name: str) -> bool:
        if options.only:
            return name in options.only
        is_failed = name not in records or records[name]["status"] != "ok"
        return name not in records or options.redo == "all" or (options.redo == "failed" and is_failed)

    def keep(name: str, record: Record) -> None:
        records[name] = record
        if options.only:
            print(json.dumps(record, indent=1))

    run_model_type("llama")  # what every child would otherwise import for itself
    sweep.run([name for name in model_types() if is_wanted(name)], run_model_type, keep)
    ran = {name: record for name, record in records.items() if record["status"] == "ok" and "control" not in record}
    small = [name for name, record in ran.items() if record["parameters"] <= options.control]
    small.sort(key=lambda name: int(records[name]["parameters"]))
    sweep.run(small, run_control, lambda name, record: records[name].update(control=record), str)
    sweep.save()
    replace_section(options.page, "full-size configurations", section(header, records))
    print(f"Wrote {options.out} and refreshed {options.page}")


if __name__ == "__main__":
    main()
