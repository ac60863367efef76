"""The one error a person is meant to read: what happened, why, and what to do.

Its texts name options as the command line does, `--load-weights random`, and the command prints them so. Whoever gets
the error in Python reads `str(error)`, which names the same as keywords: `load_weights="random"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_CLAUSE = re.compile(r"(?<=[;:.]) ")
_COMMAND = re.compile(r"(?:^|[\s`'\"(])(?:llm-perf-opt|pip|uvx|vllm|ray|nsys|ncu|nvidia-smi|python) \S")
_VALUE = r"[A-Z][A-Z0-9_]*(?:x[A-Z]+)?(?=[\s,;.)]|$)|(?=[\w.%/:,=-]*\d)[\w.%/:,=-]*\w"
_CHOICE = "random|fused|eager|sdpa|cpu|cuda|hooks|profiler|torchlens|weightless|ray|vllm|calls|text|uniform"
_FLAG = re.compile(rf"(?<![\w/-])--([a-z][a-z-]*)(?: ((?:{_VALUE})|(?:{_CHOICE})\b))?")
_SWITCHES = frozenset({"force", "trust_remote_code", "compile", "engine_only"})
_OTHER_NAMES = {"devices": "devices_file", "budget": "budgets", "part": "parts", "output": "decode_steps"}


def in_python(text: str) -> str:
    """The same hint for whoever calls a function: its options as keywords; commands for a shell stay as they are."""
    return " ".join(
        clause if _COMMAND.search(clause) else _FLAG.sub(_keyword, clause) for clause in _CLAUSE.split(text)
    )


def _keyword(flag: re.Match[str]) -> str:
    name, value = flag[1].replace("-", "_"), flag[2]
    name = _OTHER_NAMES.get(name, name)
    if name in _SWITCHES:
        return f"{name}=True" if value is None else f"{name}=True {value}"
    if value is None:
        return name
    return f"{name}={value}" if value.isdecimal() or value.isupper() else f'{name}="{value}"'


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

    def __str__(self) -> str:
        return in_python(super().__str__())

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
