"""Run every model class that transformers' own tests build, tiny, for real and weightless, and compare call by call.

    python -m benchmarks.breadth.tiny --transformers-tests CHECKOUT

CHECKOUT is a folder that holds the `tests` (and `utils`) of a transformers source tree; the suite's own requirements
(parameterized, pytest, datasets, ...) must be installed. One forked child per class under a cap of time and memory.
The data file is written as the sweep goes, and a second run continues it: `--redo failed differs` repeats those,
`--only PATTERN` runs some.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import cell, wide_table
from benchmarks.runner import Sweep, in_short, quieten, sweeper

Record = Mapping[str, Any]

INTRODUCTION = """## Tiny configurations, against a real run

`benchmarks/breadth/tiny.py` takes the model testers of transformers' own test suite: for every model class a tiny
configuration and inputs. Each class is built with random weights and run once on the CPU, then built and run without
weights, and the two runs are compared: how often every module was called, in which order, the shape and dtype of every
tensor that went in or came out, the final output. Float inputs have no values in the weightless run; integers, bools
and masks keep theirs. Mixtures of experts run a second time with their experts in a Python loop, where the routing
decides what each call sees.

```sh
python -m benchmarks.breadth.tiny --transformers-tests CHECKOUT
```"""

UNTRIED = """### What could not be tried

These classes do not run for real either: a package is missing, the network is asked for files, or the suite's inputs
and the installed library, which may be of another version, disagree."""

REASONS = (  # pattern in a message -> what is said of it; any other message is shown itself
    (r"requires the (\w+) library", "needs the package `{}`"),
    (r"No module named '(\w+)'", "needs the package `{}`"),
    (r"(connect to|offline|outgoing traffic|find the requested files)", "asks the network for files"),
)
LOOPED = "+eager"  # how the key of a run ends in which the experts of a mixture were called one by one
NOTHING_STOPPED = "Nothing: every class that runs for real also runs weightless."
STOPPED = ("failed", "crash", "timeout", "memory")
STEPS = (
    "built by the suite's test cases",
    "run for real on a CPU",
    "run weightless too",
    "equal in every call, shape and dtype",
    "equal with the recorded expert counts replayed",
    "different",
)


def section(header: Mapping[str, Any], records: Mapping[str, Record]) -> str:
    """Markdown from the data file alone."""
    own = {key: record for key, record in records.items() if not key.endswith(LOOPED)}
    looped = {key: record for key, record in records.items() if key.endswith(LOOPED)}
    shown = _of(own, "replayed", "differs") + _of(looped, "differs")
    differing = [(name, record["calls"], record["calls_differ"], _cause(record)) for name, record in shown]
    stopped = [(name, _cell(record["message"])) for name, record in _of(records, *STOPPED)]
    parts = [
        INTRODUCTION,
        f"With transformers {header['transformers']} and torch {header['torch']}:",
        wide_table(("", "classes", "experts in a loop"), zip(STEPS, _summary(own), _summary(looped), strict=True)),
        _calls(own.values()),
        "### What differs, and why",
        wide_table(("class", "calls", "different", "why"), differing),
        "### What does not run weightless",
        wide_table(("class", "message"), stopped) if stopped else NOTHING_STOPPED,
        UNTRIED,
        wide_table(("classes", "reason"), _reasons(record["message"] for _, record in _of(own, "unreal"))),
        f"{len(header['unreadable'])} test modules of the suite give no class at all:",
        wide_table(("test modules", "reason"), _reasons(header["unreadable"].values())),
    ]
    return "\n\n".join(parts)


def _summary(records: Mapping[str, Record]) -> tuple[int, ...]:
    """One figure per step of `STEPS`."""
    counts = Counter(str(record["status"]) for record in records.values())
    compared = tuple(counts[status] for status in ("equal", "replayed", "differs"))
    return counts.total(), counts.total() - counts["unreal"], sum(compared), *compared


def _of(records: Mapping[str, Record], *statuses: str) -> list[tuple[str, Record]]:
    chosen = sorted(key for key, record in records.items() if record["status"] in statuses)
    return [(f"`{key.rsplit('/', 1)[1]}`", records[key]) for key in chosen]


def _calls(records: Iterable[Record]) -> str:
    held = [record for record in records if record["status"] in ("equal", "replayed", "differs")]
    compared, different = sum(record["calls"] for record in held), sum(record["calls_differ"] for record in held)
    return f"{compared:,} module calls of the first column were compared; {different:,} differ with balanced routing."


def _cause(record: Record) -> str:
    if record["status"] == "replayed":
        return "routing; equal when the expert counts of the real run are replayed"
    return f"values decide a length; {_cell(record['evidence'])}" if record["evidence"] else "not explained"


def _reasons(messages: Iterable[str]) -> list[tuple[object, ...]]:
    return [(count, reason) for reason, count in Counter(_reason(message) for message in messages).most_common()]


def _reason(message: str) -> str:
    for pattern, text in REASONS:
        if found := re.search(pattern, message):
            return text.format(found[1])
    return _cell(message)


def _cell(text: str) -> str:
    return cell(text, 140, "…")


def main() -> None:
    """Sweep, write the data, refresh the page."""
    parser = sweeper(__doc__, "breadth_tiny", "breadth.md", seconds=180, gib=8)
    parser.add_argument("--transformers-tests", type=Path, required=True, metavar="CHECKOUT")
    options = parser.parse_args()
    versions = quieten()
    from benchmarks.breadth.observed import tiny_record
    from benchmarks.breadth.suite_testers import add_suite_to_path, find_classes

    add_suite_to_path(options.transformers_tests)
    found, unreadable = find_classes(options.transformers_tests)
    sweep = Sweep(options, {**versions, "unreadable": unreadable}, every=50)
    sweep.run(
        list(found),
        lambda key: tiny_record(found[key].prepare),
        lambda record: "" if record["status"] == "equal" else in_short(record),
    )
    sweep.put("tiny configurations", section(sweep.header, sweep.records))


if __name__ == "__main__":
    main()
