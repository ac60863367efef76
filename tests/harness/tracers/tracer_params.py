"""The registered tracers as test parameters; one whose library is missing is skipped, with the reason."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import Sight

NEEDS = {"torchlens": "torchlens"}


def tracers_that_see(sight: Sight) -> list[Any]:
    return [tracer_param(name) for name in TRACERS.names() if sight in TRACERS.get(name).sees]


def tracer_param(name: str) -> Any:
    library = NEEDS.get(name)
    missing = library is not None and find_spec(library) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{library} is not installed"))
