"""Loops read from names and counts against those that data flow shows, on small models of many kinds."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph, from_json_dict
from llm_perf_opt.graphs.view import group
from tests.breadth.tiny_models import TINY_MODELS

pytestmark = pytest.mark.slow


def loops_of(graph: CallGraph) -> dict[str, str]:
    """Label -> how its instances repeat, in words without the count."""
    boxes = [box for root in group(graph, max_boxes=1000).roots for box in root.walk()]
    return {box.label: loop.kind for box in boxes for loop in box.loops if loop.over == "instances"}


def test_names_and_counts_agree_with_data_flow_on_19_of_20_loops() -> None:
    verdicts: Counter[str] = Counter()
    for model in TINY_MODELS:
        (graph,) = lpo.trace(model.build(), (), model.make_inputs()).graphs
        seen = loops_of(graph)
        older = {"call_counts": graph.call_counts, "edges": graph.edges, "module_types": graph.module_types}
        for label, kind in loops_of(from_json_dict({key: dict(value) for key, value in older.items()})).items():
            verdicts["same" if seen.get(label) == kind else "other"] += 1
    assert verdicts["same"] >= 80
    assert verdicts["other"] <= verdicts.total() / 20, verdicts
