"""Which runs read pages: by what the header says of the image."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.timing.speed import speed_of


@pytest.mark.parametrize(
    ("workload", "pages"),
    [
        ({"image": "640x640", "image_tokens": 100, "logits": "last position"}, 3),
        ({"image": "560x560", "image_tokens": 0, "logits": "last position"}, 3),  # cross-attention: no tokens
        ({"image": "384x384", "logits": "every position"}, 3),  # an encoder of images beside a decoder
        ({"image": "224x224"}, 0),  # nothing is generated
        ({"logits": "last position"}, 0),
    ],
)
def test_pages_are_images_from_which_text_is_generated(workload: dict[str, Any], pages: int) -> None:
    graph = CallGraph(phase="prefill", workload={**workload, "batch": 3})
    assert speed_of([graph], [[]]).pages == pages
