"""Full-size models of other kinds, held to pictures that a person has read: `scripts/make_graph_goldens.py`."""

from __future__ import annotations

import difflib
from functools import cache

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.graphs.conservation import check_conservation
from llm_perf_opt.graphs.view import group
from scripts.make_graph_goldens import ARCHITECTURES, GOLDENS, golden_text, trace

transformers = pytest.importorskip("transformers", reason="the architectures are those of transformers, an extra")


@cache
def traced(name: str) -> CallGraph:
    return trace(name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_at_most_forty_boxes_that_add_up(name: str) -> None:
    view = group(traced(name))
    assert len(view.visible()) <= 40
    assert check_conservation(view, traced(name)) == []
    assert any(loop.kind == "for" for box in view.visible() for loop in box.loops)
    assert not [line for line in view.caption if line.startswith("Warning")]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_picture_is_the_one_that_was_read(name: str) -> None:
    golden = (GOLDENS / f"{name}.txt").read_text(encoding="utf-8")
    made_with = golden.splitlines()[0].rpartition(" ")[2]
    if made_with != transformers.__version__:
        pytest.skip(f"the picture was made with transformers {made_with}, this is {transformers.__version__}")
    difference = difflib.unified_diff(golden.splitlines(), golden_text(group(traced(name))).splitlines(), lineterm="")
    assert list(difference) == []
