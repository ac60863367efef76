"""A transformers without the code of the model is told by the version that is needed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.got_ocr2.adapter import GotOcr2Adapter


@pytest.mark.parametrize("installed", ["4.46.3", "4.57.0.dev0"])
def test_an_old_transformers_is_refused_with_the_version_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    old = ModuleType("transformers")
    old.__version__ = installed
    monkeypatch.setitem(sys.modules, "transformers", old)
    with pytest.raises(PerfOptError, match="needs transformers 5") as caught:
        GotOcr2Adapter().targets(Workload())
    assert caught.value.why == f"{installed} is installed"
    assert caught.value.fix == "pip install 'transformers>=5'"


def test_a_missing_transformers_is_told_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PerfOptError, match="transformers is not installed"):
        GotOcr2Adapter().targets(Workload())
