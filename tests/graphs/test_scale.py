"""The size a view must carry: 25,000 modules, 100,000 calls, a million ops. Times are CPU seconds."""

from __future__ import annotations

import pytest

from llm_perf_opt.formats.html_format import HtmlDrawing
from llm_perf_opt.graphs.view import group
from tests.core.callgraph.test_scale import build
from tests.graphs.made_runs import drawn
from tests.slowness import timed

pytestmark = pytest.mark.slow


def test_a_hundred_thousand_calls_are_grouped_in_five_seconds() -> None:
    graph = build()
    assert graph.calls is not None
    assert (len(set(graph.calls.path)), len(graph.calls.path)) == (24_462, 97_848)
    view = timed(5, lambda: group(graph))
    assert 0.4e6 < len(HtmlDrawing().render(view).encode()) < 0.8e6
    assert drawn(view) == {
        "Layer @ layers.[0-29]": "for 30",
        "Expert @ layers.[0-29].experts.[0-99]": "for 100",
        "Linear @ layers.[0-29].experts.[0-99].[gate_proj,up_proj,down_proj]": "for 3",
        "Layer @ layers.[30-60]": "for 31",
        "Expert @ layers.[30-60].experts.[0-99]": "for 100",
        "Linear @ layers.[30-60].experts.[0-99].[gate_proj,up_proj,down_proj]": "for 3",
    }
