"""The tiny configurations and inputs that transformers' own test suite holds, found by importing its test modules.

The suite is read from a checkout; nothing of it is kept. A suite of another version than the installed library may
import names that the library no longer has: they are filled with placeholders, so that the rest of the file serves.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

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
    found = [SuiteClass(test_module, case, model_class) for case in cases for model_class in _model_classes(case)]
    looped = [
        replace(each, experts="eager")
        for each in found
        if (
            hasattr(each.model_class, "_can_set_experts_implementation")
            and each.model_class._can_set_experts_implementation()
        )
    ]
    return found + looped


def find_classes(checkout: Path) -> tuple[dict[str, SuiteClass], dict[str, str]]:
    """Every class of the suite by key, and why a test module gave none."""
    found: dict[str, SuiteClass] = {}
    unreadable: dict[str, str] = {}
    for name in test_modules(checkout):
        try:
            classes = suite_classes(name)
        except Exception as error:  # noqa: BLE001 - whatever a test module raises here is the reason that is reported
            unreadable[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        found |= {each.key: each for each in classes}
        if not classes:
            unreadable[name] = "no test case with a model tester"
    return found, unreadable


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
