"""Fifty absurd requests and more; the campaign finds what takes too long, takes too much, or says nothing."""

from __future__ import annotations

import pytest

from scripts.campaigns.bounded_work import MOST_BYTES, MOST_SECONDS, judged, requests
from scripts.campaigns.verbs import Ended

TOLD = Ended(code=2, out="", err="error: no\n  why: too much\n  fix: less\n")


def test_there_are_fifty_of_them_and_each_verb_is_asked() -> None:
    asked = requests()
    assert len(set(asked.values())) >= 50
    verbs = {words.split()[0] for words in asked.values()}
    assert verbs >= {"trace", "cost", "report", "export", "sweep", "serve", "profile", "devices"}


def test_an_answer_and_a_refusal_with_a_reason_are_fine() -> None:
    assert list(judged(TOLD, MOST_SECONDS, MOST_BYTES)) == []
    assert list(judged(Ended(code=0, out="42", err=""), 0.1, 0)) == []


@pytest.mark.parametrize(
    ("ended", "seconds", "above_bytes", "found"),
    [
        (Ended(code=1, out="", err="Traceback (most recent call last)\nKeyError: 3"), 1.0, 0, "KeyError"),
        (Ended(code=-9, out="", err=""), 1.0, 0, "exit code -9"),
        (Ended(code=1, out="", err="hm"), 1.0, 0, "without a reason"),
        (TOLD, MOST_SECONDS + 0.1, 0, "took 10.1 s"),
        (TOLD, 1.0, MOST_BYTES + 2**28, "took 1.25 GiB"),
    ],
)
def test_what_breaks_the_rule_is_found(ended: Ended, seconds: float, above_bytes: int, found: str) -> None:
    (finding,) = judged(ended, seconds, above_bytes)
    assert found in finding
