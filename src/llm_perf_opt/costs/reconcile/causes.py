"""Why two traces or two figures differ: causes by name, and the explanation of one difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A named reason for differences."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The cause of one difference, by name; `detail` says what shows it."""

    cause: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A difference that has an explanation, or none: then it is unexplained."""

    explanation: Explanation | None = None

    @property
    def cause(self) -> str | None:
        """The name of the cause; None: unexplained."""
        return None if self.explanation is None else self.explanation.cause

    @property
    def detail(self) -> str:
        """What shows the cause; empty where there is none."""
        return "" if self.explanation is None else self.explanation.detail


C = TypeVar("C", bound=Cause)


class CauseTable(Mapping[str, C]):
    """Causes by name, in the order in which they are tried; a name that is given twice raises."""

    def __init__(self, *causes: C) -> None:
        self._causes = {cause.name: cause for cause in causes}
        if len(self._causes) != len(causes):
            raise ValueError(f"two causes have one name: {', '.join(cause.name for cause in causes)}")

    def __getitem__(self, name: str) -> C:
        return self._causes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._causes)

    def __len__(self) -> int:
        return len(self._causes)
