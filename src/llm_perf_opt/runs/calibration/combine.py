"""One calibration of several rounds: at each size the round in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.hardware.calibration import Calibration, RateTable, Timing


def combined(rounds: Sequence[Calibration]) -> Calibration:
    """Rounds on one machine as one calibration.

    A moment in which other programs run, or none does, is seldom that of most rounds: the middle is how fast the
    machine is as a rule. Of two rounds the faster counts.
    """
    tables = zip(*(one.tables for one in rounds), strict=True)
    fresh = [one.fresh_byte for one in rounds if one.fresh_byte is not None]
    return replace(
        rounds[0],
        tables=tuple(_middle_table(same) for same in tables),
        fresh_byte=_middle(fresh) if fresh else None,
    )


def _middle_table(rounds: Sequence[RateTable]) -> RateTable:
    columns = zip(*(table.times for table in rounds), strict=True)
    return replace(rounds[0], times=tuple(map(_middle, columns)))


def _middle(times: Sequence[Timing]) -> Timing:
    return sorted(times, key=lambda time: time.median_s)[(len(times) - 1) // 2]
