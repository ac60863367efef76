"""The one error a person is meant to read: what happened, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PerfOptError(Exception):
    """A failure with a cause and a remedy; `cli` prints it and leaves with `exit_code`.

    Raised near the cause. `ValueError` stays for wrong arguments in the Python API, `assert` for our own invariants.
    """

    def __init__(self, what: str, *, why: str, fix: str, exit_code: int = 1) -> None:
        super().__init__(f"{what}\n  why: {why}\n  fix: {fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def add_reason(self, reason: str) -> None:
        """Say more of the cause, which only somebody further up knows."""
        self.why = f"{self.why}; {reason}"
        self.args = (f"{self.what}\n  why: {self.why}\n  fix: {self.fix}",)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """For pickle and copy, which would otherwise call the constructor with the text alone."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[PerfOptError], args: tuple[Any, ...]) -> PerfOptError:
    """The error without its attributes, which pickle and copy put back."""
    return kind.__new__(kind, *args)


class BrokenBudgetError(PerfOptError):
    """A limit that was asked for does not hold, or its figure is not known; nothing failed: exit code 3."""

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(what, why=why, fix=fix, exit_code=3)


class UsageError(PerfOptError):
    """The command was asked for something it cannot mean: exit code 2."""

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(what, why=why, fix=fix, exit_code=2)
