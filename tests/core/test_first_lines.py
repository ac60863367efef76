"""Words that several answers begin with: a share is all or nothing only where it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_perf_opt.core.report import largest_text, share_text, stage_names


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1, "100 %"),
        (0.9951, "over 99 %"),
        (0.9949, "99 %"),
        (0.5, "50 %"),
        (0.0051, "1 %"),
        (0.0049, "under 1 %"),
        (0, "0 %"),
    ],
)
def test_nearly_all_is_not_all_and_nearly_nothing_not_nothing(share: float, text: str) -> None:
    assert share_text(share) == text


def test_the_largest_parts_of_a_sum() -> None:
    assert largest_text({"prefill": 999, "decode": 1}) == "prefill over 99 %, decode under 1 %"
    assert largest_text({"prefill": 3, "decode": 0}) == "prefill 100 %"


def test_a_stage_of_several_phases_is_named_with_its_phase() -> None:
    pairs = (("prefill", "vision"), ("prefill", "prefill"), ("chunk", "vision"))
    stages = [SimpleNamespace(phase=phase, name=name) for phase, name in pairs]
    assert stage_names(stages) == ["vision (prefill)", "prefill", "vision (chunk)"]
