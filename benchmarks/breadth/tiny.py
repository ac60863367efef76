"""Run every model class that transformers' own tests build, tiny, for real and weightless, and compare call by call.

    python -m benchmarks.breadth.tiny --transformers-tests CHECKOUT

CHECKOUT is a folder that holds the `tests` (and `utils`) of a transformers source tree; the suite's own requirements
(parameterized, pytest, datasets, ...) must be installed. One forked child per class under a cap of time and memory.
The data file is written as the sweep goes, and a second run continues it: `--redo failed differs` repeats those,
`--only PATTERN` runs some.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import cell, wide_table
from benchmarks.runner import Sweep, in_short, quieten, sweeper

# The tiny configurations and inputs that transformers' own test suite holds, found by importing its test modules.

PLACEHOLDERS_PER_MODULE = 20


@dataclass(frozen=True, slots=True)
class SuiteClass:
    """One model class under one test case of the suite.

    `experts` replaces the library's own choice of how a mixture of experts runs: `eager` is a Python loop over the
    experts, in which the routing decides what each call sees.
    """

    test_module: str
    case: type[unittest.TestCase]
    model_class: type[torch.nn.Module]
    experts: str | None = None

    @property
    def architecture(self) -> str:
        """The folder of the test module, which is the library's name of the architecture."""
        return self.test_module.split(".")[2]

    @property
    def key(self) -> str:
        """A name that is the same in every sweep."""
        variant = f"+{self.experts}" if self.experts else ""
        return f"{self.architecture}/{self.case.__name__}/{self.model_class.__name__}{variant}"

    def prepare(self) -> tuple[Callable[[], torch.nn.Module], dict[str, Any]]:
        """A builder from the suite's own tiny configuration, and the inputs the suite gives this class."""
        case: Any = _prepared(self.case)
        tester = _tester_of(case)
        if hasattr(tester, "prepare_config_and_inputs_for_model_class"):
            config, inputs = tester.prepare_config_and_inputs_for_model_class(self.model_class)
        else:
            config, inputs = tester.prepare_config_and_inputs_for_common()
        if self.experts is not None:
            config._experts_implementation = self.experts
        # A model may write to its configuration, and the next build must not see that.
        return lambda: self.model_class(copy.deepcopy(config)), dict(case._prepare_for_class(inputs, self.model_class))


class GoneFromLibrary:
    """Stands where the suite imports a name that the installed library does not have."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{type(self).__name__} is not in the installed transformers")


def add_suite_to_path(checkout: Path) -> None:
    """Make `tests.*` importable from `checkout`, the folder that holds transformers' `tests` (and its `utils`)."""
    import transformers.utils

    sys.path[:0] = [str(checkout), str(checkout / "utils")]
    # The suite would execute the checkout's own copy of the library here; what is under test is the installed one.
    transformers.utils.direct_transformers_import = lambda *_, **__: transformers


def test_modules(checkout: Path) -> list[str]:
    """Dotted names of every modeling test of the suite."""
    files = sorted((checkout / "tests" / "models").glob("*/test_modeling_*.py"))
    return [".".join(file.relative_to(checkout).with_suffix("").parts) for file in files]


def suite_classes(test_module: str) -> list[SuiteClass]:
    """Every model class that a test case of `test_module` builds from a tester, once per test case."""
    module = _import(test_module)
    cases = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == test_module
    ]
    suite = [SuiteClass(test_module, case, model_class) for case in cases for model_class in _model_classes(case)]
    looped = [
        replace(each, experts="eager")
        for each in suite
        if (
            hasattr(each.model_class, "_can_set_experts_implementation")
            and each.model_class._can_set_experts_implementation()
        )
    ]
    return suite + looped


def find_classes(checkout: Path) -> tuple[dict[str, SuiteClass], dict[str, str]]:
    """Every class of the suite by key, and why a test module gave none."""
    by_key: dict[str, SuiteClass] = {}
    unreadable: dict[str, str] = {}
    for name in test_modules(checkout):
        try:
            classes = suite_classes(name)
        except Exception as error:  # noqa: BLE001 - whatever a test module raises here is the reason that is reported
            unreadable[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        by_key |= {each.key: each for each in classes}
        if not classes:
            unreadable[name] = "no test case with a model tester"
    return by_key, unreadable


def _tester_of(case: unittest.TestCase) -> Any:
    """The object of a test case that prepares configurations and inputs."""
    return next(value for value in vars(case).values() if hasattr(value, "prepare_config_and_inputs_for_common"))


def _import(name: str) -> Any:
    for _ in range(PLACEHOLDERS_PER_MODULE):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing = re.match(r"cannot import name '(\w+)' from 'transformers[\w.]*'", str(error))
            if missing is None or error.name is None:
                raise
            setattr(sys.modules[error.name], missing[1], type(missing[1], (GoneFromLibrary,), {}))
    raise ImportError(f"{name} wants more than {PLACEHOLDERS_PER_MODULE} names that transformers does not have")


def _prepared(case: type[unittest.TestCase]) -> unittest.TestCase:
    prepared = case()
    prepared.setUp()
    return prepared


def _model_classes(case: type[unittest.TestCase]) -> Iterator[type[torch.nn.Module]]:
    """The classes of `case`; none when it has no tester, as the suite's slow integration tests have not."""
    if not hasattr(case, "_prepare_for_class"):
        return
    prepared = _prepared(case)
    if any(hasattr(value, "prepare_config_and_inputs_for_common") for value in vars(prepared).values()):
        yield from dict.fromkeys(getattr(prepared, "all_model_classes", None) or ())


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
        if match := re.search(pattern, message):
            return text.format(match[1])
    return _cell(message)


def _cell(text: str) -> str:
    return cell(text, 140, "…")


def main() -> None:
    """Sweep, write the data, refresh the page."""
    parser = sweeper(__doc__, "breadth_tiny", "evidence/breadth.md", seconds=180, gib=8)
    parser.add_argument("--transformers-tests", type=Path, required=True, metavar="CHECKOUT")
    options = parser.parse_args()
    versions = quieten()
    from benchmarks.breadth.observed import tiny_record
    from benchmarks.breadth.tiny import add_suite_to_path, find_classes

    add_suite_to_path(options.transformers_tests)
    suite, unreadable = find_classes(options.transformers_tests)
    sweep = Sweep(options, {**versions, "unreadable": unreadable}, every=50)
    sweep.run(
        list(suite),
        lambda key: tiny_record(suite[key].prepare),
        lambda record: "" if record["status"] == "equal" else in_short(record),
    )
    sweep.put("tiny configurations", section(sweep.header, sweep.records))


if __name__ == "__main__":
    main()
