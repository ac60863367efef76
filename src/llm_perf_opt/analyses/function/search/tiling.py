"""Whether regions tile a domain: every point of it lies in exactly one of them. Counted, not sampled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import lcm

from llm_perf_opt.analyses.function.figures.costs import Region
from llm_perf_opt.analyses.function.phase_function import PhaseFunction
from llm_perf_opt.analyses.function.search.sampling import Stride

Part = tuple[Region, Stride | None]


def parts_of(function: PhaseFunction) -> list[Part]:
    """The cells and the open regions of a phase."""
    cells = [(one.cell.region, one.cell.stride) for one in function.cells]
    return [*cells, *((one.region, one.stride) for one in function.open_regions)]


def tiling_problem(domain: Region, parts: Sequence[Part]) -> str | None:
    """Why parts do not tile a domain; None where they do."""
    for region, stride in ((domain, None), *parts):
        if region.keys() != domain.keys() or any(low > high for low, high in region.values()):
            return f"{_text(region)} is no range of {', '.join(domain)}"
        if stride is not None and (stride.variable not in domain or stride.chunk < 1):
            return f"{stride} is no rule for {', '.join(domain)}"
    whole: Part = (domain, None)
    for part in parts:
        if common_points(part, whole) != common_points(part):
            return f"{_text(part[0])} reaches beyond {_text(domain)}"
    for one, other in combinations(parts, 2):
        if common_points(one, other):
            return f"{_text(one[0])} and {_text(other[0])} overlap"
    missing = common_points(whole) - sum(map(common_points, parts))
    return f"{missing:,} points of {_text(domain)} lie in no region" if missing else None


def common_points(*parts: Part) -> int:
    """How many points lie in all of these parts."""
    total = 1
    for name in parts[0][0]:
        low, high = max(region[name][0] for region, _ in parts), min(region[name][1] for region, _ in parts)
        total *= _values(low, high, [stride for _, stride in parts if stride is not None and stride.variable == name])
    return total


def _values(low: int, high: int, strides: Sequence[Stride]) -> int:
    """How many numbers of a range all strides hold: multiples of some chunks and of none of the others."""
    chunk = lcm(*(one.chunk for one in strides if one.is_multiple))
    others = [one.chunk for one in strides if not one.is_multiple]
    chosen = (some for count in range(len(others) + 1) for some in combinations(others, count))
    return sum((-1) ** len(some) * _multiples(low, high, lcm(chunk, *some)) for some in chosen)


def _multiples(low: int, high: int, of: int) -> int:
    return max(0, high // of - (low - 1) // of)


def _text(region: Region) -> str:
    return ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in region.items())
