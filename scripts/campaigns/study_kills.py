"""SIGKILL of a study, half of them once its first part is finished: the same command goes on to the same bits."""

from __future__ import annotations

import random

from scripts.campaigns.rows import Row
from scripts.campaigns.study_places import StudyPlace, Undisturbed, killed, resumed, study_place, undisturbed

NAME = "study_kills"
FULL, QUICK = 200, 6


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each half."""
    with study_place() as place:
        return kill_rows(place, QUICK if quick else FULL, random.Random(f"{seed} {NAME}"), NAME)


def kill_rows(place: StudyPlace, count: int, draw: random.Random, campaign: str) -> list[Row]:
    """Half of the kills at any moment, half after the first finished part; only those count that came in time."""
    alone = undisturbed(place)
    rows = []
    for what, after_part in (("killed at any moment", False), ("killed after its first finished part", True)):
        findings = [one for _ in range(count // 2) for one in _one(place, alone, draw, after_part=after_part)]
        rows.append(Row(campaign=campaign, what=f"study, {what}", tried=count // 2, findings=findings))
    return rows


def _one(place: StudyPlace, alone: Undisturbed, draw: random.Random, *, after_part: bool) -> list[str]:
    """One kill, and what is wrong after it."""
    longest = alone.seconds - (alone.first_s if after_part else 0.0)
    while not killed(place, delay_s := draw.uniform(0, longest), after_part=after_part):
        longest *= 0.9  # it was faster this time, and had ended
    found = [*resumed(place, alone.state)]
    if place.engine == "--workers 1":  # a worker of a cluster may outlive its driver for a moment
        found += place.left_over()
    return [f"killed after {delay_s:.3f} s: {one}" for one in found]
