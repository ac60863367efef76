"""Two runs that differ in how weights or cache are stored: the format is the cause, and nothing is left open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.comparisons import Comparison, compare
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.costs.stored_formats import store_cache, store_weights, what_if_formats
from tests.costs.memory.made_decode import made_decode
from tests.costs.stored_runs import mixture


def with_weights(name: str) -> CallGraph:
    graph = store_weights(mixture(), what_if_formats(mixture(), name))
    return replace(graph, deployment={"weights": name, "weights_from": "what-if"})


def with_cache(dtype: str) -> CallGraph:
    (graph,) = store_cache([made_decode()], dtype)
    return replace(graph, deployment={"cache": dtype, "cache_from": "what-if"})


def details(comparison: Comparison) -> set[str]:
    return {finding.detail for finding in comparison.findings}


@pytest.mark.parametrize("name", ["int4-g128", "fp8", "mxfp4"])
def test_weights_of_another_format_are_named(name: str) -> None:
    found = compare(mixture(), with_weights(name))
    assert found.findings
    assert {finding.cause for finding in found.findings} == {"stored format"}
    assert f"weights bfloat16 -> {name}" in details(found)


def test_so_are_two_formats() -> None:
    found = compare(with_weights("int4-g128"), with_weights("fp8"))
    assert {finding.cause for finding in found.findings} == {"stored format"}
    assert "weights int4-g128 -> fp8" in details(found)


def test_a_checkpoint_whose_header_says_nothing_is_told_by_its_weights() -> None:
    silent = replace(with_weights("fp8"), deployment={})
    weights = [one for one in compare(mixture(), silent).findings if str(one.difference.aspect) == "weights"]
    assert {finding.cause for finding in weights} == {"stored format"}


def test_a_cache_of_another_type_is_named() -> None:
    found = compare(made_decode(), with_cache("int8"))
    assert {(str(one.difference.aspect), one.cause) for one in found.findings} >= {
        ("inputs", "stored format"),
        ("outputs", "stored format"),
    }
    assert "cache float32 -> int8" in details(found)
    assert found.unexplained == ()


def test_weights_of_another_shape_are_no_matter_of_storage() -> None:
    graph = with_weights("fp8")
    first = graph.parameters[1]
    wider = replace(first, meta=replace(first.meta, shape=(65, 64)))
    changed = replace(graph, parameters=(graph.parameters[0], wider, *graph.parameters[2:]))
    found = compare(mixture(), changed)
    open_paths = {one.difference.path for one in found.findings if one.cause != "stored format"}
    assert first.name.rpartition(".")[0] in open_paths
