from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.queries import label_of


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (["model"], "model"),
        ([""], ""),
        ([f"layers.{n}" for n in range(12)], "layers.[0-11]"),
        (["layers.1", "layers.0"], "layers.[0-1]"),
        (["blocks.0", "blocks.2", "blocks.5"], "blocks.[0,2,5]"),
        ([f"blocks.{n}" for n in (0, 1, 3, 4, 6, 7, 9, 10)], "blocks.[0,1,3,4,6,7,9,10]"),
        ([f"layers.{n}" for n in (0, 1, 2, 3, 5)], "layers.[0-3,5]"),
        ([f"layers.{a}.experts.{b}.up" for a in (1, 2) for b in range(4)], "layers.[1-2].experts.[0-3].up"),
        (["a.left", "a.right"], "a.[left,right]"),
        (["a.b", "a.c.d"], "a.[b,c.d]"),
        (["a", "a.b"], "a.[(itself),b]"),
    ],
)
def test_labels(paths: list[str], label: str) -> None:
    assert label_of(paths) == label
