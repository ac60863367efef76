"""Slices of the campaigns that kill studies and run two at once find nothing, and their checks find what is planted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="the extra `study` is not installed")

from scripts.campaigns.study_faults import (
    StudyPlace,
    _short_leases,
    kill_rows,
    pair_row,
    resumed,
    study_place,
    undisturbed,
)
from scripts.campaigns.verbs import Ended

FINE, REFUSED = Ended(code=0, out="", err=""), Ended(code=1, out="", err="Another run is writing")

pytestmark = pytest.mark.slow  # tiny models are traced, in forks


@pytest.fixture(scope="module")
def place() -> Iterator[StudyPlace]:
    with study_place() as found:
        yield found


def test_a_killed_study_goes_on_to_the_same_bits(place: StudyPlace) -> None:
    rows = kill_rows(place, 4, random.Random(1))
    assert [(row.tried, row.findings) for row in rows] == [(2, []), (2, [])]


def test_two_studies_of_one_name_lose_nothing(place: StudyPlace) -> None:
    row = pair_row(place, 2, random.Random(1), "a folder")
    assert (row.tried, row.findings) == (2, [])
    with _short_leases():
        row = pair_row(replace(place, address="shared://"), 2, random.Random(1), "a storage")
    assert (row.tried, row.findings) == (2, [])


def test_a_part_that_is_lost_or_differs_is_found(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = undisturbed(place)
    assert list(place.left_over()) == []

    def loses(self: StudyPlace, declared: str) -> Ended:
        next(self.results.rglob("part-*.parquet")).unlink()
        return FINE

    monkeypatch.setattr(StudyPlace, "run", loses)
    found = list(resumed(place, alone.state))
    assert "is lost" in found[0]
    assert "bit for bit" in found[1]
    monkeypatch.setattr(StudyPlace, "run", lambda self, declared: replace(FINE, code=1))
    assert "ended with 1" in next(resumed(place, alone.state))


def test_a_refusal_without_a_remedy_and_two_refusals_are_found(
    place: StudyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {declared: undisturbed(place, declared) for declared in ("other", "first")}
    monkeypatch.setattr("scripts.campaigns.study_faults.undisturbed", lambda _, declared: found[declared])
    monkeypatch.setattr(StudyPlace, "start", lambda self, declared, desk: 1)
    monkeypatch.setattr(StudyPlace, "ended", lambda self, pid, desk: REFUSED)
    monkeypatch.setattr(StudyPlace, "run", lambda self, declared: FINE)
    monkeypatch.setattr(StudyPlace, "clear", lambda self: None)
    row = pair_row(place, 1, random.Random(1), "a folder")
    assert sum("it ended with 1" in finding for finding in row.findings) == 2
    assert any("none of the two" in finding for finding in row.findings)
