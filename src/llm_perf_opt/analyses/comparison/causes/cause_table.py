"""The table of causes: each is one function that claims the differences it can prove from the two traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from llm_perf_opt.analyses.comparison.difference import Claim, Difference, Pair

Cause = Callable[[Pair, Sequence[Difference]], Iterable[Claim]]
CauseT = TypeVar("CauseT", bound=Cause)


class CauseTable:
    """Names -> causes, asked in the order in which they were added; the first to claim a difference keeps it."""

    def __init__(self) -> None:
        self._causes: dict[str, Cause] = {}

    def add(self, name: str) -> Callable[[CauseT], CauseT]:
        """Register a cause; a name that is taken raises, since one of the two would never be heard."""

        def register(cause: CauseT) -> CauseT:
            if name in self._causes:
                raise ValueError(f"there are two causes named {name!r}")
            self._causes[name] = cause
            return cause

        return register

    def names(self) -> tuple[str, ...]:
        """Every cause, the first to be asked first."""
        return tuple(self._causes)

    def claims(self, pair: Pair, differences: Sequence[Difference]) -> dict[Difference, tuple[str, str]]:
        """Difference -> the name of its cause and the detail; what is not in it has no cause."""
        found: dict[Difference, tuple[str, str]] = {}
        for name, cause in self._causes.items():
            waiting = [difference for difference in differences if difference not in found]
            if not waiting:
                break
            found.update({claim.difference: (name, claim.detail) for claim in cause(pair, waiting)})
        return found


CAUSES = CauseTable()
