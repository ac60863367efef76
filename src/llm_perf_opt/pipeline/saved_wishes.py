"""What a trace made earlier cannot be asked for: it holds one workload, and nothing is run again."""

from __future__ import annotations

from dataclasses import fields

from llm_perf_opt.errors import UsageError
from llm_perf_opt.plugins import Workload


def refuse_wishes(workload: Workload, **wishes: object) -> None:
    """Refuse every field of a workload that was set, and every other wish that is not empty.

    A wish that is silently ignored would be a wrong figure. Fields and wishes have the names of their options.
    """
    asked = [field.name for field in fields(Workload) if getattr(workload, field.name) != field.default]
    asked += [name for name, wish in wishes.items() if wish]
    if asked:
        raise UsageError(
            f"A trace made earlier has no use for {', '.join(map(_option, asked))}.",
            why="it brings the workload that it was made with, and nothing is run again",
            fix="leave it out, or name the model in place of its trace",
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
