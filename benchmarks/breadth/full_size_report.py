"""The section on full-size configurations in `docs/breadth.md`, from the records of the sweep."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Records = Mapping[str, Mapping[str, Any]]

VALUES_DECIDE = {"lightglue": "it stops when enough points match, which only values can tell"}
INTRODUCTION = """
## Full-size default configurations

`benchmarks/breadth_full_size.py` takes every model type that the installed transformers has a model class for, builds
the fullest class at the default configuration of its configuration class, finds inputs and runs one forward, all
without weights. The inputs come from `models/huggingface/inputs`: plausible shapes from the signature and the
configuration, corrected by what the model says of them. A default configuration that cannot be built or whose parts
do not fit each other is changed as little as possible; every change is in the data file with its reason.

```sh
python benchmarks/breadth_full_size.py
```
"""


def section(header: Mapping[str, Any], records: Records) -> str:
    """The whole section as Markdown."""
    ran = {name: record for name, record in records.items() if record["status"] == "ok"}
    parts = [
        INTRODUCTION.strip(),
        f"With {_versions(header)}: **{len(ran)} of {len(records)}** model types run.",
        _by_modality(ran),
        _cost(ran),
        _failures(records),
        _control(ran),
        _partial(ran),
        _changes(ran),
    ]
    return "\n\n".join(part for part in parts if part)


def _versions(header: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {version}"
        for name, version in ({key: header[key] for key in ("transformers", "torch")} | header["optional"]).items()
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _by_modality(ran: Records) -> str:
    counts = Counter(_fed(record["modalities"]) for record in ran.values())
    return _table(("fed with", "model types"), [(f"{kind}", count) for kind, count in counts.most_common()])


def _fed(modalities: Sequence[str]) -> str:
    return " + ".join(modalities) or "states of another model"


def _cost(ran: Records) -> str:
    def column(name: str) -> list[float]:
        return sorted(float(record[name]) for record in ran.values())

    forward, build, memory = column("forward_s"), column("build_s"), column("rss_bytes")
    parameters = column("parameters")
    rows = [
        ("parameters", f"{statistics.median(parameters):,.0f}", f"{parameters[-1]:,.0f}", f"{sum(parameters):,.0f}"),
        ("build, CPU s", f"{statistics.median(build):.2f}", f"{build[-1]:.2f}", f"{sum(build):.0f}"),
        ("forward, CPU s", f"{statistics.median(forward):.2f}", f"{forward[-1]:.2f}", f"{sum(forward):.0f}"),
        ("ops", *_whole(column("ops"))),
        ("module calls", *_whole(column("calls"))),
        ("resident memory, GiB", f"{statistics.median(memory) / 2**30:.2f}", f"{memory[-1] / 2**30:.2f}", ""),
    ]
    return _table(("", "median", "largest", "together"), rows)


def _whole(values: Sequence[float]) -> tuple[str, str, str]:
    return f"{statistics.median(values):,.0f}", f"{values[-1]:,.0f}", f"{sum(values):,.0f}"


def _failures(records: Records) -> str:
    failed = [(name, record) for name, record in records.items() if record["status"] != "ok"]
    if not failed:
        return ""
    rows = [(f"`{name}`", _reason(record), _cell(record["message"])) for name, record in failed]
    return "### What fails, and why\n\n" + _table(("model type", "reason", "its own words"), rows)


def _reason(record: Mapping[str, Any]) -> str:
    if record["status"] != "failed":
        return str(record["status"])
    message = str(record["message"])
    if message.startswith("ImportError") and (package := re.search(r"requires the (\S+) library", message)):
        return f"package missing: {package[1]}"
    if message.startswith("Refusal"):
        return "the engine refuses"
    return {"config": "configuration", "class": "class", "build": "configuration", "inputs": "inputs"}.get(
        str(record["stage"]), "engine"
    )


def _cell(text: str) -> str:
    line = " ".join(str(text).split()).replace("|", "\\|")
    return line if len(line) <= 160 else line[:157] + "..."


def _control(ran: Records) -> str:
    held = {name: record for name, record in ran.items() if "control" in record}
    if not held:
        return ""
    equal = [name for name, record in held.items() if record["control"].get("calls") == record["calls"]]
    text = (
        f"### The same inputs on real weights\n\n{len(held)} of these models are small enough to run for real, with "
        f"random weights and the same inputs; {len(equal)} make the same number of module calls."
    )
    rows = [
        (
            f"`{name}`",
            record["calls"],
            _cell(record["control"].get("calls", record["control"].get("message"))),
            VALUES_DECIDE.get(name, ""),
        )
        for name, record in held.items()
        if name not in equal
    ]
    return f"{text}\n\n{_table(('model type', 'calls weightless', 'for real', 'why'), rows)}" if rows else text


def _partial(ran: Records) -> str:
    """Composite models that took no pixels or sound: they count as run, but only their text model did."""
    rows = [
        (f"`{name}`", _fed(record["modalities"]), _cell((record.get("refusals") or ["-"])[0]))
        for name, record in ran.items()
        if _is_partial(record)
    ]
    if not rows:
        return ""
    return (
        f"### Run with less than they can take\n\nThe classes of these {len(rows)} also accept pixels or sound, for "
        f"which no accepted input was found.\n\n{_table(('model type', 'fed with', 'first refusal'), rows)}"
    )


def _is_partial(record: Mapping[str, Any]) -> bool:
    fed = {"image" if kind == "video" else kind for kind in record["modalities"]}
    return not set(record["accepts"]) - {"text"} <= fed


def _changes(ran: Records) -> str:
    changed = {name: record for name, record in ran.items() if "why_changed" in record}
    aligned = [name for name, record in ran.items() if "alignments" in record]
    rows = [(f"`{name}`", record["why_changed"]) for name, record in changed.items()]
    names = ", ".join(f"`{name}`" for name in aligned)
    return (
        f"### Changed configurations\n\nIn {len(aligned)} composite models the vocabulary was too small for the "
        f"placeholder token, or a tower's output not as wide as the text model, and was set to fit: {names}.\n\n"
        f"{len(changed)} need a value that the configuration class does not give:\n\n"
        f"{_table(('model type', 'why'), rows)}"
    )
