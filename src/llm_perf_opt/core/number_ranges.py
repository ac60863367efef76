"""Ranges of whole numbers as people write them: `1..512`, `1k..128k`, `1,8,64`, `7`; k is 1,024 and m is 1,048,576."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.core.errors import UsageError

Given = int | str | tuple[int, int] | Sequence[int]
POINTS = 10  # of a range, by default
MOST_POINTS = 1000
_LARGEST = 2**40
_NUMBER = re.compile(r"(\d{1,13})([km]?)", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1024, "m": 1024**2}
_HOW = "write a range 1..512, a list 1,8,64 or one number; k is 1,024"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Values to look at, ascending. `is_range`: they were chosen between two ends, and more lie between them."""

    values: tuple[int, ...]
    is_range: bool

    @property
    def low(self) -> int:
        """The smallest."""
        return self.values[0]

    @property
    def high(self) -> int:
        """The largest."""
        return self.values[-1]

    @property
    def ends(self) -> tuple[int, int]:
        """Both, as a function takes its domain."""
        return self.low, self.high


def read_range(given: Given, name: str, *, points: int = POINTS) -> NumberRange:
    """A text as on the command line, one number, a pair of ends, or a list of values.

    Of a range at most `points` values are taken: both ends, and round numbers at even ratios between them.
    """
    if not 2 <= points <= MOST_POINTS:
        raise UsageError(
            f"{points:,} points of a range are too {'few' if points < 2 else 'many'}.",
            why=f"a range has two ends, and at most {MOST_POINTS:,} points are shown of it",
            fix=f"give a number from 2 to {MOST_POINTS:,}",
        )
    numbers, is_range = _read(given, name)
    if min(numbers) < 1 or max(numbers) > _LARGEST:
        wrong = next(number for number in numbers if not 1 <= number <= _LARGEST)
        shown = f"{wrong:,}" if abs(wrong) < 10**20 else "a number of more than 20 digits"
        raise UsageError(f"{name} cannot be {shown}.", why=f"it begins at 1 and ends at {_LARGEST:,}", fix=_HOW)
    if not is_range:
        return NumberRange(tuple(sorted(set(numbers))), is_range=False)
    low, high = numbers
    if low > high:
        raise UsageError(f"{name} runs from {low:,} down to {high:,}.", why="a range ascends", fix="swap the two ends")
    return NumberRange(round_numbers(low, high, points), is_range=low < high)


def read_ends(given: Given | range, name: str) -> tuple[int, int]:
    """The ends of a range, both included: `"1..512"`, `range(1, 513)`, a pair, or one number for both."""
    if isinstance(given, range):
        given = (given[0], given[-1]) if len(given) else ()
    return read_range(given, name).ends


def _read(given: Given, name: str) -> tuple[tuple[int, ...], bool]:
    """The numbers, and whether they are the ends of a range."""
    if isinstance(given, str):
        low, dots, high = given.partition("..")
        if dots:
            return (_number(low, name), _number(high, name)), True
        return tuple(_number(word, name) for word in given.split(",")), False
    if type(given) is int:
        return (given,), False
    if isinstance(given, Sequence) and given and all(type(number) is int for number in given):
        return tuple(int(number) for number in given), isinstance(given, tuple) and len(given) == 2
    raise UsageError(f"{name} cannot be {repr(given)[:80]}.", why="it takes whole numbers", fix=_HOW)


def _number(text: str, name: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{name} cannot be {text.strip()[:80]!r}.", why="it takes whole numbers", fix=_HOW)
    return int(match[1]) * _FACTORS[match[2].lower()]


def round_numbers(low: int, high: int, most: int) -> tuple[int, ...]:
    """Both ends and round numbers between them, at most `most`: as dense a ladder as that allows."""
    if high - low < most:
        return tuple(range(low, high + 1))
    best: tuple[int, ...] = (low, high)
    for stride in (10, 6, 4, 3, 2, 1):
        best = _denser(best, low, high, most, stride, (4,))
    for quarters in ((4, 6), (4, 5, 6, 7)):
        best = _denser(best, low, high, most, 1, quarters)
    return best if high >= 2 * low else max(best, thinned(range(low, high + 1), min(most, 5)), key=len)


def _denser(
    best: tuple[int, ...], low: int, high: int, most: int, stride: int, quarters: tuple[int, ...]
) -> tuple[int, ...]:
    numbers = (low, *_inside(low, high, _ladder(high, stride, quarters)), high)
    return numbers if len(best) < len(numbers) <= most else best


def _ladder(high: int, stride: int, quarters: tuple[int, ...]) -> Iterator[int]:
    for power in range(0, high.bit_length() + 1, stride):
        yield from (2**power * quarter // 4 for quarter in quarters if 2**power * quarter % 4 == 0)


def _inside(low: int, high: int, ladder: Iterator[int]) -> list[int]:
    """Between the ends, and not so near to one that the two could not be told apart on an axis."""
    inside = [rung for rung in ladder if low < rung < high]
    near = min((after / before for before, after in pairwise(inside)), default=2.0) ** 0.4
    return [rung for rung in inside if rung / low >= near and high / rung >= near]


def thinned(values: Sequence[int], most: int) -> tuple[int, ...]:
    """At most this many of them, both ends among them, at places that are evenly spread."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(place * last / (most - 1))] for place in range(most))
