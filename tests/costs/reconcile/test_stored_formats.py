"""Sources that count stored weights and sources that count dense ones differ in bytes, and the ledger says why."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.costs.reconcile import FIGURES, reconcile
from llm_perf_opt.tracing.deployed_traces import redeployed
from tests.costs.stored_runs import mixture

OF_STORAGE = {"bytes_moved", "weight_bytes", "kv_cache_bytes", "kv_bytes_per_token"}


def said(source: str, **figures: Any) -> SourceFigures:
    return SourceFigures(source=source, phase="prefill", stage="prefill", method=Method.ISOLATED, **figures)


@pytest.mark.parametrize("figure", FIGURES)
def test_another_storage_explains_bytes_and_nothing_else(figure: str) -> None:
    left = said("counted", stored_as="weights fp8", **{figure: 5})
    (entry,) = reconcile([left, said("closed-form", **{figure: 7})]).figures
    assert entry.cause == ("stored-format" if figure in OF_STORAGE else None)


def test_two_sources_on_the_same_storage_must_agree() -> None:
    left, right = (said(name, stored_as="weights fp8", weight_bytes=size) for name, size in (("a", 5), ("b", 7)))
    (entry,) = reconcile([left, right]).figures
    assert entry.is_unexplained


def test_a_trace_says_how_its_weights_are_stored() -> None:
    (graph,) = redeployed([mixture()], Deployment(weights="fp8"))
    assert {told.stored_as for told in counted(graph)} == {"weights fp8"}
    assert {told.stored_as for told in counted(mixture())} == {None}
